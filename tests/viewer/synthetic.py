"""Datasets as an analysis would give them, from random vectors and explicit sums: small, seeded, and consistent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normlens.results.analysis import Analysis


def dataset(
    query: Sequence[str],
    key: Sequence[str] | None = None,
    *,
    layers: int = 3,
    heads: int = 4,
    width: int = 8,
    causal: bool = False,
    seed: int = 0,
    sharpness: float = 2.0,
) -> xr.Dataset:
    """One site. Without `key` it is self-attention: the residual stands on the diagonal."""
    rng = np.random.default_rng(seed)
    own = key is None
    key = query if key is None else key
    n, m = len(query), len(key)
    scores = sharpness * rng.standard_normal((layers, heads, n, m))
    if own:
        distance = np.abs(np.arange(n)[:, None] - np.arange(m)[None])
        scores -= 0.35 * distance * rng.random((layers, heads, 1, 1))
    if causal:
        scores = np.where(np.arange(m)[None] > np.arange(n)[:, None], -np.inf, scores)
    alpha = np.exp(scores - scores.max(axis=-1, keepdims=True))
    alpha /= alpha.sum(axis=-1, keepdims=True)
    # Special tokens carry short vectors, as in BERT: large weights there contribute little.
    length = np.where([token.startswith("[") for token in key], 0.1, rng.uniform(0.5, 1.5, m))
    f = rng.standard_normal((layers, heads, m, width)) * length[:, None] / np.sqrt(width)
    residual = 2.0 * rng.standard_normal((layers, n, width)) / np.sqrt(width)
    f_norm = np.linalg.norm(f, axis=-1)
    parts = np.einsum("lhqk,lhkd->lqkd", alpha, f)
    attn_w = alpha.mean(axis=1)
    whole = parts.copy()
    if own:
        whole[:, np.arange(n), np.arange(n)] += residual
    y = parts.sum(axis=2) + residual
    scale = np.sqrt(y.var(axis=-1) + 1e-5)
    gamma = rng.uniform(0.5, 1.5, (layers, 1, 1, width))
    normed = gamma * (whole - whole.mean(axis=-1, keepdims=True)) / scale[:, :, None, None]
    maps = {
        "attn_w": attn_w,
        "attn_n": np.linalg.norm(parts, axis=-1),
        "attnres_w": 0.5 * attn_w + (0.5 * np.eye(n) if own else 0.0),
        "attnres_n": np.linalg.norm(whole, axis=-1),
        "attnresln_n": np.linalg.norm(normed, axis=-1),
    }
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        "alpha": (("layer", "head", "query", "key"), alpha),
        "f_norm": (("layer", "head", "key"), f_norm),
        "af_norm": (("layer", "head", "query", "key"), alpha * f_norm[:, :, None, :]),
        **{name: (("layer", "query", "key"), values) for name, values in maps.items()},
        "proof": (("layer",), np.full(layers, 1e-7)),
    }
    if own:
        for name, values in maps.items():
            kept = values[:, np.arange(n), np.arange(n)]
            variables[f"mixing_{name}"] = (("layer", "query"), 1 - kept / values.sum(axis=-1))
    return xr.Dataset(
        variables,
        coords={
            "layer": np.arange(1, layers + 1),
            "head": np.arange(1, heads + 1),
            "query": np.arange(n),
            "key": np.arange(m),
            "query_token": ("query", np.array(list(query), dtype=object)),
            "key_token": ("key", np.array(list(key), dtype=object)),
        },
    )


_WORDS = "the man went to the store and bought a gal ##lon of milk ."
SENTENCE = ["[CLS]", *_WORDS.split(), "[SEP]"]
#: A pair for an encoder-decoder.
SOURCE = ["▁Le", "▁chat", "▁noir", "▁dort", "▁sur", "▁la", "▁chaise", ".", "</s>"]
TARGET = ["<pad>", "▁The", "▁black", "▁cat", "▁sleep", "s", "▁on", "▁the", "▁chair", "."]


def long_text(count: int) -> list[str]:
    """A text of `count` tokens with subwords in it."""
    text = "the quiet river carries un ##fold ##ing light past every old bridge and re ##turn ##s"
    words = text.split()
    body = [words[i % len(words)] for i in range(count - 2)]
    return ["[CLS]", *body, "[SEP]"]


def analysis(*, cross: bool = False) -> Analysis:
    """An Analysis of one sentence, or of a sentence and its translation."""
    sites = {"encoder": dataset(SENTENCE)}
    if cross:
        source, target = ["▁Le", "▁chat", "</s>"], ["<pad>", "▁The", "▁cat", "s"]
        sites = {
            "encoder": dataset(source),
            "decoder": dataset(target, causal=True),
            "cross": dataset(target, source),
        }
    return Analysis(sites, {"model": {"name": "synthetic", "dtype": "float32"}, "versions": {"normlens": "0.1.0"}})


RECORD = {"model": "synthetic", "normlens": "0.1.0", "dtype": "float32", "proof": 1.2e-7}
