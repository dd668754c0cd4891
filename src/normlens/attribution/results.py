"""From terms to an `Explanation`: names on the axes, and the record of what was asked and found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from normlens.anatomy.examine import is_encoder_decoder
from normlens.anatomy.inputs import holds_media, modality_of
from normlens.anatomy.scope import SEED, is_seeded
from normlens.attribution.jobs import Job
from normlens.attribution.questions import Answer, Resolver, real_positions
from normlens.attribution.request import ExplainRequest
from normlens.attribution.terms import StackOrigin, Terms, Where
from normlens.errors import InputError, NormlensError
from normlens.inputs.places import coordinates, numbered
from normlens.inputs.tokens import Tokens
from normlens.lens import Lens
from normlens.provenance import versions
from normlens.results.explanation import Explanation, Proof
from normlens.types import Json, ModelInputs

BLOCKS = ("attention", "cross_attention", "mixer", "feed_forward", "head", "baseline")
Arrays = dict[str, xr.DataArray]


@dataclass(frozen=True)
class ExplainedRow:
    """The proved terms of one row, step by step, its outputs, and the errors of the proof."""

    steps: list[Terms]
    answers: list[Answer]
    replay: float
    output: float


def explanation(
    lens: Lens,
    resolver: Resolver,
    request: ExplainRequest,
    inputs: ModelInputs,
    row: int,
    job: Job,
    solved: ExplainedRow,
) -> Explanation:
    """The result of one row: its arrays, its value, its proof and its record."""
    labels = _labels(lens, resolver, inputs, row, job, solved)
    solved = replace(solved, steps=[terms.on_real(labels.real) for terms in solved.steps])
    if any(labels.hidden):
        solved = replace(solved, steps=[terms.with_hidden(labels.hidden) for terms in solved.steps])
    found = labelled(solved.steps, labels, request.parts, request.edges_top)
    if request.by_name and found.left_out:
        raise InputError(
            f"this model has no {', '.join(found.left_out)} (no product of weights and values per head, or no "
            "residual sum); choose other parts=[…]"
        )
    gap = max(float(terms.gaps.max()) for terms in solved.steps)
    over_value = max(
        float((cut.total - terms.value).abs().max() / terms.value.abs().clamp_min(1e-300).max())
        for terms in solved.steps
        for cut in terms.cuts
    )
    record = {
        "model": lens.identity,
        **_asked(resolver, labels, job, solved),
        "attention": request.attention,
        "baseline": _baseline(request, labels, solved),
        "parts": [part for part in request.parts if part not in found.left_out],
        "left_out": found.left_out,
        "direction": request.direction is not None,
        "versions": versions(),
        **job.text.notes,
    }
    if is_seeded(resolver.model):
        record["pass_seed"] = SEED
    if request.attention == "integrated":
        record["quadrature"] = gap
    return Explanation(found.sites, found.value, Proof(gap, over_value, solved.replay, solved.output), record)


def _baseline(request: ExplainRequest, labels: Labels, solved: ExplainedRow) -> Any:
    """The baseline of the tokens: one name, or one for each site where they differ.

    Vectors that were handed in were looked up in no table, so they are measured from zero.
    """
    if request.baseline == "zero":
        return "zero"
    used = ["zero" if given is None else "mean" for given in solved.steps[0].words]
    if labels.hidden:
        used = [name for name, hidden in zip(used, labels.hidden, strict=True) if not hidden]
        sites = [site for site, hidden in zip(labels.sites, labels.hidden, strict=True) if not hidden]
        return used[0] if len(set(used)) == 1 else dict(zip(sites, used, strict=True))
    return used[0] if len(set(used)) == 1 else dict(zip(labels.sites, used, strict=True))


def _labels(lens: Lens, resolver: Resolver, inputs: ModelInputs, row: int, job: Job, solved: ExplainedRow) -> Labels:
    names = [str(resolver.name(answer.output)) for answer in solved.answers]
    if holds_media(inputs):
        return _media_labels(lens, resolver, inputs, row, job, solved)
    source = real_positions(inputs, row, decoder=False)
    if len(solved.steps[0].tokens) == 1 and job.text.target is not None:  # the encoder's states were handed in
        target = real_positions(inputs, row, decoder=True)
        return Labels(("decoder",), [job.text.target], [target], job.stepwise, names)
    if len(solved.steps[0].tokens) == 1:
        return Labels((resolver.only_side,), [job.text.source], [source], job.stepwise, names)
    moved = solved.steps[0].moved_ids[1]
    if job.text.target is None and moved is not None:  # its code shifts its own input for its decoder
        sides, real = [job.text.source, lens.encoder.label([int(moved[0, i]) for i in source])], [source] * 2
    elif job.text.target is None:
        sides, real = [job.text.source] * 2, [source] * 2
    else:
        sides, real = [job.text.source, job.text.target], [source, real_positions(inputs, row, decoder=True)]
    return Labels(("encoder", "decoder"), sides, real, job.stepwise, names)


def _media_labels(
    lens: Lens, resolver: Resolver, inputs: ModelInputs, row: int, job: Job, solved: ExplainedRow
) -> Labels:
    """The labels where images or sound are among the inputs: by what each stack's vectors were made of."""
    first, labels = solved.steps[0], lens.labels(inputs)
    sites = _site_names(lens, resolver, inputs, first.stacks)
    sides, real = [], []
    for stack, tokens in zip(first.stacks, first.tokens, strict=True):
        count = tokens.shape[1]
        places = list(range(count))
        if modality_of(stack.input) in ("text", "target"):
            decoder = stack.input.startswith("decoder_")
            own = job.text.target if decoder and job.text.target is not None else job.text.source
            if inputs[stack.input].shape[1] < count:  # patches stand beside the text
                side = numbered(count)
            else:
                side = labels.of_text(own, row)
                places = real_positions(inputs, row, decoder=decoder)
        elif stack.input:
            tower = modality_of(stack.input) or "vision"
            if stack.grid is None:
                side = labels.of_tower(tower, row, count, stack.items)
            else:
                side = labels.of_grid(row, stack.input, stack.grid)
        else:
            side = numbered(count)
        sides.append(side)
        real.append(places)
    names = [str(resolver.name(answer.output)) for answer in solved.answers]
    hidden = [not stack.reached for stack in first.stacks]
    return Labels(sites, sides, real, job.stepwise, names, hidden)


def _site_names(lens: Lens, resolver: Resolver, inputs: ModelInputs, stacks: Sequence[StackOrigin]) -> list[str]:
    """The names of stacks: those that an analysis of the model gives to their self-attention, where it can be read."""
    try:
        sites = [site for site in lens.traced.anatomy_for(inputs).sites if not site.is_cross]
    except NormlensError:
        sites = []
    modalities = [modality_of(stack.input) for stack in stacks]
    beside_text = "text" in modalities
    names: list[str] = []
    for stack, modality in zip(stacks, modalities, strict=True):
        inside = set(stack.layer.modules()) if stack.layer is not None else set()
        analysed = next((site.kind for site in sites if site.attention in inside), None)
        if analysed is not None:
            name = analysed
        elif modality in ("vision", "audio"):
            name = modality if beside_text else "encoder"
        elif modality == "text" and not is_encoder_decoder(resolver.model):
            name = "text" if resolver.head == "similarity" else resolver.only_side
        elif modality == "text":
            name = "encoder"
        else:
            name = "decoder"
        if name in names:
            name = f"{name}_stack{1 + sum(other.split('_')[0] == name for other in names)}"
        names.append(name)
    return names


def _asked(resolver: Resolver, labels: Labels, job: Job, solved: ExplainedRow) -> Json:
    """The explained output: one output, or one for each step."""
    first, question = solved.answers[0], job.steps[0]
    place = None
    if resolver.head not in ("sequence", "similarity") and question.position in labels.real[-1]:
        place = labels.real[-1].index(question.position)

    def each(of: Callable[[Any], Any]) -> Any:
        return [of(answer) for answer in solved.answers] if job.stepwise else of(first)

    return {
        "output": each(lambda answer: resolver.name(answer.output)),
        "against": resolver.name(first.against),
        "output_id": each(lambda answer: answer.output),
        "probability": each(lambda answer: answer.probability),
        "probability_against": None if job.stepwise else first.probability_against,
        "position": place,
        "token_at_position": None if place is None else labels.sides[-1].strings[place],
    }


@dataclass(frozen=True)
class Labels:
    """The labels of the axes: for each side its name, its tokens and which positions are real."""

    sites: Sequence[str]
    sides: Sequence[Tokens]
    real: Sequence[Sequence[int]]
    stepwise: bool
    outputs: Sequence[str]
    hidden: Sequence[bool] = ()  # sides without terms: those of a tower whose output a language model takes

    def positions(self, side: int, axis: str) -> Json:
        """Positions, tokens and words of a side, and the places of patches and frames."""
        tokens = self.sides[side]
        return {
            axis: np.arange(len(self.real[side])),
            f"{axis}_token": (axis, np.array(tokens.strings, dtype=object)),
            f"{axis}_word": (axis, np.array(tokens.words)),
            **(coordinates(tokens.places, axis) if tokens.places else {}),
        }

    @property
    def steps(self) -> Json:
        """The axis of steps, where there is one."""
        if not self.stepwise:
            return {}
        outputs = np.array(self.outputs, dtype=object)
        return {"step": np.arange(1, len(outputs) + 1), "output_token": ("step", outputs)}


@dataclass(frozen=True)
class Labelled:
    """The arrays of each site, the value, and the parts that this model does not have."""

    sites: dict[str, Arrays]
    value: Any
    left_out: list[str]


def labelled(steps: Sequence[Terms], labels: Labels, parts: Sequence[str], edges_top: int | None = None) -> Labelled:
    """Name the axes of what was found, step by step."""
    shelf = _ArrayBuilder(steps, labels, parts, edges_top)
    hidden = labels.hidden or [False] * len(labels.sites)
    sites = {name: shelf.side(stack) for stack, name in enumerate(labels.sites) if not hidden[stack]}
    for stack in range(1, len(labels.sites)):
        cross = shelf.attention(stack, "cross_attention", stack - 1)
        if cross and not hidden[stack]:
            last = stack == len(labels.sites) - 1
            sites["cross" if last else f"{labels.sites[stack]}_cross"] = cross
    values = [float(terms.value[0]) for terms in steps]
    value = xr.DataArray(values, dims=("step",), coords=labels.steps, name="value") if labels.stepwise else values[0]
    kept = {"edges" if name == "edges_top" else name for arrays in sites.values() for name in arrays}
    return Labelled(sites, value, [part for part in parts if part not in kept])


class _ArrayBuilder:
    """Puts the terms of all steps into arrays."""

    def __init__(self, steps: Sequence[Terms], labels: Labels, parts: Sequence[str], edges_top: int | None) -> None:
        self._steps, self._labels, self._parts, self._edges_top = steps, labels, parts, edges_top

    def side(self, stack: int) -> Arrays:
        """The arrays of one stack of layers."""
        labels = self._labels
        real = list(labels.real[stack])
        key = labels.positions(stack, "key")
        layers = self._layers(stack)
        found: Arrays = {"tokens": self._array("tokens", ("key",), key, lambda t: t.tokens[stack][0, real].numpy())}
        lengths = {cut.states.shape[1] for cut in self._steps[0].cuts if cut.stack == stack}
        if "states" in self._parts and lengths == {self._steps[0].tokens[stack].shape[1]}:
            found["states"] = self._array(
                "states",
                ("layer", "key"),
                key | {"layer": layers},
                lambda t: np.stack([cut.states[0, real].numpy() for cut in t.cuts if cut.stack == stack]),
            )
        found |= self.attention(stack, "attention", stack)
        if "blocks" in self._parts and any(w[0] == stack for t in self._steps for w in t.blocks):
            blocks = self._blocks(stack, lambda t: t.blocks)
            found["blocks"] = self._array(
                "blocks",
                ("layer", "block", "key"),
                key | {"layer": layers, "block": blocks},
                lambda t: _filled((len(layers), len(blocks), len(real)), _cells(t.blocks, stack, layers, blocks, real)),
            )
        if "direct" in self._parts and stack == len(labels.sites) - 1 and all(t.direct for t in self._steps):
            found |= self._direct(stack, layers, key, real)
        if "biases" in self._parts:
            with_head = np.array([0, *layers])
            blocks = self._blocks(stack, lambda t: {(stack, 0, "head"): t.value, **t.blocks, **t.constants})
            found["biases"] = self._array(
                "biases",
                ("layer", "block"),
                {"layer": with_head, "block": blocks},
                lambda t: _filled((len(with_head), len(blocks)), _cells(t.constants, stack, with_head, blocks, None)),
            )
        return found

    def attention(self, stack: int, kind: str, source: int) -> Arrays:
        """Heads and edges of one kind of attention; keys stand on the side `source`."""
        labels, layers = self._labels, self._layers(stack)
        queries, keys = list(labels.real[stack]), list(labels.real[source])
        mine = [v for t in self._steps for w, v in t.heads.items() if w[0] == stack and w[2] == kind]
        found: Arrays = {}
        if not mine:
            return found
        count = max(v.shape[1] for v in mine)
        coords: Json = {"layer": layers, "head": np.arange(1, count + 1)}
        if "heads" in self._parts:
            found["heads"] = self._array(
                "heads",
                ("layer", "head"),
                coords,
                lambda t: _filled((len(layers), count), _by_layer(t.heads, stack, kind, layers)),
            )
        if "edges" in self._parts and self._edges_top is not None:
            found |= self._strongest(stack, kind, source, self._edges_top)
        elif "edges" in self._parts and self._has_edges(stack, kind, queries, keys):
            found["edges"] = self._array(
                "edges",
                ("layer", "head", "query", "key"),
                coords | labels.positions(stack, "query") | labels.positions(source, "key"),
                lambda t: _filled(
                    (len(layers), count, len(queries), len(keys)),
                    {
                        place: _between(given, queries, keys)
                        for place, given in _by_layer(t.edges, stack, kind, layers).items()
                    },
                    _kind_of_number(t.edges),
                ),
            )
        return found

    def _strongest(self, stack: int, kind: str, source: int, count: int) -> Arrays:
        """The strongest edges as a list, and as attributes what is left out."""
        labels = self._labels
        queries, keys = list(labels.real[stack]), list(labels.real[source])
        each = [_top(t, stack, kind, queries, keys, count) for t in self._steps]
        if any(found is None for found in each):
            return {}
        tops = [found for found in each if found is not None]
        axes = ("step", "edge") if labels.stepwise else ("edge",)

        def joined(of: Callable[[Any], Any]) -> Any:
            return np.stack([of(top) for top in tops]) if labels.stepwise else of(tops[0])

        strings = (
            np.array(labels.sides[stack].strings, dtype=object),
            np.array(labels.sides[source].strings, dtype=object),
        )
        places = joined(lambda top: top.places)
        names = ("layer", "head", "query", "key")
        coords: Json = {name: (axes, places[..., number]) for number, name in enumerate(names)}
        coords["query_token"] = (axes, strings[0][coords["query"][1]])
        coords["key_token"] = (axes, strings[1][coords["key"][1]])
        array = xr.DataArray(joined(lambda top: top.values), dims=axes, coords=labels.steps | coords, name="edges_top")
        for name in ("edges_omitted", "omitted_sum", "omitted_absolute_sum"):
            array.attrs[name] = [getattr(top, name) for top in tops] if labels.stepwise else getattr(tops[0], name)
        return {"edges_top": array}

    def _has_edges(self, stack: int, kind: str, queries: list[int], keys: list[int]) -> bool:
        for terms in self._steps:
            for where in terms.heads:
                if where[0] == stack and where[2] == kind:
                    given = terms.edges.get(where)
                    if given is None or given.shape[-2] <= max(queries) or given.shape[-1] <= max(keys):
                        return False
        return True

    def _direct(self, stack: int, layers: Any, key: Json, real: list[int]) -> Arrays:
        count = max(v.shape[1] for t in self._steps for v in t.direct.values())
        blocks = self._blocks(stack, lambda t: t.direct)
        return {
            "direct": self._array(
                "direct",
                ("layer", "block", "head"),
                {"layer": layers, "block": blocks, "head": np.arange(count)},
                lambda t: _filled((len(layers), len(blocks), count), _cells(t.direct, stack, layers, blocks, None)),
            ),
            "direct_entrance": self._array(
                "direct_entrance", ("key",), key, lambda t: _some(t.direct_entrance)[0, real]
            ),
            "direct_biases": self._array("direct_biases", (), {}, lambda t: _some(t.direct_biases)[0]),
        }

    def _layers(self, stack: int) -> Any:
        return np.array(sorted({cut.number for cut in self._steps[0].cuts if cut.stack == stack}))

    def _blocks(self, stack: int, which: Callable[[Terms], Mapping[Where, Tensor]]) -> Any:
        present = {where[2] for terms in self._steps for where in which(terms) if where[0] == stack}
        return np.array([block for block in BLOCKS if block in present], dtype=object)

    def _array(self, name: str, axes: tuple[str, ...], coords: Json, of: Callable[[Terms], Any]) -> xr.DataArray:
        arrays = [np.asarray(of(terms)) for terms in self._steps]
        if not self._labels.stepwise:
            return xr.DataArray(arrays[0], dims=axes, coords=coords, name=name)
        return xr.DataArray(np.stack(arrays), dims=("step", *axes), coords=self._labels.steps | coords, name=name)


def _kind_of_number(found: Mapping[Where, Tensor]) -> Any:
    """Double precision where edges have it; they are too many to be kept in it elsewhere."""
    return np.float64 if any(given.dtype == torch.float64 for given in found.values()) else np.float32


def _between(edges: Any, queries: list[int], keys: list[int]) -> Any:
    """The edges between real positions: all of them, mostly, and then they are not copied."""
    whole = list(range(edges.shape[-2])) == queries and list(range(edges.shape[-1])) == keys
    return edges if whole else edges[:, queries][:, :, keys]


def _filled(shape: tuple[int, ...], cells: Mapping[Any, Any], dtype: Any = np.float64) -> Any:
    """Zeros with cells put in; a cell may be shorter than its row."""
    table = np.zeros(shape, dtype)
    for place, given in cells.items():
        if np.ndim(given) and np.shape(given) != table[place].shape:
            table[place][tuple(slice(0, n) for n in np.shape(given))] = given
        else:
            table[place] = given
    return table


def _cells(
    found: Mapping[Where, Tensor], stack: int, layers: Any, blocks: Any, real: list[int] | None
) -> dict[Any, Any]:
    rows = {int(layer): index for index, layer in enumerate(layers)}
    columns = {str(block): index for index, block in enumerate(blocks)}
    return {
        (rows[layer], columns[kind]): given[0].cpu().numpy() if real is None else given[0, real].cpu().numpy()
        for (side, layer, kind), given in found.items()
        if side == stack
    }


def _by_layer(found: Mapping[Where, Tensor], stack: int, kind: str, layers: Any) -> dict[int, Any]:
    rows = {int(layer): index for index, layer in enumerate(layers)}
    return {
        rows[layer]: given[0].cpu().numpy()
        for (side, layer, of), given in found.items()
        if side == stack and of == kind
    }


@dataclass(frozen=True)
class _Top:
    values: Any  # edge
    places: Any  # edge, (layer, head, query, key)
    edges_omitted: int
    omitted_sum: float
    omitted_absolute_sum: float


def _top(terms: Terms, stack: int, kind: str, queries: list[int], keys: list[int], count: int) -> _Top | None:
    """The strongest edges over all layers of one kind of attention; padding has none."""
    wanted = {where for where in terms.heads if where[0] == stack and where[2] == kind}
    if not wanted or not wanted <= set(terms.top_edges):
        return None
    values, places = [], []
    edges, total, absolute = 0, 0.0, 0.0
    number = [{position: i for i, position in enumerate(real)} for real in (queries, keys)]
    for where in sorted(wanted):
        top = terms.top_edges[where]
        heads, rows, columns = top.shape
        if rows <= max(queries) or columns <= max(keys):
            return None
        edges += heads * len(queries) * len(keys)
        total, absolute = total + float(top.total[0]), absolute + float(top.absolute[0])
        for value, place in zip(top.values[0].tolist(), top.places[0].tolist(), strict=True):
            head, query, key = place // (rows * columns), place // columns % rows, place % columns
            if query in number[0] and key in number[1]:
                values.append(value)
                places.append((where[1], head + 1, number[0][query], number[1][key]))
    order = np.argsort(-np.abs(values), kind="stable")[:count]
    kept = np.array(values)[order]
    left = float(total - kept.sum()), float(max(0.0, absolute - np.abs(kept).sum()))
    return _Top(kept, np.array(places).reshape(-1, 4)[order], edges - len(kept), *left)


def _some(given: Tensor | None) -> Any:
    assert given is not None, "direct terms come together"
    return given.numpy()
