# %% [markdown]
# # A corpus on Ray
#
# Statistics of a corpus need every text once, and texts do not wait for each other: they can be counted by many workers.
# Here [Ray](https://docs.ray.io) starts two on this machine; on a cluster only `address=` changes. The embedded model needs no download.

# %%
from pathlib import Path
from tempfile import mkdtemp

import normlens

folder = Path(mkdtemp())
people, things = ["The baker", "A tired nurse", "My neighbour", "The old captain"], ["the bread", "a letter", "the map"]
verbs, places = (
    ["fixed", "forgot", "painted"],
    ["at the station", "before the storm", "in the kitchen", "near the sea"],
)
lines = [f"{p} {v} {t} {w}." for p in people for v in verbs for t in things for w in places]
(folder / "corpus.txt").write_text("\n".join(lines) + "\n")
lens = normlens.load()
len(lines)

# %% [markdown]
# ## Two workers on Ray
# The corpus is read first and cut into ranges; each range is one task that tokenizes, counts and saves its sequences.

# %%
on_ray = lens.corpus(folder / "corpus.txt", folder / "ray", measures=["alpha", "f_norm"], engine="ray", workers=2)
on_ray.grid("f_norm", "sep").round(2)

# %% [markdown]
# `grid` has layers down and heads across: the mean length of the transformed vector of `[SEP]`. Beside it, that of ordinary tokens:

# %%
sep, normal = on_ray.grid("f_norm", "sep").to_numpy().mean(), on_ray.grid("f_norm", "normal").to_numpy().mean()
print(f"mean ‖f(x)‖: [SEP] {sep:.2f}, ordinary tokens {normal:.2f}")
assert sep < normal

# %% [markdown]
# ## The same answer without Ray
# Engine and number of workers change no count, and no sum by more than 1e-9. That is not a hope but the design:
# a sequence always shares its forward pass with the same neighbours, and ranges are merged in the order of the corpus.

# %%
alone = lens.corpus(folder / "corpus.txt", folder / "local", measures=["alpha", "f_norm"])
names = ["site", "layer", "head", "quantity", "category", "over", "statistic"]
both = on_ray.statistics.merge(alone.statistics, on=names, suffixes=("_ray", "_local"))
counts = both[both["statistic"] == "count"]
assert len(both) == len(alone.statistics) and (counts["value_ray"] == counts["value_local"]).all()
means = both[both["statistic"] == "mean"]
difference = ((means["value_ray"] - means["value_local"]).abs() / means["value_local"].abs()).max()
print(f"{len(both)} rows, largest relative difference of a mean: {difference:.0e}")
assert difference < 1e-9

# %% [markdown]
# ## When a worker dies
# Everything that was saved counts. Calling the same again goes on from there, on either engine; a finished run is read, not repeated:

# %%
again = normlens.open(folder / "ray")
assert again.statistics.equals(on_ray.statistics)
sorted(path.name for path in (folder / "ray").iterdir())

# %% [markdown]
# ## On a cluster
# ```shell
# normlens corpus s3://bucket/wiki/ --model bert-base-uncased --out s3://bucket/out --engine ray --address auto --gpus-per-worker 1
# ```
# Sources and results may lie in object stores, and Ray runs as many ranges as the cluster has room for:
# [corpora](../corpus.md), [scaling](../scaling.md), [GPUs](../howto/gpus.md).
