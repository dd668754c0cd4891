"""Ways out to other viewers: what BertViz and CircuitsVis take of an analysis, Captum and inseq of an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from normlens.errors import InputError
from normlens.inputs.tokens import readable_tokens
from normlens.measures.table import MEASURES
from normlens.types import Json

if TYPE_CHECKING:
    import torch

    from normlens.results.explanation import Explanation


def to_bertviz(sites: Mapping[str, xr.Dataset], measure: str = "alpha") -> Json:
    """The keyword arguments of `bertviz.head_view` and `model_view`.

    BertViz draws a value as opacity between 0 and 1, so norms are given as shares of their row, per head; weights are
    given as they are. A measure without heads (`attn_n`) becomes one head.

    `head_view(**analysis.to_bertviz("af_norm"))`
    """
    if "cross" not in sites:
        ((_, data),) = sites.items()
        return {"attention": _layers(data, measure), "tokens": _tokens(data, "query")}
    arguments: Json = {f"{name}_attention": _layers(data, measure) for name, data in sites.items()}
    arguments["encoder_tokens"] = _tokens(sites["cross"], "key")
    arguments["decoder_tokens"] = _tokens(sites["cross"], "query")
    return arguments


def to_circuitsvis(data: xr.Dataset, layer: int, measure: str = "alpha") -> Json:
    """The keyword arguments of `circuitsvis.attention.attention_patterns` and `attention_heads` for one layer.

    CircuitsVis has one list of tokens for both axes, so cross-attention cannot be shown there.
    """
    tokens = _tokens(data, "query")
    if tokens != _tokens(data, "key"):
        raise InputError(
            "CircuitsVis draws self-attention only, and this site has other tokens on its key axis; use "
            "to_bertviz() or show()"
        )
    if layer not in data["layer"].values:
        raise InputError(f"layer must be one of {data['layer'].values.tolist()}, got {layer}")
    values = _per_head(data, measure).sel(layer=layer)
    return {"tokens": tokens, "attention": np.asarray(values.values, dtype=np.float32)}


def to_captum(explanation: Explanation) -> list[Any]:
    """Captum's records, one for each step: `captum.attr.visualization.visualize_text(explanation.to_captum())`.

    Captum colours numbers between -1 and 1, so terms are divided by the largest of a step; `attr_score` is the sum that
    they stand for, and the gap of the proof takes the place of Captum's convergence score.
    """
    from captum.attr import visualization

    outputs, values = _outputs(explanation), np.atleast_1d(np.asarray(explanation.value, dtype=float))
    chances = np.atleast_1d(np.asarray(explanation.probability, dtype=float))
    against = explanation.provenance.get("against")
    sides = [(terms, _texts(terms)) for terms in _token_terms(explanation).values()]
    records = []
    for step, output in enumerate(outputs):
        terms = np.concatenate([_at_step(array, step) for array, _ in sides])
        largest = np.abs(terms).max(initial=0.0)
        records.append(
            visualization.VisualizationDataRecord(
                word_attributions=terms / (largest or 1.0),
                pred_prob=float(chances[step]) if step < len(chances) else float("nan"),
                pred_class=output,
                true_class="" if against is None else f"against {against}",
                attr_class=output,
                attr_score=float(values[step]),
                raw_input_ids=[text for _, texts in sides for text in texts],
                convergence_score=explanation.proof.gap,
            )
        )
    return records


def to_inseq(explanation: Explanation) -> Any:
    """An inseq `FeatureAttributionOutput` with the terms as they are: `explanation.to_inseq().show()`.

    inseq is about text that a model writes, so a classifier's explanation has no such form. Token ids are not kept in an
    explanation: they are -1.
    """
    import torch
    from inseq.data.attribution import CoarseFeatureAttributionSequenceOutput, FeatureAttributionOutput
    from inseq.utils.typing import TokenWithId

    terms = _token_terms(explanation)
    position = explanation.provenance.get("position")
    if "decoder" not in terms or position is None:
        raise InputError(
            "inseq shows text that a model writes, and this explanation is of another kind of output; use "
            "to_captum() or show()"
        )
    outputs, first = _outputs(explanation), int(position) + 1
    target = [*_texts(terms["decoder"])[:first], *outputs]
    drawn = np.full((len(target), len(outputs)), np.nan, dtype=np.float32)
    source = np.empty((terms["encoder"].sizes["key"] if "encoder" in terms else 0, len(outputs)), dtype=np.float32)
    for step in range(len(outputs)):
        drawn[: first + step, step] = _at_step(terms["decoder"], step)[: first + step]
        if "encoder" in terms:
            source[:, step] = _at_step(terms["encoder"], step)
    return FeatureAttributionOutput(
        sequence_attributions=[
            CoarseFeatureAttributionSequenceOutput(
                source=[TokenWithId(text, -1) for text in _texts(terms["encoder"])] if "encoder" in terms else
                [TokenWithId(text, -1) for text in target[:first]],
                target=[TokenWithId(text, -1) for text in target],
                source_attributions=torch.from_numpy(source) if "encoder" in terms else None,
                target_attributions=torch.from_numpy(drawn),
                step_scores={},
                sequence_scores={},
                attr_pos_start=first,
                attr_pos_end=len(target),
            )
        ],
        info={"attribution_method": "normlens", "model_name": str(explanation.provenance.get("model"))},
    )  # fmt: skip


def _token_terms(explanation: Explanation) -> dict[str, xr.DataArray]:
    """The terms of each side that reads a text."""
    return {kind: arrays["tokens"] for kind, arrays in explanation.sites.items() if "tokens" in arrays}


def _outputs(explanation: Explanation) -> list[str]:
    output = explanation.provenance.get("output")
    return [str(output)] if np.ndim(explanation.value) == 0 else [str(one) for one in output or ()]


def _at_step(terms: xr.DataArray, step: int) -> np.ndarray:
    return np.asarray((terms.isel(step=step) if "step" in terms.dims else terms).values, dtype=float)


def _texts(terms: xr.DataArray) -> list[str]:
    return readable_tokens([str(token) for token in terms["key_token"].values])


def _layers(data: xr.Dataset, measure: str) -> list[torch.Tensor]:
    import torch  # BertViz takes tensors; nothing else here needs them

    values = _per_head(data, measure)
    if not (measure in MEASURES and MEASURES[measure].is_weight):
        sums = values.sum("key")
        values = values / sums.where(sums > 0, 1.0)
    return [
        torch.from_numpy(np.array(values.sel(layer=layer).values, dtype=np.float32))[None]
        for layer in data["layer"].values
    ]


def _per_head(data: xr.Dataset, measure: str) -> xr.DataArray:
    if measure not in data or not {"layer", "query", "key"} <= set(data[measure].dims):
        maps = [str(name) for name in data.data_vars if {"layer", "query", "key"} <= set(data[name].dims)]
        raise InputError(f"measure must be one of {', '.join(maps)}, got {measure!r}")
    values = data[measure]
    if "head" not in values.dims:
        values = values.expand_dims(head=[1])
    return values.transpose("layer", "head", "query", "key")


def _tokens(data: xr.Dataset, axis: str) -> list[str]:
    return [str(token) for token in data[f"{axis}_token"].values]
