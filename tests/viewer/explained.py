"""Explanations as `explain` would give them: small, seeded, and with terms that add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from normlens.results.explanation import Explanation, Proof

TOKENS = ["The", "Ġcapital", "Ġof", "ĠFr", "ance", "Ġis"]
WORDS = [0, 1, 2, 3, 3, 4]
SOURCE = ["▁The", "▁cat", "s", "</s>"]
TARGET = ["<pad>", "▁Les", "▁chats"]
LAYERS, HEADS = 3, 2


def side(
    tokens: Sequence[str], words: Sequence[int], steps: int = 0, seed: int = 0, causal: bool = True
) -> dict[str, xr.DataArray]:
    """The terms of one side: states in which every cut has the same sum, and edges between positions."""
    rng = np.random.default_rng(seed)
    n, front = len(tokens), (steps,) if steps else ()
    states = rng.normal(size=(*front, LAYERS, n))
    states[..., 1:, -1] += (states[..., :1, :].sum(-1) - states[..., 1:, :].sum(-1))[..., :]
    edges = rng.normal(size=(*front, LAYERS, HEADS, n, n)) * 0.2
    if causal:
        edges = np.where(np.arange(n)[None] > np.arange(n)[:, None], 0.0, edges)
    biases = rng.normal(size=(*front, LAYERS + 1, 3)) * 0.1
    key: dict[str, Any] = {
        "key": np.arange(n),
        "key_token": ("key", np.array(list(tokens), dtype=object)),
        "key_word": ("key", np.array(list(words))),
    }
    query = {name.replace("key", "query"): value for name, value in key.items() if name == "key"}
    query |= {"query_token": ("query", key["key_token"][1]), "query_word": ("query", key["key_word"][1])}
    layer, head = {"layer": np.arange(1, LAYERS + 1)}, {"head": np.arange(1, HEADS + 1)}
    named = {"block": np.array(["attention", "feed_forward"], dtype=object)}
    step = {"step": np.arange(1, steps + 1), "output_token": ("step", np.array(["Ġx"] * steps, dtype=object))}
    arrays: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, Any]]] = {
        "tokens": (("key",), states[..., 0, :], key),
        "states": (("layer", "key"), states, key | layer),
        "edges": (("layer", "head", "query", "key"), edges, key | query | layer | head),
        "heads": (("layer", "head"), edges.sum((-1, -2)), layer | head),
        "blocks": (("layer", "block", "key"), rng.normal(size=(*front, LAYERS, 2, n)), key | layer | named),
        "direct": (
            ("layer", "block", "head"),
            rng.normal(size=(*front, LAYERS, 2, HEADS + 1)),
            layer | named | {"head": np.arange(HEADS + 1)},
        ),
        "biases": (
            ("layer", "block"),
            biases,
            {
                "layer": np.arange(LAYERS + 1),
                "block": np.array(["attention", "feed_forward", "head"], dtype=object),
            },
        ),
    }
    return {
        name: xr.DataArray(values, dims=(*(("step",) if steps else ()), *dims), coords=coords | (step if steps else {}))
        for name, (dims, values, coords) in arrays.items()
    }


def explanation(
    *,
    against: str | None = "ĠLondon",
    steps: int = 0,
    parts: Sequence[str] | None = None,
    tokens: Sequence[str] = TOKENS,
    words: Sequence[int] | None = None,
    over_value: float = 1e-6,
) -> Explanation:
    """One text of a causal language model."""
    known = WORDS if tokens is TOKENS else list(range(len(tokens)))
    terms = side(tokens, words if words is not None else known, steps)
    if parts is not None:
        terms = {name: array for name, array in terms.items() if name in ("tokens", *parts)}
    full = side(tokens, words if words is not None else known, steps)
    value = full["tokens"].sum("key") + full["biases"].sum(("layer", "block"))
    outputs = [f"Ġout{step + 1}" for step in range(steps)]
    record: dict[str, Any] = {
        "model": {"name": "synthetic", "dtype": "float32"},
        "output": outputs or "ĠParis",
        "against": against,
        "probability": [0.5] * steps if steps else 0.25,
        "position": len(tokens) - 1 - max(0, steps - 1),
        "token_at_position": tokens[len(tokens) - 1 - max(0, steps - 1)],
        "attention": "fixed",
        "direction": False,
        "versions": {"normlens": "0.1.0"},
    }
    return Explanation(
        {"decoder": terms}, value if steps else float(value), Proof(3e-7, over_value, 1e-6, 1e-7), record
    )


def translation() -> Explanation:
    """A source, a target, and the attention between them."""
    encoder = side(SOURCE, [0, 1, 1, 2], seed=1, causal=False)
    decoder = side(TARGET, [0, 1, 2], seed=2)
    rng = np.random.default_rng(3)
    edges = xr.DataArray(
        rng.normal(size=(LAYERS, HEADS, len(TARGET), len(SOURCE))),
        dims=("layer", "head", "query", "key"),
        coords={
            "layer": np.arange(1, LAYERS + 1),
            "head": np.arange(1, HEADS + 1),
            **{name: coord for name, coord in decoder["edges"].coords.items() if str(name).startswith("query")},
            **{name: coord for name, coord in encoder["edges"].coords.items() if str(name).startswith("key")},
        },
    )
    del encoder["direct"]
    value = sum(float(terms[part].sum()) for terms in (encoder, decoder) for part in ("tokens", "biases"))
    return Explanation(
        {"encoder": encoder, "decoder": decoder, "cross": {"heads": edges.sum(("query", "key")), "edges": edges}},
        value,
        Proof(3e-7, 1e-6, 1e-6, 1e-7),
        {
            "model": {"name": "synthetic", "dtype": "float32"},
            "output": "▁chats",
            "against": None,
            "probability": 0.9,
            "position": 1,
            "token_at_position": "▁Les",
            "attention": "fixed",
            "versions": {"normlens": "0.1.0"},
            "text": "The cats",
            "target": "Les chats",
        },
    )
