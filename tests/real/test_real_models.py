"""The real pretrained models: exact at every site and layer, and the papers' effect where it is known."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import normlens
from normlens import Lens

MODELS = Path(os.environ.get("NORMLENS_REAL_MODELS", "../models"))
DATA = Path(os.environ.get("NORMLENS_TEST_DATA", "../shared/data"))
pytestmark = pytest.mark.real

TEXTS = [
    "The man went to the store , where he bought a gallon of milk .",
    "It rained .",
    "Nobody knows why they left so early .",
]
FRENCH = [
    "Il est allé au magasin et il a acheté du lait .",
    "Il pleuvait .",
    "Personne ne sait pourquoi ils sont partis si tôt .",
]


@cache
def lens_of(name: str) -> Lens:
    folder = MODELS / name
    if not folder.is_dir():
        pytest.skip(f"the real model {name} is not in {MODELS} (set NORMLENS_REAL_MODELS)")
    return normlens.load(folder, **({"gguf_file": "model.gguf"} if name == "smollm2" else {}))


@pytest.mark.parametrize("name", ["minilm", "bert-base-ner", "smollm2", "opus-mt-fr-en", "opus-mt-en-fr"])
def test_proof_at_every_site_and_layer(name: str) -> None:
    lens = lens_of(name)
    sources, targets = (FRENCH, TEXTS) if name == "opus-mt-fr-en" else (TEXTS, FRENCH)
    found = lens.analyze(sources, target=targets if name.startswith("opus") else None)
    for analysis in found:
        for kind in lens.anatomy.kinds:
            proof = analysis.site(kind).proof
            assert proof.layer.values.tolist() == list(lens.anatomy.layers(kind))
            assert float(proof.max()) < 1e-5, f"{kind}: {proof.values}"


@pytest.mark.parametrize("name", ["minilm", "bert-base-ner", "smollm2", "opus-mt-fr-en", "t5-small"])
def test_maps_through_the_feed_forward_block(name: str) -> None:
    lens = lens_of(name)
    source, target = (FRENCH[0], TEXTS[0]) if name == "opus-mt-fr-en" else (TEXTS[0], FRENCH[0])
    two_sided = "cross" in lens.anatomy.kinds
    names = ["ff_n", "ffres_n", "ffresln_n", "value_zeroing", "alti", "enc_n"]
    found = lens.analyze(source, target=target if two_sided else None, measures=names)
    assert found.max_proof_error < 1e-4
    for kind in found.sites:
        site = found.site(kind)
        beside = site.residual_norm("alti") if kind == "cross" else 0
        np.testing.assert_allclose(site["alti"].sum("key") + beside, 1, atol=1e-4)
        assert ("ffresln_n" in site.dataset) == (kind != "decoder" or not two_sided)


def test_separator_effect_in_bert() -> None:
    """2020, Section 4.2: heads look at [SEP] a lot, but its transformed vector is small, in the middle layers."""
    lens = lens_of("bert-base-ner")
    folder = DATA / "wikitext-2"
    if not folder.is_dir():
        pytest.skip(f"Wikipedia text is not in {DATA} (set NORMLENS_TEST_DATA)")
    file = sorted(path for path in folder.iterdir() if path.is_file() and "README" not in path.name)[0]
    lines = [line.strip() for line in file.read_text().splitlines()]
    texts = [line for line in lines if len(line) > 300 and not line.startswith("=")][:8]
    weight, length, others = [], [], []
    for analysis in lens.analyze(texts, measures=["attn_w", "f_norm"], truncate=True, batch_size=2):
        separator = analysis.site("encoder").key_tokens.index("[SEP]")
        middle = analysis.sites["encoder"].sel(layer=slice(5, 10))
        weight.append(float(middle["attn_w"].isel(key=separator).mean()))
        norms = middle["f_norm"].mean(["layer", "head"]).values
        length.append(norms[separator])
        others.append(np.delete(norms, [0, separator]).mean())
    assert np.mean(weight) > 0.3, f"mean weight on [SEP] is {np.mean(weight):.2f}"
    assert np.mean(length) < 0.5 * np.mean(others), f"{np.mean(length):.2f} against {np.mean(others):.2f}"
