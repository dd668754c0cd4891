"""Where the frozen pass is: the layers as the model runs them, what enters each, and what the backward pass brings there.

A *layer* is a call of a member of an outermost list of modules; the first one of a stack takes the input vectors, which
become the leaves of the backward pass. At the entrance of every later layer the gradient is read in passing (`states`). A
tensor that a layer takes from further back, such as encoder states, is read where it crosses, so that at every entrance
all that still enters can be added up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normlens.attribution.frozen import FrozenPass, Place, scores_of
from normlens.attribution.notes import Note, note_of, remember
from normlens.attribution.rules import mapped, tensors
from normlens.attribution.standing_in import seen_through
from normlens.errors import AnatomyError, InputError

#: Numbers in a block of edges: what is held at once beside the result.
_BLOCK = 1 << 24


@dataclass
class Entrance:
    """The vectors that enter a layer, and what they gave."""

    layer: int
    stack: int
    number: int  # from 1, in its stack
    vectors: Tensor | None  # the input vectors of a stack; None at its later layers
    axes: tuple[int, int]  # of rows and positions
    first: bool  # whether its vectors are the stack's input vectors
    given: Tensor | None = None  # row key: vector · gradient


@dataclass(frozen=True)
class TopEdges:
    """The strongest edges of one attention, and what all of its edges come to."""

    values: Tensor  # row edge
    places: Tensor  # row edge: (head, query, key) as one number
    shape: tuple[int, int, int]  # heads, queries, keys
    total: Tensor  # row: the sum of all edges
    absolute: Tensor  # row: the sum of their absolute values

    def row(self, row: int) -> TopEdges:
        """Those of one row alone."""
        mine = slice(row, row + 1)
        return TopEdges(self.values[mine], self.places[mine], self.shape, self.total[mine], self.absolute[mine])


@dataclass
class Attention:
    """One attention: what its heads gave, and, where asked for, its edges."""

    layer: int
    kind: str
    output: Tensor
    by_head: bool  # whether the output stands as row, head, query, width
    heads: Tensor | None = None  # row head
    edges: Tensor | None = None  # row head query key
    top: TopEdges | None = None


@dataclass
class Block:
    """The output of one block as it enters the residual sum."""

    layer: int
    kind: str
    output: Tensor
    axes: tuple[int, int]
    given: Tensor | None = None  # row key
    leaf: Tensor | None = None  # its output in the stream without branches, for `direct`


@dataclass
class Last:
    """The stream after its last block, and the same sum with every block's output as a leaf."""

    stream: Tensor
    shadow: Tensor
    gradient: Tensor | None = None


@dataclass
class Wanted:
    """What is read in passing."""

    states: bool = True
    heads: bool = False
    edges: bool = False
    edges_top: int | None = None  # only so many of them, the strongest
    blocks: bool = False
    direct: bool = False


@dataclass
class Crossing:
    """What a tensor from an earlier layer gave where a later one took it."""

    born: int
    layer: int
    given: Tensor  # row


@dataclass
class Replayed:
    """A pass on other input vectors: those of the recorded pass, each multiplied by a number."""

    vectors: list[Tensor]
    factors: list[Tensor]  # row position


class Kept:
    """The numbers of a tensor as they were, also where the model's code changes it in place afterwards."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()

    def save(self) -> None:
        """Copy, since the storage is about to change."""
        self.tensor = self.tensor.clone()


class Walk:
    """The layers of one pass."""

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], wanted: Wanted, replayed: Replayed | None = None
    ) -> None:
        self.wanted = wanted
        self.replayed = replayed
        self.rows, self.lengths = _shape_of(inputs)
        self.ids = [x for name, x in inputs.items() if isinstance(x, Tensor) and name.endswith("input_ids")]
        self.layer = 0
        self.side: int | None = None
        self.entrances: list[Entrance] = []
        self.leaves: list[tuple[Entrance, Tensor]] = []
        self.shadows: list[Tensor | None] = []  # the entrance of each stack's stream without branches
        self.lookups: list[tuple[int, int, Tensor]] = []  # layer, side (index of ids), leaf
        self.constants: list[tuple[Place, Tensor]] = []
        self.shadow_constants: list[Tensor] = []
        self.crossings: list[Crossing] = []
        self.attentions: list[Attention] = []
        self.blocks: list[Block] = []
        self._units: list[str] = []
        self._inside = 0
        self._members = _members(model)
        self._companions: set[int] = set()
        self._leading: dict[int, tuple[int, int]] = {}
        self._kinds: dict[tuple[int, str], str] = {}
        self._orders: dict[int, list[tuple[str, bool]]] = {}  # the parts of each layer as they ran; whether a norm
        self.mixed_rows = False
        self._kept: dict[int, list[Kept]] = {}
        self.last: Last | None = None

    # ---- hooks ---------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hook the members of the outermost lists, and the parts that they are made of."""
        handles = []
        replaced: list[tuple[nn.Module, Any]] = []
        for module, member in self._members.items():
            # Not a hook: some families call a layer's `forward` themselves.
            replaced.append((module, module.__dict__.get("forward")))
            module.forward = self._as_layer(module.forward, member)
            for name, unit in _units_of(module):
                handles.append(unit.register_forward_pre_hook(self._enter(name, _is_norm(unit))))
                handles.append(unit.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module, forward in replaced:
                if forward is None:
                    del module.__dict__["forward"]
                else:
                    module.forward = forward

    def _as_layer(self, forward: Any, member: tuple[int, int, int]) -> Any:
        @functools.wraps(forward)
        def layer(*args: Any, **kwargs: Any) -> Any:
            self._inside += 1
            try:
                changed = self._begin(member, args, kwargs)
                args, kwargs = (args, kwargs) if changed is None else changed
                return forward(*args, **kwargs)
            finally:
                self._inside -= 1

        return layer

    def _enter(self, name: str, is_norm: bool) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self._units.append(name)
            self._orders.setdefault(self.layer, []).append((name, is_norm))

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._units:
            self._units.pop()

    def _begin(self, member: tuple[int, int, int], args: Any, kwargs: Any) -> Any:
        """The arguments of a layer with its entrance in place of its vectors; None where no layer begins here."""
        if self._inside > 1 or not torch.is_grad_enabled():
            return None
        parent, list_number, index = member
        leading = self._leading.get(parent)
        if list_number in self._companions:
            return None
        if leading is not None and leading[0] != list_number and leading[1] == 0:
            self._companions.add(list_number)
            return None
        found = self._hidden(args, kwargs)
        if found is None:
            return None
        self._leading[parent] = (list_number, index)
        with torch._C.DisableTorchFunction():  # what is done here is no part of the model
            return self._entered(*found, args, kwargs)

    def _hidden(self, args: Any, kwargs: Any) -> tuple[Tensor, tuple[int, int]] | None:
        """The tensor with one vector for each position, and where rows and positions stand in it."""
        named = [kwargs[name] for name in ("hidden_states", "x", "input") if name in kwargs]
        for x in (*tensors(args), *named, *tensors(kwargs)):
            if isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 3:
                axes = self._axes(x)
                return None if axes is None else (x, axes)
        return None

    def _axes(self, x: Tensor) -> tuple[int, int] | None:
        shape = x.shape
        orders = ((0, 1), (1, 2), (1, 0), (0, 2))  # the usual one; several streams in front; positions first; channels
        for rows, positions in orders:
            if max(rows, positions) < x.ndim and shape[rows] == self.rows and shape[positions] in self.lengths:
                return rows, positions
        return (0, 1) if shape[0] == self.rows else None  # padded by the model itself

    def _entered(self, vectors: Tensor, axes: tuple[int, int], args: Any, kwargs: Any) -> Any:
        note = note_of(vectors)
        side = note.side if note is not None else None
        first = not vectors.requires_grad or (note is not None and side is None)
        self.layer += 1
        if first:
            self._check_aligned(vectors, axes)
            side = len(self.leaves)
            if self.replayed is not None:
                # As recorded: what comes before the first layer is no part of the map.
                kept = self.replayed.vectors[side] * _along(self.replayed.factors[side], vectors, axes)
            else:
                kept = vectors.detach().clone()
            entrance = Entrance(self.layer, side, 1, kept, axes, True)
            leaf = kept.clone().requires_grad_()
            self.leaves.append((entrance, leaf))
            taken = leaf.clone()
        else:
            side = self.side if side is None else side
            number = 1 + sum(e.stack == side for e in self.entrances)
            entrance = Entrance(self.layer, side or 0, number, None, axes, False)
            taken = vectors.clone()
            held = self.keep(vectors)

            def read(gradient: Tensor) -> None:
                entrance.given = by_position(held.tensor, gradient, axes)

            if self.replayed is None:
                taken.register_hook(read)
        self.entrances.append(entrance)
        self.side = side
        fresh = Note(self.layer, side)
        fresh.stream = True
        if self.wanted.direct and self.replayed is None:
            if entrance.vectors is not None:
                fresh.shadow = entrance.vectors.clone().requires_grad_()
                self.shadows.append(fresh.shadow)
            elif note is not None:
                fresh.shadow = note.shadow
        remember(taken, fresh)
        if first:
            original = note_of(vectors) or Note(0, None)
            original.replaced = taken  # the model's code may hold on to the vectors that it handed in
            remember(vectors, original)
        return mapped(args, lambda x: taken if x is vectors else x), mapped(
            kwargs, lambda x: taken if x is vectors else x
        )

    def _check_aligned(self, vectors: Tensor, axes: tuple[int, int]) -> None:
        """Where a model pads by itself, its vectors must still be one for each position."""
        if vectors.shape[axes[1]] in self.lengths or self.replayed is not None:
            return
        for *_, leaf in self.lookups if vectors.requires_grad else ():
            position = min(self.lengths) - 1
            (reached,) = torch.autograd.grad(
                vectors.select(axes[1], position).sum(), leaf, retain_graph=True, allow_unused=True
            )
            if reached is not None and [int(i) for i in reached.abs().sum((0, 2)).nonzero().flatten()] == [position]:
                return
        raise AnatomyError(
            f"the vectors that enter the first layer must be one for each position: {vectors.shape[axes[1]]} enter for "
            f"{', '.join(map(str, sorted(self.lengths)))} positions, so this model's terms belong to no token"
        )

    def release(self) -> None:
        """Let the graph of the pass go: its hooks hold this walk, and nothing would free a ring through the graph."""
        self.leaves, self.lookups, self.attentions, self.blocks = [], [], [], []
        self.shadows, self.shadow_constants, self.last, self._kept = [], [], None, {}

    # ---- heard from the pass -------------------------------------------------------------------------------------

    def looked_up(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """What is looked up by token id belongs to that position, wherever it enters."""
        if name != "embedding":
            return out
        ids = args[0] if args else kwargs["input"]
        for number, mine in enumerate(self.ids):
            if ids is mine or _continues(ids, mine):
                leaf = out.detach()
                if self.replayed is not None and number < len(self.replayed.factors):
                    leaf = leaf * _along(self.replayed.factors[number][:, : leaf.shape[1]], leaf, (0, 1))
                leaf = leaf.clone().requires_grad_()
                self.lookups.append((self.layer, number, leaf))
                taken = leaf.clone()
                remember(taken, Note(self.layer, None))
                return taken
        return out

    def keep(self, tensor: Tensor) -> Kept:
        """The numbers of a tensor for the backward pass."""
        kept = Kept(tensor)
        self._kept.setdefault(tensor.untyped_storage().data_ptr(), []).append(kept)
        return kept

    def changing(self, tensor: Tensor) -> None:
        """The model's code changes a tensor in place."""
        with torch._C.DisableTorchFunction():
            for kept in self._kept.pop(tensor.untyped_storage().data_ptr(), ()):
                kept.save()

    def crossing(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Read what a tensor from an earlier layer gives to this one."""
        if self.layer < 1 or self.replayed is not None:
            return args, kwargs
        for x in tensors(args, kwargs):
            if x.requires_grad:
                note = note_of(x)
                # What is used between two layers, outside of both, goes on to the next one.
                if note is not None and note.born < self.layer:
                    return mapped(args, self._aliased), mapped(kwargs, self._aliased)
        return args, kwargs

    def _aliased(self, x: Tensor) -> Tensor:
        note = note_of(x)
        if not x.requires_grad or note is None or note.born >= self.layer:
            return x
        if note.alias is not None and note.alias[0] == self.layer:
            return note.alias[1]
        alias = x.view_as(x)
        fresh = Note(self.layer, note.side)
        fresh.stream, fresh.kind, fresh.parts, fresh.chain = note.stream, note.kind, note.parts, note.chain
        fresh.shadow = note.shadow
        remember(alias, fresh)
        born, layer, held = note.born, self.layer, self.keep(x)

        def read(gradient: Tensor) -> None:
            self.crossings.append(Crossing(born, layer, self.by_row(held.tensor * gradient)))

        alias.register_hook(read)
        note.alias = (layer, alias)
        return alias

    def constant(self, out: Tensor, value: Callable[[], Any]) -> None:
        """Read what a constant gives."""
        place = self.place()

        def read(gradient: Tensor) -> None:
            self.constants.append((place, self._constant_given(gradient, value())))

        out.register_hook(read)

    def place(self) -> Place:
        """Where the pass is."""
        return Place(self.layer, self._inside > 0, self._units[0] if self._units else "", len(self.blocks))

    def kind_of_unit(self, place: Place) -> str:
        """The block to which a part of a layer belongs.

        A normalization that stands directly in the layer belongs to the part that it feeds where the layer begins with
        one, else to the part that it follows.
        """
        order = self._orders.get(place.layer, [])
        units = [unit for unit, _ in order]
        unit = place.unit
        if unit in units and dict(order)[unit]:
            index = units.index(unit)
            begins_with_norm = order[0][1]
            near = order[index + 1 :] if begins_with_norm else order[:index][::-1]
            unit = next((other for other, is_norm in near if not is_norm), unit)
        return self._kinds.get((place.layer, unit), "feed_forward")

    def _constant_given(self, gradient: Tensor, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.ndim == 1 and value.numel() == gradient.shape[-1]:
            return self.by_row(gradient.reshape(-1, value.numel()) @ value.to(gradient.dtype), gradient.shape[:-1])
        given = gradient * value
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            given = torch.where(gradient == 0, torch.zeros_like(given), given)  # a mask of -inf gets no gradient
        return self.by_row(given)

    def by_row(self, x: Tensor, shape: torch.Size | None = None) -> Tensor:
        """Sum over all but the rows of the batch."""
        x = x if shape is None else x.reshape(shape)
        if self.rows == 1:
            return x.sum().reshape(1).double()
        if x.ndim and x.shape[0] % self.rows == 0:
            return x.reshape(self.rows, -1).sum(1).double()
        if x.ndim > 1 and x.shape[1] == self.rows:
            return x.transpose(0, 1).reshape(self.rows, -1).sum(1).double()
        self.mixed_rows = True
        return torch.full((self.rows,), torch.nan, dtype=torch.float64)

    def kind_of_attention(self, values: Tensor) -> str:
        """Whether these values are the stack's own or another's."""
        note = note_of(values)
        kind = "attention" if note is None or note.side is None or note.side == self.side else "cross_attention"
        for unit in self._units[:1]:
            self._kinds[self.layer, unit] = kind
        return kind

    def attention(self, out: Tensor, values: Tensor, source: Any) -> None:
        """Read what each head gives, and each edge."""
        wanted = self.wanted.heads or self.wanted.edges or self.wanted.direct
        if self.replayed is not None or not wanted or not out.requires_grad:
            return
        note = note_of(out)
        kind = (note.kind if note is not None else None) or "attention"
        inner = note_of(values)
        if inner is not None and inner.kind == kind:  # weights times weights times values: the outermost has the heads
            self.attentions = [a for a in self.attentions if (a.layer, a.kind) != (self.layer, kind)]
            source = None
        # Weights stand as head, query, key: an output that does not have them in this order has its heads elsewhere.
        by_head = not isinstance(source, Tensor) or out.shape[:-1] == source.shape[:-1]
        found = Attention(self.layer, kind, out, by_head)
        self.attentions.append(found)
        kept, held = self.keep(out), self.keep(values)

        def read(gradient: Tensor) -> None:
            heads = self.with_heads(kept.tensor * gradient) if by_head else None
            if heads is None:
                return
            found.heads = heads.sum((-1, -2)).double()
            if self.wanted.edges and source is not None:
                if self.wanted.edges_top is None:
                    found.edges = self._edges(source, held.tensor, gradient)
                else:
                    found.top = self._top_edges(source, held.tensor, gradient, self.wanted.edges_top)

        out.register_hook(read)

    def with_heads(self, x: Tensor) -> Tensor | None:
        """Row, head, query, width."""
        if x.ndim == 4 and x.shape[0] == self.rows:
            return x
        if x.ndim == 3 and x.shape[0] % self.rows == 0:
            return x.reshape(self.rows, -1, *x.shape[1:])
        return None

    def _edges(self, source: Any, values: Tensor, gradient: Tensor) -> Tensor | None:
        blocks = list(self._edge_blocks(source, values, gradient))
        if len(blocks) == 1:
            return blocks[0]
        return torch.cat(blocks, 2) if blocks else None

    def _top_edges(self, source: Any, values: Tensor, gradient: Tensor, count: int) -> TopEdges | None:
        """The strongest `count` edges of each row; no more than a block of all of them is ever there."""
        best = places = None
        total = absolute = torch.zeros(self.rows, dtype=torch.float64, device=gradient.device)
        queries, first, shape = gradient.shape[-2], 0, (0, 0, 0)
        for block in self._edge_blocks(source, values, gradient):
            _, heads, rows, keys = block.shape
            shape = (heads, queries, keys)
            flat = block.flatten(1)
            total, absolute = total + flat.double().sum(1), absolute + flat.double().abs().sum(1)
            index = flat.abs().topk(min(count, flat.shape[1]), 1).indices
            head, query, key = index // (rows * keys), first + index // keys % rows, index % keys
            found, where = flat.gather(1, index), (head * queries + query) * keys + key
            first += rows
            if best is not None and places is not None:
                found, where = torch.cat([best, found], 1), torch.cat([places, where], 1)
                kept = found.abs().topk(min(count, found.shape[1]), 1).indices
                found, where = found.gather(1, kept), where.gather(1, kept)
            best, places = found, where
        if best is None or places is None:
            return None
        return TopEdges(best.double().cpu(), places.cpu(), shape, total.cpu(), absolute.cpu())

    def _edge_blocks(self, source: Any, values: Tensor, gradient: Tensor) -> Iterator[Tensor]:
        """Edges of a few queries at a time: row, head, query, key; nothing where weights and values do not fit."""
        if not isinstance(source, Tensor):
            query, key, mask, options = source
            if options.get("enable_gqa"):
                values = values.repeat_interleave(query.shape[-3] // values.shape[-3], dim=-3)
        queries, keys = gradient.shape[-2], values.shape[-2]
        step = max(1, _BLOCK // max(1, gradient[..., 0, 0].numel() * keys))
        for start in range(0, queries, step):
            rows = slice(start, start + step)
            if isinstance(source, Tensor):
                alpha = source[..., rows, :]
            else:
                few = mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]
                alpha = torch.softmax(scores_of(query[..., rows, :], key, few, options, start), -1)
            per_pair = torch.matmul(gradient[..., rows, :], values.transpose(-1, -2))
            found = self.with_heads(per_pair.mul_(alpha)) if per_pair.shape == alpha.shape else None
            if found is None:
                return
            yield found

    def block(self, out: Tensor, branch: Tensor, note: Note) -> None:
        """A block's output enters the residual sum."""
        if self.replayed is not None or not (self.wanted.blocks or self.wanted.direct):
            return
        found = note_of(branch)
        axes = self.entrances[-1].axes
        for part in (branch,) if found is None or found.parts is None else found.parts:
            mine = note_of(part)
            block = Block(self.layer, (mine.kind if mine is not None else None) or "feed_forward", part, axes)
            self.blocks.append(block)
            if self.wanted.blocks and part.requires_grad:
                part.register_hook(self._block_reader(block, self.keep(part)))
            if note.shadow is not None:
                block.leaf = part.detach().clone().requires_grad_()
                note.shadow = note.shadow + block.leaf
        if note.shadow is not None:
            self.last = Last(out, note.shadow)
            out.register_hook(self._last_reader(self.last))

    def _block_reader(self, block: Block, kept: Kept) -> Callable[[Tensor], None]:
        def read(gradient: Tensor) -> None:
            shape = kept.tensor.shape
            if len(shape) == 2 and shape[0] % self.rows == 0 and shape[0] // self.rows in self.lengths:
                by_rows = (self.rows, -1, shape[1])
                block.given = by_position(kept.tensor.reshape(by_rows), gradient.reshape(by_rows), (0, 1))
            elif len(shape) > max(block.axes) and shape[block.axes[0]] == self.rows:
                block.given = by_position(kept.tensor, gradient, block.axes)

        return read

    def _last_reader(self, last: Last) -> Callable[[Tensor], None]:
        def read(gradient: Tensor) -> None:
            if last is self.last:
                last.gradient = gradient

        return read

    def shadow_constant(self, value: Tensor) -> Tensor:
        """Something added along the stream, as a leaf of its own."""
        leaf = value.detach().clone().requires_grad_()
        self.shadow_constants.append(leaf)
        return leaf

    def mixer(self) -> None:
        """A recurrence ran here."""
        for unit in self._units[:1]:
            self._kinds[self.layer, unit] = "mixer"


def by_position(vectors: Tensor, gradient: Tensor, axes: tuple[int, int]) -> Tensor:
    """`x_k · gradient_k` for each row and position."""
    return (vectors * gradient).movedim(axes, (0, 1)).flatten(2).sum(-1).double()


def _along(factors: Tensor, like: Tensor, axes: tuple[int, int]) -> Tensor:
    """Factors of rows and positions, shaped to multiply vectors."""
    shaped = factors.to(like.dtype).reshape(*factors.shape, *[1] * (like.ndim - 2))
    return shaped.movedim((0, 1), axes)


def _continues(ids: Tensor, mine: Tensor) -> bool:
    """Whether these are the row's ids, perhaps with padding of the model's own after them."""
    if ids.ndim != mine.ndim or ids.shape[0] != mine.shape[0] or ids.shape[-1] < mine.shape[-1]:
        return False
    return torch.equal(ids[..., : mine.shape[-1]], mine)


def _shape_of(inputs: Mapping[str, Any]) -> tuple[int, set[int]]:
    found = [x.shape for x in inputs.values() if isinstance(x, Tensor) and x.ndim >= 2]
    if not found:
        raise InputError("an explanation needs a batch of inputs: no tensor of rows and positions was given")
    return int(found[0][0]), {int(shape[1]) for shape in found}


def _members(model: nn.Module) -> dict[nn.Module, tuple[int, int, int]]:
    """Members of the outermost lists that hold a matrix: their parent, their list, their number in it."""
    found: dict[nn.Module, tuple[int, int, int]] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.ModuleList | nn.Sequential | nn.ModuleDict):
                for index, member in enumerate(child.children()):
                    if sum(p.ndim >= 2 for p in member.parameters()) >= 2:
                        found.setdefault(member, (id(module), id(child), index))
                    else:
                        visit(member)
            else:
                visit(child)

    visit(model)
    return found


def _units_of(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a layer: its children, and the members of its lists."""
    for name, child in layer.named_children():
        if isinstance(child, nn.ModuleList):
            for number, member in enumerate(child):
                yield f"{name}.{number}", member
        else:
            yield name, child


def _is_norm(module: nn.Module) -> bool:
    """Whether a part has vectors for weights and no matrix."""
    weights = list(module.parameters())
    return bool(weights) and all(weight.ndim < 2 for weight in weights)


def run_frozen(model: nn.Module, inputs: Mapping[str, Any], frozen: FrozenPass, walk: Walk) -> Any:
    """The forward pass of the model's own code, with gradients for what is live and for nothing else."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad(), walk.watching(), seen_through(model, frozen), frozen:
            return model(**inputs)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def entered(walk: Walk) -> None:
    """Every explained model has layers with input vectors."""
    if not walk.leaves:
        raise AnatomyError(
            "an explanation starts at the vectors that enter the first layer: no list of layers took such vectors in this "
            "model; see docs/explain.md"
        )
