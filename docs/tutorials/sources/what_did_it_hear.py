# %% [markdown]
# # What did it hear?
#
# A position of a speech model is a frame of sound with a start and an end in seconds. `explain` shares a number that such a model puts out
# among its frames: the terms of all frames and the biases add up to it.
#
# This page runs anywhere: a small wav2vec 2.0 is trained for a few seconds to say of each frame whether a high tone sounds, a low one, or none.

# %%
import numpy as np
import torch
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForAudioFrameClassification

import normlens

torch.manual_seed(0)
rng = np.random.default_rng(0)
RATE = 4_000
TONES = {"low": 300, "high": 900}
labels = ["none", *TONES]


def recording():
    """Half a second of noise with a tone of a tenth of a second; returns its name and its time."""
    sound = rng.standard_normal(RATE // 2).astype(np.float32) * 0.2
    name = list(TONES)[rng.integers(2)]
    start = float(rng.uniform(0.05, 0.35))
    time = np.arange(RATE // 10) / RATE
    first = int(start * RATE)
    sound[first : first + len(time)] += np.sin(2 * np.pi * TONES[name] * time).astype(np.float32)
    return sound, name, start


# %%
config = Wav2Vec2Config(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    conv_dim=(32, 32),
    conv_kernel=(40, 4),
    conv_stride=(20, 4),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=4,
    id2label=dict(enumerate(labels)),
    label2id={n: i for i, n in enumerate(labels)},
    mask_time_prob=0.0,
)
model = Wav2Vec2ForAudioFrameClassification(config)
extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE)
FRAME = 80 / RATE  # seconds from one frame to the next
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(200):
    batch = [recording() for _ in range(16)]
    sounds = extractor([sound for sound, _, _ in batch], sampling_rate=RATE, return_tensors="pt")["input_values"]
    logits = model(sounds).logits
    middles = np.arange(logits.shape[1]) * FRAME + 0.0125
    wanted = [[labels.index(name) if start <= t <= start + 0.1 else 0 for t in middles] for _, name, start in batch]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(wanted).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
float(loss.detach())

# %% [markdown]
# ## When did it hear the tone?
# The number is the logit of the tone at the frame in the middle of it. Its terms lie at the tone.

# %%
lens = normlens.Lens(model.eval(), extractor)
sound, name, start = recording()
frame = int((start + 0.05) / FRAME)
explanation = lens.explain(audio=sound, sampling_rate=RATE, output=name, against="none", position=frame)
explanation.plot(audio=sound, sampling_rate=RATE)

# %%
inside = []
for _ in range(30):
    sound, name, start = recording()
    frame = int((start + 0.05) / FRAME)
    found = lens.explain(audio=sound, sampling_rate=RATE, output=name, against="none", position=frame)["tokens"]
    best = float(found["key_start"].values[int(found.values.argmax())])
    inside.append(start - 0.03 <= best <= start + 0.1)
print(f"the frame with the largest term lies at the tone in {sum(inside)} of 30 recordings")
assert sum(inside) >= 27

# %% [markdown]
# ## Where does each frame look?
# Norms by frame, in seconds on both axes:

# %%
analysis = lens.analyze(audio=sound, sampling_rate=RATE, measures=["attn_w", "attn_n"])
analysis["attn_n"].sel(layer=2).isel(query=frame).to_series().nlargest(3)

# %% [markdown]
# Word times of real speech come from the cross-attention of Whisper: `normlens align --audio speech.wav --model openai/whisper-tiny.en`.
