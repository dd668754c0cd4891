# %% [markdown]
# # BERT and [SEP]
#
# Attention maps of BERT-like models are full of weight on special tokens. Clark et al. 2019 called it a "no-op"; Kobayashi et al. 2020
# showed why it is one: the vectors there are small. Here we see it in the embedded model, whose favourite is `[CLS]`.

# %%
import normlens

lens = normlens.load()
analysis = lens.analyze("The man went to the store.", pair="He bought a gallon of milk.")
analysis

# %% [markdown]
# ## Where the weight goes
# `attn_w` is the mean of the attention weights over heads. How much of it falls on each token, averaged over the positions that look?

# %%
others = analysis["attn_w"].where(analysis["attn_w"].query != analysis["attn_w"].key)
weight = others.mean("query").sel(layer=5).to_series()
weight.index = analysis["attn_w"]["key_token"].values
weight.sort_values(ascending=False).head(5).round(3)

# %% [markdown]
# ## What arrives
# `attn_n` is the length of the vectors that really arrive, all heads added. To compare, we take shares of each row.


# %%
def share(name, layer=5):
    values = analysis[name].sel(layer=layer)
    values = values.where(values.query != values.key)
    rows = (values / values.sum("key")).mean("query").to_series()
    rows.index = analysis[name]["key_token"].values
    return rows


cls_weight, cls_norm = share("attn_w")["[CLS]"], share("attn_n")["[CLS]"]
print(f"[CLS] takes {cls_weight:.0%} of the weight and brings {cls_norm:.0%} of what arrives")
share("attn_n").sort_values(ascending=False).head(5).round(3)

# %%
assert cls_weight > 0.3 and cls_norm < 0.5 * cls_weight  # the claim of this page

# %% [markdown]
# ## Why: the transformed vector is small
# `f_norm` is the length of `f(x)` for each head and token. Weight and length work against each other:

# %%
f_norm = analysis["f_norm"].sel(layer=5).mean("head").to_series()
f_norm.index = analysis["f_norm"]["key_token"].values
print(f"‖f([CLS])‖ = {f_norm['[CLS]']:.2f}, the others {f_norm.drop('[CLS]').mean():.2f} on average")

# %%
from scipy.stats import spearmanr

alpha = analysis["alpha"].sel(layer=5).mean("query")
rho = spearmanr(alpha.values.ravel(), analysis["f_norm"].sel(layer=5).values.ravel()).statistic
print(f"Spearman's ρ between α and ‖f(x)‖ in layer 5: {rho:.2f}")

# %% [markdown]
# ## And in the whole block
# The residual connection keeps most of a token as it is. The *mixing ratio* is the share that comes from elsewhere: by weights nearly
# everything, by vectors through the whole block about a quarter.

# %%
for name in ("attn_w", "attn_n", "attnres_n", "attnresln_n"):
    print(f"{name:12} {float(analysis.mixing_ratio(name).mean()):.0%}")

# %% [markdown]
# ## See it
# `analysis.show()` opens the page with all of this; a figure for a paper is one call. The grey diagonal is each token's own part,
# outside the colour scale.

# %%

import matplotlib.pyplot  # a notebook draws figures once this is imported

from normlens.plots import plot_maps

plot_maps(analysis.sites["encoder"], layers=[5], diagonal="faded", provenance=analysis.provenance_line())

# %% [markdown]
# It is exact, and the run proved it: parts, residual and biases add up to the model's own vectors.

# %%
print(f"largest relative error: {analysis.max_proof_error:.0e}")

# %% [markdown]
# Over a corpus this becomes Table 2 and Figure 3 of the paper: `normlens reproduce kobayashi2020-bert`
# ([how](../reproduce.md), [every number](../reproduction.md)). The ideas stand in [concepts](../concepts.md).
