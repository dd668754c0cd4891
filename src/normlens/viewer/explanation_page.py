"""The page's data for an explanation: the terms of one number, side by side with the texts that gave them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normlens.anatomy.kinds import in_order, kind_title
from normlens.errors import InputError
from normlens.inputs.tokens import readable_tokens, sentence
from normlens.types import Json
from normlens.viewer.packed_arrays import pack_layers
from normlens.viewer.page_data import (
    FORMAT,
    TEXTS,
    VERSION,
    axis_data,
    flat_record,
    numbers_of,
    plain,
    title_of,
    utf8,
    words_of_axis,
)

if TYPE_CHECKING:
    from normlens.results.explanation import Explanation

#: Only the strongest edges are stored, so many of each kind, shared out among the steps; the page says what is left out.
STORED_EDGES = 60_000
#: Terms need little room, so an explanation draws longer texts at once than maps do.
DRAWN_TOKENS = 4096
#: What the record says elsewhere on the page, or what only a program reads.
_SAID = (
    *TEXTS, "sources", "messages", "sources_named", "messages_named", "output", "against", "output_id", "probability",
    "position", "token_at_position", "direction",
)  # fmt: skip

#: The order of the axes in which the page reads each part, after the steps.
_AXES = {
    "tokens": ("key",),
    "states": ("layer", "key"),
    "heads": ("layer", "head"),
    "blocks": ("block", "layer", "key"),
    "direct": ("block", "layer", "head"),
}

#: What the sides of a model with two of them are called.
SIDES = {"encoder": "source", "decoder": "target"}

_Terms = Mapping[str, xr.DataArray]


def explanation_page(explanation: Explanation) -> Json:
    """The JSON document of one explanation: every term that was kept, what they add up to, and how it was proved."""
    sites = explanation.sites
    if "tokens" not in next(iter(sites.values()), {}):
        raise InputError("this explanation has no `tokens` to show; make it again")
    texts = [_from_tokens(terms) for kind, terms in sites.items() if kind != "cross"]
    kept = {n: value for n, value in explanation.provenance.items() if n not in _SAID and value not in (None, [], "")}
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": utf8(title_of(explanation.provenance, *texts)),
        "limit": DRAWN_TOKENS,
        "provenance": plain(flat_record(kept, {})),
        "measures": {},
        "sites": [_site(name, sites) for name in in_order(sites)],
        "explanation": plain(_question(explanation)),
    }


def output_names(explanation: Explanation) -> tuple[list[str], str | None]:
    """The names of the explained outputs, a name for each step (one where there are none), and what it was set against."""
    output, against = explanation.provenance.get("output"), explanation.provenance.get("against")
    names = [output] if isinstance(output, str) or output is None else list(output)
    if explanation.provenance.get("direction"):
        return ["the direction"], None
    return [readable_output(name) for name in names], None if against is None else readable_output(against)


def spaces_before(tokens: Sequence[str]) -> list[bool]:
    """Before which tokens of a text a space stands: as the tokenizer's marks say, or before all that continue no word.

    >>> spaces_before(["The", "Ġcat", "s"]), spaces_before(["the", "cat", "##s"])
    ([False, True, False], [True, True, False])
    """
    marks = ("Ġ", "▁")
    if any(token.startswith(marks) for token in tokens):
        return [token.startswith(marks) for token in tokens]
    return [not token.startswith("##") for token in tokens]


def side_tokens(array: xr.DataArray) -> tuple[list[str], list[bool]]:
    """The tokens of `tokens` as people read them (positions where they are not known), with the spaces before them."""
    if "key_token" not in array.coords:
        return [str(place) for place in range(array.sizes["key"])], [True] * array.sizes["key"]
    raw = [str(token) for token in array["key_token"].values]
    return readable_tokens(raw), spaces_before(raw)


def readable_output(name: Any) -> str:
    """A token or a label as people read it: `ĠParis` is `Paris`.

    >>> readable_output("ĠParis"), readable_output("▁chat"), readable_output("B-LOC")
    ('Paris', 'chat', 'B-LOC')
    """
    return "?" if name is None else readable_tokens([str(name)])[0]


def _from_tokens(terms: _Terms) -> str:
    return sentence(words_of_axis(terms["tokens"], "key")) if "key_token" in terms["tokens"].coords else ""


def _question(explanation: Explanation) -> Json:
    """The question, the number, and the errors of the proof."""
    names, against = output_names(explanation)
    stepwise = np.ndim(explanation.value) > 0
    probability = explanation.probability
    return {
        "outputs": names,
        "against": against,
        "stepwise": stepwise,
        "values": np.atleast_1d(np.asarray(explanation.value, dtype=np.float64)).tolist(),
        "probabilities": None if probability is None else np.atleast_1d(probability).tolist(),
        "proof": asdict(explanation.proof),
        "says": explanation.warning,
        "attention": explanation.provenance.get("attention"),
        "position": _position(explanation),
        "direction": bool(explanation.provenance.get("direction")),
    }


def _position(explanation: Explanation) -> int | None:
    """The position that is explained, on the last side; None where there is none, or where the tokens do not confirm it."""
    position, token = (explanation.provenance.get(name) for name in ("position", "token_at_position"))
    side = [terms for kind, terms in explanation.sites.items() if kind != "cross"][-1]["tokens"]
    tokens = side.coords.get("key_token")
    if position is None or tokens is None or not 0 <= position < side.sizes["key"]:
        return None
    return int(position) if tokens.values[position] == token else None


# ---- one side --------------------------------------------------------------------------------------------------------


def _site(name: str, sites: Mapping[str, _Terms]) -> Json:
    terms = sites[name]
    sides = [kind for kind in sites if kind != "cross"]
    key = sites[sides[0] if name == "cross" else name]["tokens"]
    query = sites[sides[-1] if name == "cross" else name]["tokens"]
    layered = next((terms[part] for part in ("states", "heads", "edges", "blocks") if part in terms), None)
    headed = next((terms[part] for part in ("heads", "edges") if part in terms), None)
    return {
        "name": name,
        "title": kind_title(name),
        "layers": [] if layered is None else numbers_of(layered, "layer"),
        "heads": [] if headed is None else numbers_of(headed, "head"),
        "query": axis_data(query, "key", query.sizes["key"]) | {"spaces": side_tokens(query)[1]},
        "key": axis_data(key, "key", key.sizes["key"]) | {"spaces": side_tokens(key)[1]},
        "maps": {},
        "ratios": {},
        "absent": [],
        "omitted": {},
        "terms": _terms(name, sites),
    }


def _terms(name: str, sites: Mapping[str, _Terms]) -> Json:
    terms = sites[name]
    found: Json = {}
    for part, axes in _AXES.items():
        if part in terms:
            values = pack_layers(_stepped(terms[part], *axes))
            blocks = [str(block) for block in terms[part]["block"].values] if "block" in axes else None
            found[part] = values if blocks is None else {"names": blocks, "values": values}
    if "biases" in terms:
        found["biases"] = {
            "layers": numbers_of(terms["biases"], "layer"),
            "names": [str(block) for block in terms["biases"]["block"].values],
            "values": _stepped(terms["biases"], "layer", "block").tolist(),
        }
    if "edges" in terms:
        found["edges"] = _edges(terms["edges"], terms.get("states"), self_attention=name != "cross")
    if name != "cross" and "edges" in sites.get("cross", {}):
        # How the two sides meet: what leaves each source position for the decoder, what enters each target position.
        beyond = [_steps(sites["cross"]["edges"])[step].sum(1) for step in range(_count(sites["cross"]["edges"]))]
        if name == "encoder":
            found["left"] = pack_layers(np.stack([layers.sum((0, 1)) for layers in beyond]))
        else:
            found["entered"] = pack_layers(np.stack([layers.sum(2) for layers in beyond]))
    return found


def _edges(edges: xr.DataArray, states: xr.DataArray | None, *, self_attention: bool) -> Json:
    """Edges added over heads, and of single heads, the strongest of each; and what they leave to the straight way.

    `straight` is what a position's state gave past the edges that lead elsewhere: through the residual stream, and by
    attention to itself. `arrived` is what the last layer's lines bring to each position.
    """
    steps, count = _steps(edges), _count(edges)
    most = max(1, STORED_EDGES // count)
    summed, heads, straight, arrived, pairs = [], [], [], [], []
    for step in range(count):
        over = steps[step].sum(1)  # layer query key
        if self_attention:
            away = np.where(np.eye(over.shape[-1], dtype=bool), 0.0, over)
            summed.append(_strongest(away[:, None], most))
            if states is not None:
                straight.append(_stepped(states, "layer", "key")[step] - away.sum(1))
                arrived.append(straight[-1][-1] + away[-1].sum(1))
        else:
            summed.append(_strongest(over[:, None], most))
            pairs.append(over.sum(0))
        heads.append(_strongest(steps[step], most))
    found: Json = {"summed": summed, "heads": heads}
    named = (("straight", straight), ("arrived", arrived), ("pairs", pairs))
    return found | {name: pack_layers(np.stack(arrays)) for name, arrays in named if arrays}


def _strongest(edges: NDArray[np.float64], most: int) -> Json:
    """The strongest entries of `[layer, head, query, key]` as columns of places and values, and what all of them come to."""
    flat = np.abs(edges).ravel()
    present = int(np.count_nonzero(flat))
    kept = min(most, present)
    chosen = (
        np.sort(np.argpartition(flat, flat.size - kept)[flat.size - kept :]) if kept else np.zeros(0, dtype=np.int64)
    )
    places = np.unravel_index(chosen, edges.shape)
    columns = (*(place.astype("<u4") for place in places), edges.ravel()[chosen].astype("<f4"))
    data = zlib.compress(b"".join(column.tobytes() for column in columns), 6)
    return {
        "count": present,
        "sum": float(edges.sum()),
        "absolute": float(flat.sum()),
        "kept": kept,
        "data": base64.b64encode(data).decode("ascii"),
    }


def _count(array: xr.DataArray) -> int:
    return int(array.sizes.get("step", 1))


def _steps(edges: xr.DataArray) -> NDArray[Any]:
    """Edges with the axis of steps in front; as they are stored, since they may be large."""
    whole = edges if "step" in edges.dims else edges.expand_dims("step")
    return np.asarray(whole.transpose("step", "layer", "head", "query", "key").values)


def _stepped(array: xr.DataArray, *axes: str) -> NDArray[np.float64]:
    """The values with the axis of steps in front, of length 1 where there are no steps."""
    whole = array if "step" in array.dims else array.expand_dims("step")
    return np.asarray(whole.transpose("step", *axes).values, dtype=np.float64)
