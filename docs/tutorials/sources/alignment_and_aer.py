# %% [markdown]
# # Alignment and its error rate
#
# A translation model that is made to write a given translation shows which words belong together. Here we take links from two released
# models, score them against links drawn by hand, and read the score.

# %%
import os
from pathlib import Path

import normlens

folder = Path(os.environ.get("NORMLENS_REAL_MODELS", "models"))
forward, reverse = (
    str(folder / name) if (folder / name).is_dir() else f"Helsinki-NLP/{name}"
    for name in ("opus-mt-en-fr", "opus-mt-fr-en")
)
pairs = [
    ("the black cat sleeps on the old chair", "le chat noir dort sur la vieille chaise"),
    ("she does not like cold soup", "elle n' aime pas la soupe froide"),
    ("our neighbours sold their blue car yesterday", "nos voisins ont vendu leur voiture bleue hier"),
]

# %% [markdown]
# ## Links from one model
# The vectors of the cross-attention, all heads added (`attn_n`); layers are chosen without any gold, by how well they agree.

# %%
aligner = normlens.Aligner(forward)
for pair in aligner.align(pairs):
    print("  ".join(f"{pair.source[s]}–{pair.target[t]}" for s, t in sorted(pair.links)))
print(aligner.signature())

# %% [markdown]
# ## The error rate
# Links `A` are scored against sure links `S` and possible links `P ⊇ S`:
# `AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)`. A sure link that is missing costs, and so does a link that is not even possible.

# %%
from normlens.alignment.links import Annotation
from normlens.alignment.scoring import Counts

gold = [
    Annotation.of({(0, 0), (1, 2), (2, 1), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7)}),
    Annotation(frozenset({(0, 0), (2, 1), (2, 3), (3, 2), (4, 6), (5, 5)}), frozenset({(0, 0), (1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 6), (5, 5), (5, 4)})),
    Annotation(frozenset({(0, 0), (1, 1), (2, 3), (3, 4), (4, 6), (5, 5), (6, 7)}), frozenset({(0, 0), (1, 1), (2, 2), (2, 3), (3, 4), (4, 6), (5, 5), (6, 7)})),
]  # fmt: skip


def aer(results):
    return sum((Counts.of(one.links, reference) for one, reference in zip(results, gold, strict=True)), Counts()).aer


by_vectors = aer(aligner.align(pairs))
print(f"one direction: {100 * by_vectors:.1f} %")

# %% [markdown]
# ## Weights instead of vectors
# The paper links each target word to the largest entry of its row (`extract="argmax"`). By vectors and by weights, in the same layers:

# %%
layers = aligner.layers["forward"]
by_vectors, by_weights, joined_weights = (
    aer(normlens.Aligner(forward, measure=measure, layer=layers, extract=extract).align(pairs))
    for measure, extract in (("attn_n", "argmax"), ("attn_w", "argmax"), ("attn_w", "share"))
)
print(f"by vectors: {100 * by_vectors:.1f} %, by weights: {100 * by_weights:.1f} %")
print(f"by weights with the default's links: {100 * joined_weights:.1f} %")
assert by_vectors < by_weights

# %% [markdown]
# The default's links, made from shares of rows and columns of words alone, hide most of that difference.
#
# ## Both directions
# A second model for the other direction. Every chosen layer of either model is a view of the same alignment; the views are multiplied,
# and a link is a cell that has the majority of its row and its column on average.

# %%
both = normlens.Aligner(forward, reverse)
in_both = aer(both.align(pairs))
print(f"both directions: {100 * in_both:.1f} %")
assert in_both < by_weights

# %% [markdown]
# On three easy pairs a single word decides which of the two is better. On the 447 pairs of the Hansards one direction has an error rate
# of 4.01 (English to French) or 3.87 (French to English), and both together have 2.97 ([all results](../alignment.md)).
#
# ## See it
# `both.show(source, target, gold=…)` opens the page with gold links framed. On the shell:
#
# ```
# normlens align --model opus-mt-en-fr --reverse-model opus-mt-fr-en --source text.en --target text.fr \
#     --page pair.html --gold gold.talp --gold-one-based > links
# normlens aer --gold gold.talp --gold-one-based links
# ```
#
# A score is worth as much as its settings: `normlens aer` prints them beside it, with an interval from resampled sentences.
