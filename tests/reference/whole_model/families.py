"""Forward passes of model families, written by hand with the operations of a frozen run. Weights are read by their names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.whole_model.frozen import BASELINE, Activation, FrozenRun, Place, Terms


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def everywhere(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool)


def split(x: Tensor, heads: int) -> Tensor:
    """(row, position, head width) to (row, head, position, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """The inverse of `split`."""
    return x.transpose(1, 2).flatten(2)


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2)


def number_of(run: FrozenRun, x: Tensor, position: int, weight: Tensor, bias: Tensor | None, place: Place) -> Tensor:
    """One output at one position, by row."""
    return run.linear(x, weight[None], bias, place)[:, position, 0]


def bert(run: FrozenRun, model: Any, inputs: dict[str, Tensor], position: int, token: int) -> Tensor:
    """`BertForMaskedLM`: post-norm, and a head with a norm of its own."""
    site, ids = "encoder", inputs["input_ids"][0]
    n, heads = len(ids), model.config.num_attention_heads
    embeddings, entrance = model.bert.embeddings, (site, 0, BASELINE)
    x = run.look_up(embeddings.word_embeddings.weight, ids, site)
    others = embeddings.position_embeddings.weight[:n] + embeddings.token_type_embeddings.weight[0]
    x = run.add(x, others, entrance)
    x = run.enter(run.layer_norm(x, embeddings.LayerNorm, entrance), site)
    for number, layer in enumerate(model.bert.encoder.layer, 1):
        if number > 1:
            x = run.state(x, site, number)
        place = (site, number, "attention")
        inner, outer = layer.attention.self, layer.attention.output
        query, key, value = (
            split(run.linear(x, m.weight, m.bias, place), heads) for m in (inner.query, inner.key, inner.value)
        )
        scores = run.product(query, key, scores_of) * query.shape[-1] ** -0.5
        out = merge(run.attend(scores, value, everywhere(n, n), place, site))
        out = run.linear(out, outer.dense.weight, outer.dense.bias, place)
        x = run.layer_norm(x + run.block(out, place), outer.LayerNorm, place)
        place = (site, number, "feed_forward")
        out = run.linear(x, layer.intermediate.dense.weight, layer.intermediate.dense.bias, place)
        out = run.linear(run.activate(out, gelu), layer.output.dense.weight, layer.output.dense.bias, place)
        x = run.layer_norm(x + run.block(out, place), layer.output.LayerNorm, place)
    head, place = model.cls.predictions, (site, 0, "head")
    x = run.activate(run.linear(x, head.transform.dense.weight, head.transform.dense.bias, place), gelu)
    x = run.layer_norm(x, head.transform.LayerNorm, place)
    return number_of(run, x, position, head.decoder.weight[token], head.decoder.bias[token], place)


FAMILIES = {"bert": bert}
SITES = {"bert": "encoder"}


def explain(
    family: str,
    model: Any,
    inputs: dict[str, Tensor],
    position: int,
    token: int,
    integrated: bool,
    mean: bool,
) -> tuple[float, Terms]:
    """The number and all terms of its explanation, for one row of inputs without padding."""
    run = FrozenRun(integrated, mean, SITES[family])
    return run.explain(lambda: FAMILIES[family](run, model, inputs, position, token))
