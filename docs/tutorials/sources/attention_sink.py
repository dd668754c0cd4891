# %% [markdown]
# # A decoder's attention sink
#
# Language models park attention on their first token. It looks as if everything came from there; the vectors say how much really does.
# The model is SmolLM2 with 135 million parameters, 30 layers of 9 heads.

# %%
import os
from pathlib import Path

import normlens

local = Path(os.environ.get("NORMLENS_REAL_MODELS", "models")) / "smollm2"
lens = normlens.load(local, gguf_file="model.gguf") if local.is_dir() else normlens.load("HuggingFaceTB/SmolLM2-135M")
text = "My grandmother planted the cherry tree that still blooms beside the kitchen window."
analysis = lens.analyze(text)
analysis

# %% [markdown]
# ## Weight against contribution at the first position
# For every later position: which share of its attention weight falls on the first token, and which share of what arrives comes from there?

# %%
import pandas as pd


def first(name):
    """Share of the first position in what later positions receive, layer by layer."""
    values = analysis[name].isel(query=slice(1, None))
    return (values.isel(key=0) / values.sum("key")).mean("query").to_series()


table = pd.DataFrame(
    {"weight": first("attn_w"), "attention output": first("attn_n"), "whole block": first("attnresln_n")}
)
table.iloc[::3].round(2)

# %%
mean = table.mean()
print(
    f"weight {mean['weight']:.0%}, attention output {mean['attention output']:.0%}, whole block {mean['whole block']:.0%}"
)
assert mean["weight"] > 0.4 and mean["whole block"] < 0.15

# %% [markdown]
# Half of all attention weight goes to the first token, and a few per cent of what a position becomes. The weight has to go somewhere,
# since softmax sums to one; the model sends it where little is carried.

# %% [markdown]
# ## Why: small values
# `f_norm` is the length of the transformed vector of each token, in each head.

# %%
f_norm = analysis["f_norm"].mean("head")
ratio = (f_norm.isel(key=0) / f_norm.isel(key=slice(1, None)).mean("key")).to_series()
ratio.iloc[::3].round(2)

# %% [markdown]
# Below 1 the first token's transformed vector is shorter than the others'. The first layer has not built the sink yet.

# %% [markdown]
# ## A warning about products of maps
# Multiplying maps through the layers (rollout, the *flow* view of a page) accumulates a sink: a little from every layer, thirty times over.

# %%
import numpy as np

product = np.eye(analysis.site("decoder").dataset.sizes["key"])
for layer in analysis["attnresln_n"].values:
    product = (layer / layer.sum(-1, keepdims=True)) @ product
print(f"by the product of maps, {product[-1, 0]:.0%} of the last position comes from the first token")

# %% [markdown]
# That is a statement about where vectors passed, not about what decided the output. For that, ask for the terms of one number, which
# add up, and set one answer against another: whatever the sink gives to both cancels. Each word is measured from an average word in
# its place; what any word would have given there, the sink's share above all, is no word's merit and stands under `biases`
# (`baseline="zero"` would give it to the words: 1.71 to *The*).

# %%
explanation = lens.explain("The capital of France is", output=" Paris", against=" London")
terms = explanation["tokens"].to_series()
terms.index = [token.replace("Ġ", "") for token in explanation["tokens"]["key_token"].values]
terms.round(2)

# %%
print(
    f"difference of the logits {explanation.value:.2f}: words {float(explanation['tokens'].sum()):.2f}, what an average word would "
    f"have given {float(explanation['biases'].sum()):.2f}; the terms miss it by {explanation.proof.gap:.0e} of their absolute sum"
)
assert terms.idxmax() == "France"

# %% [markdown]
# [The next tutorial](why_did_it_say_that.ipynb) is about such terms; [the gallery](../gallery/README.md) has pages of this model.
