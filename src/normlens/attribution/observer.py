"""Where the frozen pass is: the layers as the model runs them, what enters each, and what the backward pass brings there.

A *layer* is a call of a member of an outermost list of modules; the first one of a stack takes the input vectors, which
become the leaves of the backward pass. At the entrance of every later layer the gradient is read in passing (`states`). A
tensor that a layer takes from further back, such as encoder states, is read where it crosses, so that at every entrance
all that still enters can be added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normlens.anatomy.inputs import sequences_first
from normlens.anatomy.scope import PassScope
from normlens.attribution.edges import AttentionWeights, TopEdges, all_edges, strongest_edges, with_heads
from normlens.attribution.layers import Layers, Place
from normlens.attribution.lineage import Lineage, lineage_of, remember
from normlens.attribution.operands import mapped, tensors
from normlens.decompose.devices import doubles_on_host
from normlens.errors import AnatomyError, InputError


@dataclass
class Entrance:
    """The vectors that enter a layer, and what they gave."""

    layer: int
    stack: int
    number: int  # from 1, in its stack
    vectors: Tensor | None  # the input vectors of a stack; None at its later layers
    axes: tuple[int, int]  # of rows and positions
    given: Tensor | None = None  # row key: vector · gradient
    before: Tensor | None = None  # the input vectors as what was looked up made them, with the way back to it


@dataclass
class Lookup:
    """What was looked up by token id: in which layer (0: before the first), for which side, and in which table."""

    layer: int
    side: int
    leaf: Tensor
    table: Tensor


@dataclass
class Attention:
    """One attention: what its heads gave, and, where asked for, its edges."""

    layer: int
    kind: str
    output: Tensor
    by_head: bool  # whether the output stands as row, head, query, width
    heads: Tensor | None = None  # row head
    edges: Tensor | None = None  # row head query key
    edge_sums: Tensor | None = None  # row head
    top: TopEdges | None = None

    @property
    def edge_distance(self) -> Tensor | None:
        """Row: how far the edges are from what the heads gave, added up over heads; they are found in different ways."""
        if self.heads is None:
            return None
        if self.top is not None:
            return (self.top.total - self.heads.sum(1)).abs()
        return None if self.edge_sums is None else (self.edge_sums - self.heads).abs().sum(1)


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
    """What is read in passing, beside the entrances of layers."""

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


class Observer:
    """The layers of one pass."""

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], wanted: Wanted, replayed: Replayed | None = None
    ) -> None:
        self.wanted = wanted
        self.replayed = replayed
        self.rows, self.lengths = _shape_of(inputs)
        self.ids = [x for name, x in inputs.items() if isinstance(x, Tensor) and name.endswith("input_ids")]
        self.layers = Layers(model)
        self.side: int | None = None
        self.entrances: list[Entrance] = []
        self.leaves: list[tuple[Entrance, Tensor]] = []
        self.shadows: list[Tensor | None] = []  # the entrance of each stack's stream without branches
        self.lookups: list[Lookup] = []
        self.constants: list[tuple[Place, Tensor]] = []
        self.shadow_constants: list[Tensor] = []
        self.crossings: list[Crossing] = []
        self.attentions: list[Attention] = []
        self.blocks: list[Block] = []
        self.mixed_rows = False
        self.looks_back = False  # whether a layer uses what was made before the first one
        self._kept: dict[int, list[Kept]] = {}
        self._hooks: list[RemovableHandle] = []
        self.last: Last | None = None

    # ---- layers --------------------------------------------------------------------------------------------------

    def watch(self, scope: PassScope) -> None:
        """Follow layers and their parts while a pass runs."""
        self.layers.watch(scope, self._begin)

    @property
    def layer(self) -> int:
        """The layer that runs, from 1; 0 before the first."""
        return self.layers.number

    def _begin(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a layer with its entrance in place of its vectors; None where no vectors enter."""
        found = self._hidden(args, kwargs)
        if found is None:
            return None
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
        lineage = lineage_of(vectors)
        side = lineage.side if lineage is not None else None
        first = not vectors.requires_grad or (lineage is not None and side is None)
        self.layers.number += 1
        if first:
            self._check_aligned(vectors, axes)
            side = len(self.leaves)
            if self.replayed is not None:
                # As recorded: what comes before the first layer is no part of the map.
                kept = self.replayed.vectors[side] * _along(self.replayed.factors[side], vectors, axes)
            else:
                kept = vectors.detach().clone()
            entrance = Entrance(self.layer, side, 1, kept, axes)
            entrance.before = vectors if vectors.requires_grad and self.replayed is None else None
            leaf = kept.clone().requires_grad_()
            self.leaves.append((entrance, leaf))
            taken = leaf.clone()
        else:
            side = self.side if side is None else side
            number = 1 + sum(e.stack == side for e in self.entrances)
            entrance = Entrance(self.layer, side or 0, number, None, axes)
            taken = vectors.clone()
            held = self.keep(vectors)

            def read(gradient: Tensor) -> None:
                entrance.given = by_position(held.tensor, gradient, axes)

            if self.replayed is None:
                self.listen(taken, read)
        self.entrances.append(entrance)
        self.side = side
        fresh = Lineage(self.layer, side)
        fresh.stream = True
        if self.wanted.direct and self.replayed is None:
            if entrance.vectors is not None:
                fresh.shadow = entrance.vectors.clone().requires_grad_()
                self.shadows.append(fresh.shadow)
            elif lineage is not None:
                fresh.shadow = lineage.shadow
        if lineage is not None:
            _goes_on(lineage.shifts)
        remember(taken, fresh)
        if first:
            original = lineage_of(vectors) or Lineage(0, None)
            original.replaced = taken  # the model's code may hold on to the vectors that it handed in
            remember(vectors, original)
        return mapped(args, lambda x: taken if x is vectors else x), mapped(
            kwargs, lambda x: taken if x is vectors else x
        )

    def _check_aligned(self, vectors: Tensor, axes: tuple[int, int]) -> None:
        """Where a model pads by itself, its vectors must still be one for each position."""
        if vectors.shape[axes[1]] in self.lengths or self.replayed is not None:
            return
        for leaf in [lookup.leaf for lookup in self.lookups] if vectors.requires_grad else ():
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

    def forget_gradients(self) -> None:
        """Before a backward pass: what an earlier one brought."""
        self.constants, self.crossings = [], []
        for entrance in self.entrances:
            entrance.given = None
        for attention in self.attentions:
            attention.heads = attention.edges = attention.edge_sums = attention.top = None
        for block in self.blocks:
            block.given = None

    def to_host(self) -> None:
        """After a backward pass: what it brought, in float64 on the host. A device is waited for once, not at each place."""
        places: list[Entrance | Block | Crossing] = [*self.entrances, *self.blocks, *self.crossings]
        with_given = [x for x in places if x.given is not None]
        with_heads = [attention for attention in self.attentions if attention.heads is not None]
        given = [x.given for x in with_given] + [attention.heads for attention in with_heads]
        found = iter(doubles_on_host([x for x in given if x is not None] + [x for _, x in self.constants]))
        for x in with_given:
            x.given = next(found)
        for attention in with_heads:
            attention.heads = next(found)
        self.constants = [(place, next(found)) for place, _ in self.constants]

    def listen(self, tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
        """Hear the gradient of a tensor when it comes."""
        self._hooks.append(tensor.register_hook(hook))

    def release(self) -> None:
        """Let the graph of the pass go: a hook may hold its own tensor, and no collector sees a ring through the graph."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.leaves, self.lookups, self.attentions, self.blocks = [], [], [], []
        for entrance in self.entrances:
            entrance.before = None
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
                table = args[1] if len(args) > 1 else kwargs["weight"]
                self.lookups.append(Lookup(self.layer, number, leaf, table))
                taken = leaf.clone()
                remember(taken, Lineage(self.layer, None))
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
                lineage = lineage_of(x)
                # What is used between two layers, outside of both, goes on to the next one.
                if lineage is not None and lineage.born < self.layer:
                    return mapped(args, self._aliased), mapped(kwargs, self._aliased)
        return args, kwargs

    def _aliased(self, x: Tensor) -> Tensor:
        lineage = lineage_of(x)
        if not x.requires_grad or lineage is None or lineage.born >= self.layer:
            return x
        self.looks_back = self.looks_back or lineage.born == 0
        if lineage.alias is not None and lineage.alias[0] == self.layer:
            return lineage.alias[1]
        alias = x.view_as(x)
        fresh = Lineage(self.layer, lineage.side)
        fresh.take(lineage)
        fresh.chain = lineage.chain
        remember(alias, fresh)
        born, layer, held = lineage.born, self.layer, self.keep(x)

        def read(gradient: Tensor) -> None:
            self.crossings.append(Crossing(born, layer, self.by_row(held.tensor * gradient)))

        self.listen(alias, read)
        lineage.alias = (layer, alias)
        return alias

    def constant(self, out: Tensor, value: Callable[[], Any], kind: str | None) -> Place:
        """Read what a constant gives; `kind`: of the block in whose branch it is added, where that is known."""
        place = self.layers.place(kind, len(self.blocks))

        def read(gradient: Tensor) -> None:
            self.constants.append((place, self._constant_given(gradient, value())))

        self.listen(out, read)
        return place

    def _constant_given(self, gradient: Tensor, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.ndim == 1 and value.numel() == gradient.shape[-1]:
            return self.by_row(gradient.reshape(-1, value.numel()) @ value.to(gradient.dtype), gradient.shape[:-1])
        given = gradient * value
        if isinstance(value, Tensor) and value.ndim > 1:
            given = given.masked_fill(gradient == 0, 0)  # a mask of -inf gets no gradient
        return self.by_row(given)

    def by_row(self, x: Tensor, shape: torch.Size | None = None) -> Tensor:
        """Sum over all but the rows of the batch; it stays where it is (see `to_host`)."""
        x = x if shape is None else x.reshape(shape)
        if self.rows == 1:
            return x.sum().reshape(1)
        if x.ndim and x.shape[0] % self.rows == 0:
            return x.reshape(self.rows, -1).sum(1)
        if x.ndim > 1 and x.shape[1] == self.rows:
            return x.transpose(0, 1).reshape(self.rows, -1).sum(1)
        self.mixed_rows = True
        return torch.full((self.rows,), torch.nan, dtype=torch.float64)

    def kind_of_attention(self, values: Tensor) -> str:
        """Whether these values are the stack's own or another's."""
        lineage = lineage_of(values)
        kind = (
            "attention" if lineage is None or lineage.side is None or lineage.side == self.side else "cross_attention"
        )
        self.layers.mark(kind)
        return kind

    def attention(self, out: Tensor, values: Tensor, weights: AttentionWeights | None) -> None:
        """Read what each head gives, and each edge."""
        wanted = self.wanted.heads or self.wanted.edges or self.wanted.direct
        if self.replayed is not None or not wanted or not out.requires_grad:
            return
        lineage = lineage_of(out)
        kind = (lineage.kind if lineage is not None else None) or "attention"
        inner = lineage_of(values)
        if inner is not None and inner.kind == kind:  # weights times weights times values: the outermost has the heads
            self.attentions = [a for a in self.attentions if (a.layer, a.kind) != (self.layer, kind)]
            weights = None
        # Weights stand as head, query, key: an output that does not have them in this order has its heads elsewhere.
        by_head = not isinstance(weights, Tensor) or out.shape[:-1] == weights.shape[:-1]
        found = Attention(self.layer, kind, out, by_head)
        self.attentions.append(found)
        kept, held = self.keep(out), self.keep(values)

        def read(gradient: Tensor) -> None:
            heads = with_heads(kept.tensor * gradient, self.rows) if by_head else None
            if heads is None:
                return
            found.heads = heads.sum((-1, -2))
            if not self.wanted.edges or weights is None:
                return
            if self.wanted.edges_top is None:
                found.edges, found.edge_sums = all_edges(weights, held.tensor, gradient, self.rows)
            else:
                found.top = strongest_edges(weights, held.tensor, gradient, self.rows, self.wanted.edges_top)

        self.listen(out, read)

    def block(self, out: Tensor, branch: Tensor, lineage: Lineage, shifts: tuple[Place, ...]) -> None:
        """A block's output enters the residual sum; `shifts`: what was added to the stream before it."""
        _goes_on(shifts)
        if self.replayed is not None or not (self.wanted.blocks or self.wanted.direct):
            return
        found = lineage_of(branch)
        axes = self.entrances[-1].axes
        for part in (branch,) if found is None or found.parts is None else found.parts:
            mine = lineage_of(part)
            block = Block(self.layer, (mine.kind if mine is not None else None) or "feed_forward", part, axes)
            self.blocks.append(block)
            if self.wanted.blocks and part.requires_grad:
                self.listen(part, self._block_reader(block, self.keep(part)))
            if lineage.shadow is not None:
                block.leaf = part.detach().clone().requires_grad_()
                lineage.shadow = lineage.shadow + block.leaf
        if lineage.shadow is not None:
            self.last = Last(out, lineage.shadow)
            self.listen(out, self._last_reader(self.last))

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


def _goes_on(shifts: tuple[Place, ...]) -> None:
    """The stream goes on with these constants in it: they stand after a block, not before one."""
    for place in shifts:
        place.on_stream = True


def by_position(vectors: Tensor, gradient: Tensor, axes: tuple[int, int]) -> Tensor:
    """`x_k · gradient_k` for each row and position."""
    return (vectors * gradient).movedim(axes, (0, 1)).flatten(2).sum(-1)


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
    """How many rows there are, and how many positions they may have, on either side."""
    found = [x.shape for _, x in sequences_first(inputs) if x.ndim >= 2]
    if not found:
        raise InputError("an explanation needs a batch of inputs: no tensor of rows and positions was given")
    return int(found[0][0]), {int(shape[1]) for shape in found}
