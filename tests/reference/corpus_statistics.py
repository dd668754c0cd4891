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


def slow_two_sided(lens: Any, items: Iterable[Any], maps: Iterable[str]) -> dict[str, dict[tuple, list]]:
    """For an encoder-decoder model: `values` and `sequences` by (site, quantity, layer, head, category).

    A pair belongs to the category of its key: in cross-attention that is a token of the source; what a query has (a
    mixing ratio) belongs to its own category, that of a token of the target.
    """
    values: dict[tuple, list] = defaultdict(list)
    sequences: dict[tuple, list] = defaultdict(list)
    for item in items:
        inputs = {
            "input_ids": torch.from_numpy(item.ids)[None],
            "decoder_input_ids": torch.from_numpy(item.target.ids)[None],
        }
        analysis = lens.analyze_inputs(inputs, measures=["alpha", "f_norm", "af_norm", "x_norm", *maps])[0]
        for kind in ("encoder", "decoder", "cross"):
            site = analysis.site(kind)
            of_key = item.category if kind != "decoder" else item.target.category
            of_query = item.category if kind == "encoder" else item.target.category
            for layer in site["alpha"].coords["layer"].values:
                for head in site["alpha"].coords["head"].values:
                    for name in ("alpha", "af_norm"):
                        numbers = site[name].sel(layer=layer, head=head).values.astype(np.float64)
                        figures = dict.fromkeys(range(6), 0.0)
                        for query in range(numbers.shape[0]):
                            for key in range(numbers.shape[1]):
                                if kind != "decoder" or key <= query:
                                    values[kind, name, layer, head, of_key[key]].append(numbers[query, key])
                                    figures[of_key[key]] += numbers[query, key] / numbers.shape[0]
                        for category, figure in figures.items():
                            sequences[kind, name, layer, head, category].append(figure)
                    norms = site["f_norm"].sel(layer=layer, head=head).values.astype(np.float64)
                    for key, norm in enumerate(norms):
                        values[kind, "f_norm", layer, head, of_key[key]].append(norm)
                    for category in set(of_key.tolist()):
                        sequences[kind, "f_norm", layer, head, category].append(norms[of_key == category].mean())
                for name in maps:
                    if kind == "cross" and name in ("attn_w", "attn_n"):
                        continue
                    ratios = site.mixing_ratio(name).sel(layer=layer).values.astype(np.float64)
                    for query, ratio in enumerate(ratios):
                        values[kind, f"mixing_{name}", layer, None, of_query[query]].append(ratio)
    return {"values": values, "sequences": sequences}
