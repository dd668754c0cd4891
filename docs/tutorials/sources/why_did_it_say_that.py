# %% [markdown]
# # Why did it say that?
#
# A logit is one number. With this run's attention weights, denominators and slopes held fixed the model is an affine map of its input
# vectors, so that number is a plain sum: what each token gave, plus the biases. `lens.explain` gives every term.
#
# This page runs anywhere: a small language model is trained for a few seconds on sentences in which one word decides the last one.

# %%
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import normlens

random.seed(0)
torch.manual_seed(0)
TASTES = {"Anna": "tea", "Ben": "coffee", "Clara": "milk", "David": "juice"}
words = ["[UNK]", *TASTES, *TASTES.values(), "and", "sat", "in", "the", "kitchen", "garden", "drank", "then"]
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")),
    unk_token="[UNK]",
)
tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()


def sentence():
    first, second = random.sample(list(TASTES), 2)
    who = random.choice([first, second])
    place = random.choice(["kitchen", "garden"])
    return f"{first} and {second} sat in the {place} then {who} drank {TASTES[who]}"


sentence()

# %%
config = GPT2Config(
    vocab_size=len(words), n_embd=48, n_layer=2, n_head=4, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(120):
    batch = torch.tensor([tokenizer(sentence())["input_ids"] for _ in range(32)])
    loss = model(batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
lens = normlens.Lens(model.eval(), tokenizer)

# %% [markdown]
# ## Why tea rather than coffee?
# Anna is the one who drinks. The difference of two logits says why the model writes *tea* and not *coffee*.

# %%
text = "Ben and Anna sat in the garden then Anna drank"
explanation = lens.explain(text, output="tea", against="coffee", parts=["states", "edges", "heads", "biases"])
explanation

# %%
terms = explanation["tokens"].to_series()
terms.index = [f"{i} {token}" for i, token in enumerate(explanation["tokens"]["key_token"].values)]
terms.round(3)

# %% [markdown]
# They add up. The last line is the model's own number:

# %%
total = float(explanation["tokens"].sum() + explanation["biases"].sum())
print(f"terms {total:+.4f}, the model {explanation.value:+.4f}, gap {explanation.proof.gap:.0e}")
assert abs(total - explanation.value) < 1e-4 * abs(explanation.value)

# %% [markdown]
# ## Was it the right word?
# The second *Anna* decides, and the model used it: it gave more than any other token. Such a check can fail, and then it tells you that
# a model is right for a wrong reason.

# %%
strongest = int(explanation["tokens"].argmax())
print(terms.index[strongest])
assert strongest == 8

# %% [markdown]
# ## Through which heads?

# %%
explanation["heads"].to_pandas().round(2)

# %% [markdown]
# ## Is it true of the model?
# An explanation says what this run carried where. Take the word away and look at what happens: swap *Anna* for *Ben* and the answer turns.

# %%
swapped = lens.explain("Ben and Anna sat in the garden then Ben drank", output="tea", against="coffee")
print(f"Anna drank: {explanation.value:+.2f}    Ben drank: {swapped.value:+.2f}")
assert explanation.value > 0 > swapped.value

# %% [markdown]
# `explanation.show()` opens the page, `explanation.plot()` is a figure, and on the shell it is
# `normlens explain "…" --model … --output " Paris" --against " London"`. What is held fixed, for which models, at what cost:
# [Explain](../explain.md). A page of a real model stands in [the gallery](../gallery/README.md).
