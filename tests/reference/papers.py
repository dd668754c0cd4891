"""The papers' tables by plain loops over a BERT's own attentions and hidden states: no normlens code in between.

Every vector is built in float64; every statistic is taken over a Python list.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats
import torch


class SlowBert:
    """A BERT in float64 with eager attention, and the weights of each layer in the papers' row-vector notation."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).double().eval()
        self.model.set_attn_implementation("eager")
        self.body = getattr(self.model, "bert", self.model)
        self.heads = self.model.config.num_attention_heads

    def layers(self, ids: Sequence[int], types: Sequence[int]) -> list[dict[str, Any]]:
        """What happens in each layer to one sequence: alpha, x, f and the whole block's vectors."""
        with torch.no_grad():
            out = self.body(
                input_ids=torch.tensor([list(ids)]), token_type_ids=torch.tensor([list(types)]),
                output_attentions=True, output_hidden_states=True,
            )  # fmt: skip
        found = []
        for number, layer in enumerate(self.body.encoder.layer):
            x = out.hidden_states[number][0].numpy()
            alpha = out.attentions[number][0].numpy()
            found.append({"x": x, "alpha": alpha, "f": self.transformed(layer, x), "block": self.block(layer)})
        return found

    def weights(self, layer: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """`W_V, b_V, W_O, b_O`, vectors standing left of matrices."""
        value, output = layer.attention.self.value, layer.attention.output.dense
        return tuple(t.detach().numpy() for t in (value.weight.T, value.bias, output.weight.T, output.bias))  # type: ignore[return-value]

    def transformed(self, layer: Any, x: np.ndarray) -> np.ndarray:
        """`f_h(x_j)`: (head, position, model)."""
        W_V, b_V, W_O, _ = self.weights(layer)
        width = W_V.shape[1] // self.heads
        found = []
        for head in range(self.heads):
            own = slice(head * width, (head + 1) * width)
            found.append((x @ W_V[:, own] + b_V[own]) @ W_O[own])
        return np.stack(found)

    def block(self, layer: Any) -> dict[str, Any]:
        """What follows attention."""
        norm = layer.attention.output.LayerNorm
        return {
            "bias": layer.attention.output.dense.bias.detach().numpy(),
            "gamma": norm.weight.detach().numpy(),
            "epsilon": norm.eps,
        }

    def expansion(self) -> list[float]:
        """By the authors' matrix: singular values of [[W_V W_O, W_V b_O], [b_V W_O, b_V b_O + 1]]."""
        rates = []
        for layer in self.body.encoder.layer:
            W_V, b_V, W_O, b_O = self.weights(layer)
            size = W_V.shape[0]
            matrix = np.zeros((size + 1, size + 1))
            matrix[:size, :size] = W_V @ W_O
            matrix[:size, size] = W_V @ b_O
            matrix[size, :size] = b_V @ W_O
            matrix[size, size] = b_V @ b_O + 1
            values = np.linalg.svd(matrix, compute_uv=False)
            rates.append(float(np.sqrt((values**2).sum()) / np.sqrt(size + 1)))
        return rates

    def singular_values(self, layer: int, head: int) -> np.ndarray:
        """Of one head (counted from 0), by Appendix B: those of its `d' + 1` that are not zero by construction."""
        W_V, b_V, W_O, _ = self.weights(self.body.encoder.layer[layer])
        size, width = W_V.shape[0], W_V.shape[1] // self.heads
        own = slice(head * width, (head + 1) * width)
        matrix = np.zeros((size + 1, size + 1))
        matrix[:size, :size] = W_V[:, own] @ W_O[own]
        matrix[size, :size] = b_V[own] @ W_O[own]
        matrix[size, size] = 1
        return np.linalg.svd(matrix, compute_uv=False)[: width + 1]


def ratios(layer: dict[str, Any]) -> dict[str, list[float]]:
    """The five mixing ratios of each position, from explicit vectors."""
    x, alpha, f, block = layer["x"], layer["alpha"], layer["f"], layer["block"]
    found: dict[str, list[float]] = defaultdict(list)
    length = len(x)
    for i in range(length):
        parts = [sum(alpha[h, i, j] * f[h, j] for h in range(len(f))) for j in range(length)]
        own = parts[i]
        context = sum((parts[j] for j in range(length) if j != i), np.zeros(x.shape[1]))
        weight = float(np.mean([alpha[h, i, i] for h in range(len(f))]))
        y = sum(parts) + block["bias"] + x[i]
        scale = np.sqrt(np.mean((y - y.mean()) ** 2) + block["epsilon"])

        def normalized(vector: np.ndarray, scale: float = scale) -> np.ndarray:
            return block["gamma"] * (vector - vector.mean()) / scale

        def ratio(context: np.ndarray, own: np.ndarray) -> float:
            return float(np.linalg.norm(context) / (np.linalg.norm(context) + np.linalg.norm(own)))

        found["attn_w"].append(1 - weight)
        found["attn_n"].append(ratio(context, own))
        found["attnres_w"].append(0.5 * (1 - weight))
        found["attnres_n"].append(ratio(context, own + x[i]))
        found["attnresln_n"].append(ratio(normalized(context), normalized(own + x[i])))
    return found


def tables_2020(bert: SlowBert, items: Sequence[tuple[list[int], list[int], list[str]]]) -> dict[str, Any]:
    """Tables 1, 2 and 4, category shares, and each token's mean weight and norm.

    `items` are ids, segments and category names of each sequence.
    """
    f_norms: dict[tuple[int, int], list[float]] = defaultdict(list)
    x_norms: dict[int, list[float]] = defaultdict(list)
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    received: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    tokens: list[tuple[int, float, float]] = []
    names = sorted({name for _, _, categories in items for name in categories})
    for ids, types, categories in items:
        layers = bert.layers(ids, types)
        per_token: list[list[tuple[float, float]]] = [[] for _ in ids]
        for number, layer in enumerate(layers, 1):
            x_norms[number] += [float(np.linalg.norm(x)) for x in layer["x"]]
            sums: dict[tuple[str, str], list[float]] = defaultdict(list)
            for head in range(bert.heads):
                alpha = layer["alpha"][head]
                norms = [float(np.linalg.norm(vector)) for vector in layer["f"][head]]
                f_norms[number, head + 1] += norms
                for name in names:
                    keys = [j for j, category in enumerate(categories) if category == name]
                    sums[name, "weight"].append(float(np.mean([sum(row[j] for j in keys) for row in alpha])))
                    sums[name, "norm"].append(float(np.mean([sum(row[j] * norms[j] for j in keys) for row in alpha])))
                for j, category in enumerate(categories):
                    pairs[category] += [(float(row[j]), norms[j]) for row in alpha]
                    per_token[j].append((float(np.mean(alpha[:, j])), norms[j]))
            for (name, what), values in sums.items():
                received[name, number, what].append(float(np.mean(values)))
        tokens += [(token, *np.mean(own, axis=0)) for token, own in zip(ids, per_token, strict=True)]
    return {
        "f": {place: _summary(values) for place, values in f_norms.items()},
        "x": {place: _summary(values) for place, values in x_norms.items()},
        "rho": {name: float(scipy.stats.spearmanr(*zip(*own, strict=True))[0]) for name, own in pairs.items()},
        "pairs": {name: len(own) for name, own in pairs.items()},
        "shares": _shares(received, names),
        "tokens": tokens,
    }


def _summary(values: list[float]) -> dict[str, float]:
    mean, sd = float(np.mean(values)), float(np.std(values))
    return {"mean": mean, "sd": sd, "cv": sd / mean, "max": max(values), "min": min(values)}


def _shares(received: dict[tuple[str, int, str], list[float]], names: list[str]) -> dict[tuple[str, str], float]:
    layers = sorted({layer for _, layer, _ in received})
    found = {}
    for what in ("weight", "norm"):
        by_layer = []
        for layer in layers:
            means = {name: float(np.mean(received[name, layer, what])) for name in names}
            by_layer.append({name: mean / sum(means.values()) for name, mean in means.items()})
        for name in names:
            found[name, what] = float(np.mean([shares[name] for shares in by_layer]))
    return found


def tables_2021(bert: SlowBert, items: Sequence[tuple[list[int], list[int], list[str]]]) -> dict[str, Any]:
    """Mixing ratios over everything and by layer and category, and each token's ratios averaged over layers."""
    everything: dict[str, list[float]] = defaultdict(list)
    by_layer: dict[tuple[str, int], list[float]] = defaultdict(list)
    tokens: list[tuple[int, str, dict[str, float]]] = []
    for ids, types, categories in items:
        per_token: list[dict[str, list[float]]] = [defaultdict(list) for _ in ids]
        for number, layer in enumerate(bert.layers(ids, types), 1):
            for method, values in ratios(layer).items():
                everything[method] += values
                for position, value in enumerate(values):
                    per_token[position][method].append(value)
                    if method == "attnresln_n":
                        by_layer[categories[position], number].append(value)
        tokens += [
            (token, category, {method: float(np.mean(values)) for method, values in own.items()})
            for token, category, own in zip(ids, categories, per_token, strict=True)
        ]
    return {
        "mixing": {m: {"mean": float(np.mean(v)), "max": max(v), "min": min(v)} for m, v in everything.items()},
        "by_layer": {place: float(np.mean(values)) for place, values in by_layer.items()},
        "tokens": tokens,
    }
