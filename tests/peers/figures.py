"""normlens beside the authors' figures: the largest difference of each quantity, over its largest entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

import normlens
from normlens.results.analysis import Analysis

FIGURES = Path(__file__).with_name("minilm.npz")
TEXTS = ("The man went to the store.", "Time flies like an arrow; fruit flies like a banana.")


@dataclass(frozen=True)
class Source:
    """The authors' code, and how close normlens must be to it."""

    title: str
    code: str
    allowed: float
    why: str = ""  # where the difference comes from


SOURCES = {
    "kobayashi": Source("Kobayashi et al. 2020, 2021", "gorokoba560/norm-analysis-of-transformer", 3e-6),
    "globenc": Source("GlobEnc (Modarressi et al. 2022)", "mohsenfayyaz/GlobEnc", 3e-6),
    "alti": Source(
        "ALTI (Ferrando et al. 2022)",
        "mt-upc/transformer-contributions",
        5e-5,
        "their distances in float32, with an eps",
    ),
    "value_zeroing": Source("Value Zeroing (Mohebbi et al. 2023)", "hmohebbi/ValueZeroing", 1e-5, "theirs in float64"),
}


def _measure(name: str) -> Callable[[Analysis], xr.DataArray]:
    return lambda analysis: analysis[name]


def _mixing(name: str) -> Callable[[Analysis], xr.DataArray]:
    return lambda analysis: analysis.mixing_ratio(name)


QUANTITIES: dict[tuple[str, str], Callable[[Analysis], xr.DataArray]] = {
    ("globenc", "enc_n"): _measure("enc_n"),
    ("globenc", "rollout_raw_last_layer"): lambda analysis: analysis.rollout("enc_n", normalize=False).isel(layer=-1),
    ("alti", "alti"): _measure("alti"),
    ("alti", "rollout"): lambda analysis: analysis.rollout("alti"),
    ("value_zeroing", "value_zeroing"): _measure("value_zeroing"),
}
for _name in ("alpha", "f_norm", "af_norm", "attn_n", "attnres_n", "attnresln_n"):
    QUANTITIES["kobayashi", _name] = _measure(_name)
for _name in ("attn_n", "attnres_n", "attnresln_n"):
    QUANTITIES["kobayashi", f"mixing_{_name}"] = _mixing(_name)

_MEASURES = [
    "alpha", "f_norm", "af_norm", "attn_n", "attnres_n", "attnresln_n", "enc_n", "alti", "value_zeroing"
]  # fmt: skip


def differences() -> Iterator[tuple[int, str, str, float]]:
    """Yield text, source, quantity and difference for every figure."""
    lens = normlens.load()
    analyses = [lens.analyze(text, measures=_MEASURES) for text in TEXTS]
    with np.load(FIGURES) as figures:
        for key in figures.files:
            text, source, quantity = key.split("/")
            theirs = figures[key].astype(np.float64)
            ours = QUANTITIES[source, quantity](analyses[int(text)]).values
            assert ours.shape == theirs.shape, key
            yield int(text), source, quantity, float(np.abs(ours - theirs).max() / np.abs(theirs).max())
