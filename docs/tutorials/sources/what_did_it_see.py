# %% [markdown]
# # What did it see?
#
# An image classifier puts out one logit for each label. `explain` shares it among the patches of the image, exactly: the terms of all
# patches and the biases add up to the logit. `analyze` shows how much each patch contributes to each position, layer by layer.
#
# This page runs anywhere: a small vision Transformer is trained for a few seconds on pictures in which one coloured square decides.

# %%
import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

import normlens

torch.manual_seed(0)
rng = np.random.default_rng(0)
COLOURS = {"red": (220, 40, 40), "blue": (50, 80, 220)}
labels = list(COLOURS)


def picture():
    """A noisy picture with one coloured square of 4 x 4 pixels and three grey ones; returns its colour and its place."""
    image = rng.integers(90, 130, (32, 32, 3)).astype(np.uint8)
    places = [divmod(int(place), 8) for place in rng.choice(64, 4, replace=False)]
    for row, column in places[1:]:
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 190
    colour = labels[rng.integers(2)]
    row, column = places[0]
    image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = COLOURS[colour]
    return image, colour, places[0]


# %%
config = ViTConfig(
    image_size=32,
    patch_size=4,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=96,
    id2label=dict(enumerate(labels)),
    label2id={name: i for i, name in enumerate(labels)},
    problem_type="multi_label_classification",  # is there a red square? is there a blue one?
)
model = ViTForImageClassification(config)
processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(300):
    batch = [picture() for _ in range(32)]
    pixels = processor([image for image, _, _ in batch], return_tensors="pt")["pixel_values"]
    wanted = torch.tensor([[float(colour == label) for label in labels] for _, colour, _ in batch])
    loss = model(pixels, labels=wanted).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
float(loss.detach())

# %% [markdown]
# ## Why this label?
# Blue patches raise the logit of the colour, orange ones lower it.

# %%
lens = normlens.Lens(model.eval(), processor)
image, colour, place = picture()
explanation = lens.explain(images=image, output=colour)
explanation.plot(image=image)

# %% [markdown]
# The patch with the largest term is the one that holds the coloured square.

# %%
terms = explanation.image_map()
found = np.unravel_index(int(terms.values.argmax()), terms.shape)
print(f"{colour} square at {place}, largest term at {tuple(map(int, found))}")

# %%
hits = 0
for _ in range(50):
    image, colour, place = picture()
    terms = lens.explain(images=image, output=colour).image_map()
    hits += tuple(map(int, np.unravel_index(int(terms.values.argmax()), terms.shape))) == place
print(f"the largest term is the coloured square in {hits} of 50 pictures")
assert hits >= 45

# %% [markdown]
# ## What reaches `[CLS]`?
# The classifier reads the first position, `[CLS]`. Attention weights say what it looks at; norms say what arrives.

# %%
analysis = lens.analyze(images=image, measures=["attn_w", "attn_n", "attnresln_n"])
analysis.plot("attn_n", image=image)

# %%
shares = {}
for name in ("attn_w", "attn_n"):
    maps = analysis.image_map(name)
    whole = analysis[name].isel(query=0).sum("key")
    shares[name] = (maps.sel(row=place[0], column=place[1]) / whole).values.round(3)
shares

# %% [markdown]
# ## Is it right?
# Deletion removes patches in the order of a method's scores. The more the probability of the label drops, the better the method knew.

# %%
from normlens.faithfulness.images import image_study

study = image_study(
    lens, [picture()[0] for _ in range(8)], methods=["fixed", "attention_rollout", "gradient_x_input", "random"]
)
study.table().round(3)
