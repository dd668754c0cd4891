"""Corpus statistics by plain loops over `lens.analyze_inputs`, straight from the definitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch


def slow_values(lens: Any, items: Iterable[Any], maps: Iterable[str]) -> dict[str, dict[tuple, list]]:
    """Every value by (quantity, layer, head, category): over all pairs or positions, and by sequence.

    Returns `values` (all of them), `sequences` (one figure per sequence, as the authors aggregate), `pairs`
    ((alpha, ‖f‖) by category) and `tokens` (a dict per token: category, id, each quantity's mean over layers, heads).
    """
    values: dict[tuple, list] = defaultdict(list)
    sequences: dict[tuple, list] = defaultdict(list)
    pairs: dict[int, list] = defaultdict(list)
    tokens: list[dict[str, Any]] = []
    for item in items:
        inputs = {
            "input_ids": torch.from_numpy(item.ids)[None],
            "token_type_ids": torch.from_numpy(item.segments)[None],
        }
        names = ["alpha", "f_norm", "af_norm", "x_norm", *maps]
        analysis = lens.analyze_inputs(inputs, measures=names)[0]
        arrays = {name: analysis[name].values.astype(np.float64) for name in names[:4]}
        mixing = {name: analysis.mixing_ratio(name).values.astype(np.float64) for name in maps}
        layers, heads, length, _ = arrays["alpha"].shape
        per_token = [defaultdict(list) for _ in range(length)]
        for layer in range(layers):
            for head in range(heads):
                for name in ("alpha", "af_norm"):
                    for category in range(8):
                        keys = [k for k in range(length) if item.category[k] == category]
                        figure = 0.0
                        for key in keys:
                            column = arrays[name][layer, head, :, key]
                            values[name, layer + 1, head + 1, category] += column.tolist()
                            figure += column.mean()
                        sequences[name, layer + 1, head + 1, category].append(figure)
                for key in range(length):
                    category = int(item.category[key])
                    norm = arrays["f_norm"][layer, head, key]
                    values["f_norm", layer + 1, head + 1, category].append(norm)
                    pairs[category] += [(a, norm) for a in arrays["alpha"][layer, head, :, key]]
                    for name in ("alpha", "af_norm"):
                        per_token[key][name].append(arrays[name][layer, head, :, key].mean())
                    per_token[key]["f_norm"].append(norm)
                for category in set(item.category.tolist()):
                    keys = item.category == category
                    sequences["f_norm", layer + 1, head + 1, category].append(
                        arrays["f_norm"][layer, head, keys].mean()
                    )
            for position in range(length):
                category = int(item.category[position])
                values["x_norm", layer + 1, None, category].append(arrays["x_norm"][layer, position])
                per_token[position]["x_norm"].append(arrays["x_norm"][layer, position])
                for name in maps:
                    values[f"mixing_{name}", layer + 1, None, category].append(mixing[name][layer, position])
                    per_token[position][f"mixing_{name}"].append(mixing[name][layer, position])
        for position in range(length):
            means = {name: float(np.mean(numbers)) for name, numbers in per_token[position].items()}
            tokens.append({"category": int(item.category[position]), "id": int(item.ids[position]), **means})
    return {"values": values, "sequences": sequences, "pairs": pairs, "tokens": tokens}
