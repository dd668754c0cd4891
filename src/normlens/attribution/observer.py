"""The terms of a frozen pass: layers as the model runs them, their inputs, and the gradients that arrive there.

A *layer* is a call of a member of an outermost list of modules; the first one of a stack takes the input vectors, which
become the leaves of the backward pass. At the entrance of every later layer the gradient is read in passing (`states`). A
tensor that a layer takes from further back, such as encoder states, is read where it crosses, so that at every entrance
all that still enters can be added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normlens.anatomy.inputs import holds_media, rows_of, sequences_first
from normlens.anatomy.scope import PassScope
from normlens.attribution.edges import AttentionWeights, TopEdges, all_edges, strongest_edges, with_heads
from normlens.attribution.frozen import SavedTensor
from normlens.attribution.layers import Layers, OpSite
from normlens.attribution.lineage import Lineage, lineage_of, remember
from normlens.attribution.lookups import Root, carry_media, follow, look_up, media_of
from normlens.attribution.operands import mapped, tensors
from normlens.decompose.devices import doubles_on_host
from normlens.errors import AnatomyError, InputError
from normlens.types import ModelInputs


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
    media: str | None = None  # the input of images or sound that they were made from
    items: int = 1  # images of a row, whose positions stand one after the other
    grid: tuple[int, int] | None = None  # height and width, where a feature map enters
    made: Tensor | None = None  # row key: positions beside those of text, which were made of no token
    after_tower: bool = False  # whether an earlier stack made them, so that their terms can be carried on to it


@dataclass
class Stack:
    """A stack of layers: the leaf that takes the place of its input vectors, and the positions that these belong to."""

    entrance: Entrance
    leaf: Tensor
    root: Root | None  # what its vectors were made from; None: it could not be followed


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
    weights: AttentionWeights | None = None  # where direct terms are wanted by key
    values: SavedTensor | None = None

    @property
    def edge_distance(self) -> Tensor | None:
        """Row: how far the edges are from what the heads gave, added up over heads; they are found in different ways."""
        if self.heads is None:
            return None
        if self.top is not None:
            return (self.top.total - self.heads.sum(1)).abs()
        return None if self.edge_sums is None else (self.edge_sums - self.heads).abs().sum(1)


@dataclass
class BlockTerm:
    """The output of one block as it enters the residual sum."""

    layer: int
    kind: str
    output: Tensor
    given: Tensor | None = None  # row key
    by_position: bool = True  # whether its output has a vector for each position of the stack
    leaf: Tensor | None = None  # its output in the stream without branches, for `direct`


@dataclass
class FinalStream:
    """The stream after its last block, and the same sum with every block's output as a leaf."""

    stream: Tensor
    shadow: Tensor
    gradient: Tensor | None = None


@dataclass
class TermSelection:
    """The terms that are collected beside the entrances of layers."""

    heads: bool = False
    edges: bool = False
    edges_top: int | None = None  # only so many of them, the strongest
    blocks: bool = False
    direct: bool = False
    direct_keys: bool = False  # also by the key that was attended to


@dataclass
class Crossing:
    """The term of a tensor from an earlier layer where a later one uses it."""

    born: int
    layer: int
    given: Tensor  # row


@dataclass
class Replayed:
    """A pass on other input vectors: those of the recorded pass, each multiplied by a number."""

    stacks: list[Stack]
    roots: list[int | None]  # the stack to which each root belongs, in their order
    factors: list[Tensor]  # row position, for each stack
    through: bool = False  # whether positions that an earlier stack made are made anew


#: Axes of rows and positions: the usual order; several streams in front; positions first; channels in between.
_ORDERS = ((0, 1), (1, 2), (1, 0), (0, 2))


class Observer:
    """The layers of one pass."""

    def __init__(
        self,
        model: nn.Module,
        inputs: ModelInputs,
        wanted: TermSelection,
        replayed: Replayed | None = None,
        attending: Collection[nn.Module] = (),
    ) -> None:
        self.wanted = wanted
        self.replayed = replayed
        self.rows, self.lengths = _shape_of(inputs)
        self._reads_ids = any(name.endswith("input_ids") for name in inputs)
        self._sees = holds_media(inputs)
        self.layers = Layers(model, self._begin)
        #: Lists of layers that hold a tower; empty: all.
        self._lists = self.layers.followed.lists_of(attending) if attending else set()
        self.side: int | None = None
        self.entrances: list[Entrance] = []
        self.stacks: list[Stack] = []
        self.shadows: list[Tensor | None] = []  # the entrance of each stack's stream without branches
        self.roots: list[Root] = []
        self.constants: list[tuple[OpSite, Tensor]] = []
        self.shadow_constants: list[Tensor] = []
        self.crossings: list[Crossing] = []
        self.attentions: list[Attention] = []
        self.blocks: list[BlockTerm] = []
        self.mixed_rows = False
        self.looks_back = False  # whether a layer uses what was made before the first one
        self._kept: dict[int, list[SavedTensor]] = {}
        self._hooks: list[RemovableHandle] = []
        self.last: FinalStream | None = None

    # ---- layers --------------------------------------------------------------------------------------------------

    def watch(self, scope: PassScope) -> None:
        """Follow layers and their parts while a pass runs."""
        self.layers.watch(scope)

    @property
    def layer(self) -> int:
        """The layer that runs, from 1; 0 before the first."""
        return self.layers.number

    @property
    def between_towers(self) -> bool:
        """True after several towers, outside of all layers: what meets there are their outputs."""
        return self._sees and len(self.stacks) > 1 and not self.layers.followed.inside

    def mark(self, kind: str) -> None:
        """Note the kind of block that runs."""
        self.layers.mark(kind)

    def _begin(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a layer with its entrance in place of its vectors; None where no vectors enter."""
        if self._lists and self.layers.followed.beginning not in self._lists:
            return None  # the stages of a convolutional network hold no vectors of positions
        found = self._hidden(args, kwargs) if torch.is_grad_enabled() else None
        if found is None:
            return None
        with torch._C.DisableTorchFunction():  # what is done here is no part of the model
            return self._entered(found, args, kwargs)

    def _hidden(self, args: Any, kwargs: Any) -> Tensor | None:
        """The tensor with one vector for each position: the first one that depends on the inputs, if one does."""
        named = [kwargs[name] for name in ("hidden_states", "x", "input") if name in kwargs]
        found = [x for x in tensors(args, named, kwargs) if x.is_floating_point() and x.ndim >= 3]
        if self._sees:  # queries that a model has learned come first, and depend on no input
            return next(iter(found), None)
        live = [x for x in found if x.requires_grad]
        return next(iter(live or found), None)

    def _entered(self, vectors: Tensor, args: Any, kwargs: Any) -> Any:
        lineage = lineage_of(vectors)
        side = lineage.side if lineage is not None else None
        first = not vectors.requires_grad or (lineage is not None and side is None)
        first = first or (self._sees and self._takes_new_ids(vectors))
        if first and not vectors.requires_grad and self.layers.followed.continues:
            raise AnatomyError(
                f"layer {self.layers.number + 1} takes vectors that were cut off from those of the layer before it (by a "
                "hook, or outside of torch), so that nothing can be traced through it; see docs/explain.md"
            )
        if first:
            place = self._placed(vectors)
            if place is None:
                return None
        self.layers.number += 1
        if first and vectors.ndim == 4 and self._sees and not vectors.requires_grad:
            return self._map_entered(vectors, args, kwargs)
        if first:
            assert place is not None
            axes, root = place
            side = len(self.stacks)
            items = max(1, vectors.shape[axes[0]] // self.rows) if self._sees else 1
            if self.replayed is not None:
                # As recorded: what comes before the first layer is no part of the map.
                recorded = self.replayed.stacks[side].entrance
                assert recorded.vectors is not None
                kept = recorded.vectors * _along(self.replayed.factors[side], vectors, axes, items)
                if recorded.made is not None and recorded.after_tower and self.replayed.through:
                    kept = torch.where(_along(recorded.made, vectors, axes).bool(), vectors.detach(), kept)
            else:
                kept = vectors.detach().clone()
            entrance = Entrance(
                self.layer, side, 1, kept, axes, media=media_of(vectors) if self._sees else None, items=items
            )
            entrance.before = vectors if vectors.requires_grad and self.replayed is None else None
            leaf = kept.clone().requires_grad_()
            self.stacks.append(Stack(entrance, leaf, root))
            taken = leaf.clone()
        else:
            side = (self.side or 0) if side is None else side
            number = 1 + sum(e.stack == side for e in self.entrances)
            entrance = Entrance(self.layer, side, number, None, self._same_axes(vectors, side))
            taken = vectors.clone()
            held = self.keep(vectors)

            entrance.items = self.stacks[side].entrance.items

            def read(gradient: Tensor) -> None:
                entrance.given = by_position(held.tensor, gradient, entrance.axes, entrance.items)

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

    def _map_entered(self, feature_map: Tensor, args: Any, kwargs: Any) -> Any:
        """Enter a feature map as one vector for each of its places."""
        self.layers.number -= 1
        channels = 1 if self._channels_first(feature_map) else 3
        height, width = feature_map.movedim(channels, 1).shape[2:]
        vectors = feature_map.movedim(channels, 1).flatten(2).transpose(1, 2).contiguous()
        carry_media("flatten", (feature_map,), {}, vectors)
        inner = self._entered(vectors, (vectors,), {})
        if inner is None:
            return None
        self.entrances[-1].grid = int(height), int(width)
        with torch.enable_grad():
            entered = inner[0][0]
            taken = entered.transpose(1, 2).unflatten(2, (height, width)).movedim(1, channels)
        lineage = lineage_of(entered)
        if lineage is not None:
            lineage.shadow = None  # the stream has another form from here on
            remember(taken, lineage)
        original = lineage_of(feature_map) or Lineage(0, None)
        original.replaced = taken
        remember(feature_map, original)
        return mapped(args, lambda x: taken if x is feature_map else x), mapped(
            kwargs, lambda x: taken if x is feature_map else x
        )

    def _channels_first(self, feature_map: Tensor) -> bool:
        """Return True for (row, channel, height, width), by the first module of the layer that says so."""
        module = self.layers.followed.module
        for part in module.modules() if module is not None else ():
            if isinstance(part, nn.Conv2d) and part.in_channels == feature_map.shape[1]:
                first = True
            elif (isinstance(part, nn.LayerNorm) and part.normalized_shape[-1] == feature_map.shape[-1]) or (
                isinstance(part, nn.Linear) and part.in_features == feature_map.shape[-1]
            ):
                first = False
            else:
                continue
            if feature_map.shape[1] == feature_map.shape[-1]:
                raise AnatomyError(
                    f"a feature map of shape {tuple(feature_map.shape)} has as many channels as columns, and they cannot be "
                    "told apart; pass an image of another size"
                )
            return first
        return True

    # ---- positions -----------------------------------------------------------------------------------------------

    def _takes_new_ids(self, vectors: Tensor) -> bool:
        """Return True if vectors are made of tokens that no stack has taken yet: a language model after its vision tower."""
        if self.layers.followed.continues:
            return False
        if self.replayed is not None:
            later = self.replayed.stacks[len(self.stacks) :]
            return bool(later) and later[0].entrance.layer == self.layer + 1
        owned = [stack.root.positions for stack in self.stacks if stack.root is not None]
        fresh = [root for root in self.roots if all(root.positions is not positions for positions in owned)]
        return any(_reaches(vectors, root) for root in fresh)

    def _placed_media(self, vectors: Tensor) -> tuple[int, int] | None:
        """Axes of rows and positions of vectors made of images or sound, or learned by the model.

        A wrong guess would show: the terms of each row must add up to the number of that row.
        """
        if vectors.shape[0] % self.rows == 0:
            return 0, 1
        if vectors.shape[1] == self.rows:
            return 1, 0
        if media_of(vectors) is None:
            return None
        raise AnatomyError(
            f"a tower takes {vectors.shape[0]} images or windows for {self.rows} rows, so that its terms belong to no row; "
            "pass one row at a time"
        )

    def _placed(self, vectors: Tensor) -> tuple[tuple[int, int], Root | None] | None:
        """Axes of rows and positions of the vectors that enter a stack, and what they were made from.

        Decided by where one entry of them comes from, not by the sizes of axes, which may coincide.
        """
        if self.replayed is not None:
            recorded = self.replayed.stacks[len(self.stacks)]
            return recorded.entrance.axes, recorded.root
        if self._sees and not vectors.requires_grad:
            axes = self._placed_media(vectors)
            return None if axes is None else (axes, None)
        roots = self.roots if vectors.requires_grad else []
        for root, axes in product(roots, _ORDERS):
            if not self._comes_from(vectors, axes, root):
                continue
            if root.positions.moved and (not self.stacks or vectors.shape[axes[1]] not in self.lengths):
                raise AnatomyError(
                    "the code of this model moves or adds tokens before its first layer, which takes "
                    f"{vectors.shape[axes[1]]}, so that its terms belong to no token of the input; analyze() may still "
                    "support it"
                )
            for other in roots:
                if other.positions is not root.positions and _reaches(vectors, other):
                    raise AnatomyError(
                        "the vectors that enter the first layer are made of tokens that this model looks up in pieces or at "
                        "other positions, so that its terms belong to no token; analyze() may still support it"
                    )
            return axes, root
        fitting = [axes for axes in _ORDERS if any(self._fits(vectors, axes, length) for length in self.lengths)]
        if not fitting and not roots:
            return None  # no vectors of positions
        if vectors.requires_grad or len(fitting) > 1 or self._reads_ids:
            raise AnatomyError(
                f"the vectors that enter the first layer, of shape {tuple(vectors.shape)}, are not one for each of the "
                f"{', '.join(map(str, sorted(self.lengths)))} input positions, so that this model's terms belong to no "
                "token; analyze() may still support it"
            )
        return fitting[0], None

    def _fits(self, vectors: Tensor, axes: tuple[int, int], length: int) -> bool:
        rows, positions = axes
        shape = vectors.shape
        return max(axes) < vectors.ndim and shape[rows] == self.rows and shape[positions] == length

    def _comes_from(self, vectors: Tensor, axes: tuple[int, int], root: Root) -> bool:
        """Return True if rows and positions of the vectors are those of the root: one entry is followed back to it.

        It comes from its own position alone, or, where neighbours are mixed in, from some positions and its own.
        """
        rows, positions = axes
        last = root.length - 1
        own = [0, last] if last else [self.rows - 1, 0]
        if self._sees and last:
            own[1] = self._last_of_text(vectors, root)
        shape = vectors.shape
        if max(axes) >= vectors.ndim or shape[rows] != self.rows or shape[positions] < root.length:
            return False
        index: list[Any] = [slice(None)] * vectors.ndim
        index[rows], index[positions] = own
        entry = vectors[tuple(index)]
        # Random, so that a normalization, whose result adds up to a constant, does not cancel.
        drawn = torch.randn(entry.shape, generator=torch.Generator().manual_seed(0)).to(entry)
        (gradient,) = torch.autograd.grad((entry * drawn).sum(), root.leaf, retain_graph=True, allow_unused=True)
        if gradient is None:
            return False
        reached: list[list[int]] = gradient.movedim(root.axes, (0, 1)).flatten(2).abs().sum(-1).nonzero().tolist()
        if own not in reached or reached == [own]:
            return reached == [own]
        fitting = [order for order in _ORDERS if self._fits(vectors, order, root.length)]
        return axes in fitting and (len(reached) < root.length or (last <= 1 and len(fitting) == 1))

    def _last_of_text(self, vectors: Tensor, root: Root) -> int:
        """The last position of the first row whose token is used: a placeholder's is overwritten by an image."""
        drawn = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0)).to(vectors)
        (gradient,) = torch.autograd.grad(vectors, root.leaf, drawn, retain_graph=True, allow_unused=True)
        if gradient is None:
            return root.length - 1
        used = gradient.movedim(root.axes, (0, 1)).flatten(2).abs().sum(-1)[0].nonzero().flatten()
        return int(used[-1]) if len(used) else root.length - 1

    def positions_of_text(self, stack: Stack) -> Tensor:
        """Row and position: True where the vectors that enter a stack were made of their token."""
        assert stack.entrance.before is not None and stack.root is not None
        before, root = stack.entrance.before, stack.root
        drawn = torch.randn(before.shape, generator=torch.Generator().manual_seed(0)).to(before)
        heard = list(self.constants), list(self.crossings)  # what this brings is no term
        (gradient,) = torch.autograd.grad(before, root.leaf, drawn, retain_graph=True, allow_unused=True)
        self.constants, self.crossings = heard
        shape = before.movedim(stack.entrance.axes, (0, 1)).shape[:2]
        used = torch.zeros(shape, dtype=torch.bool)
        if gradient is not None:
            by_token = gradient.movedim(root.axes, (0, 1)).flatten(2).abs().sum(-1) > 0
            used[:, : by_token.shape[1]] = by_token[:, : shape[1]].cpu()
        return used

    def _same_axes(self, vectors: Tensor, side: int) -> tuple[int, int]:
        """The stack's axes at a later layer; elsewhere the usual ones, and then states belong to no position."""
        entrance = self.stacks[side].entrance
        assert entrance.vectors is not None
        return entrance.axes if vectors.ndim == entrance.vectors.ndim else (0, 1)

    def root_stacks(self) -> list[int | None]:
        """The stack to which each root belongs: the one whose vectors were made from the same positions."""
        found: list[int | None] = []
        for root in self.roots:
            owners = [n for n, stack in enumerate(self.stacks) if stack.root and stack.root.positions is root.positions]
            found.append(owners[0] if owners else None)
        return found

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
        places: list[Entrance | BlockTerm | Crossing] = [*self.entrances, *self.blocks, *self.crossings]
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
        self.roots, self.attentions, self.blocks = [], [], []
        for entrance in self.entrances:
            entrance.before = None
        for stack in self.stacks:
            stack.leaf = stack.leaf.detach()
        self.shadows, self.shadow_constants, self.last, self._kept = [], [], None, {}

    # ---- heard from the pass -------------------------------------------------------------------------------------

    def looked_up(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """Follow token ids; what a table gives for them belongs to their positions, wherever it enters."""
        if self._sees:
            carry_media(name, args, kwargs, out)
        root = look_up(self.layer, name, args, kwargs, out)
        if root is None:
            follow(name, args, kwargs, out)
            return out
        return self.add_root(root)

    def add_root(self, root: Root) -> Tensor:
        """Make a root a leaf of the backward pass; gives what takes its place."""
        vectors = root.leaf.detach()
        if self.replayed is not None:
            side = self.replayed.roots[len(self.roots)]
            if side is not None:
                vectors = vectors * _along(self.replayed.factors[side][:, : root.length], vectors, root.axes)
        root.leaf = vectors.clone().requires_grad_()
        self.roots.append(root)
        taken = root.leaf.clone()
        remember(taken, Lineage(self.layer, None))
        return taken

    def keep(self, tensor: Tensor) -> SavedTensor:
        """The numbers of a tensor for the backward pass."""
        kept = SavedTensor(tensor)
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

    def constant(self, out: Tensor, value: Callable[[], Any], kind: str | None) -> OpSite:
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
        """Return `attention` or `cross_attention`, by whose values these are."""
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
        if self.wanted.direct_keys:
            found.weights, found.values = weights, held

        def read(gradient: Tensor) -> None:
            heads = with_heads(kept.tensor * gradient, self.rows) if by_head else None
            if heads is None:
                found.by_head = False
                return
            found.heads = heads.sum((-1, -2))
            if not self.wanted.edges or weights is None:
                return
            if self.wanted.edges_top is None:
                found.edges, found.edge_sums = all_edges(weights, held.tensor, gradient, self.rows)
            else:
                found.top = strongest_edges(weights, held.tensor, gradient, self.rows, self.wanted.edges_top)

        self.listen(out, read)

    def block(self, out: Tensor, branch: Tensor, lineage: Lineage, shifts: tuple[OpSite, ...]) -> None:
        """A block's output enters the residual sum; `shifts`: what was added to the stream before it."""
        _goes_on(shifts)
        if self.replayed is not None or not (self.wanted.blocks or self.wanted.direct):
            return
        found = lineage_of(branch)
        for part in (branch,) if found is None or found.parts is None else found.parts:
            mine = lineage_of(part)
            block = BlockTerm(self.layer, (mine.kind if mine is not None else None) or "feed_forward", part)
            self.blocks.append(block)
            if self.wanted.blocks and part.requires_grad:
                # At the sum: a part may be used once more on its way there (`y + g(y)`), and that use is another part's.
                self.listen(out, self._block_reader(block, self.keep(part)))
            if lineage.shadow is not None:
                block.leaf = part.detach().clone().requires_grad_()
                lineage.shadow = lineage.shadow + block.leaf
        if lineage.shadow is not None:
            self.last = FinalStream(out, lineage.shadow)
            self.listen(out, self._last_reader(self.last))

    def _block_reader(self, block: BlockTerm, kept: SavedTensor) -> Callable[[Tensor], None]:
        """Read what a part of the residual sum gave, where its positions can be told."""
        rows, positions = axes = self.entrances[-1].axes
        vectors = self.stacks[self.side or 0].entrance.vectors
        assert vectors is not None
        length, items = vectors.shape[positions], self.stacks[self.side or 0].entrance.items

        def read(gradient: Tensor) -> None:
            given, shape = kept.tensor, kept.tensor.shape
            if len(shape) == 2 and axes == (0, 1) and shape[0] == self.rows * length:
                given, gradient = (x.unflatten(0, (self.rows, length)) for x in (given, gradient))
                shape = given.shape
            block.by_position = len(shape) > max(axes) and (shape[rows], shape[positions]) == (
                self.rows * items,
                length,
            )
            if block.by_position:
                block.given = by_position(given, gradient, axes, items)

        return read

    def _last_reader(self, last: FinalStream) -> Callable[[Tensor], None]:
        def read(gradient: Tensor) -> None:
            if last is self.last:
                last.gradient = gradient

        return read

    def shadow_constant(self, value: Tensor) -> Tensor:
        """Something added along the stream, as a leaf of its own."""
        leaf = value.detach().clone().requires_grad_()
        self.shadow_constants.append(leaf)
        return leaf


def _goes_on(shifts: tuple[OpSite, ...]) -> None:
    """The stream goes on with these constants in it: they stand after a block, not before one."""
    for place in shifts:
        place.on_stream = True


def _reaches(vectors: Tensor, root: Root) -> bool:
    """Return True if vectors depend on a root."""
    drawn = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0)).to(vectors)
    (gradient,) = torch.autograd.grad(vectors, root.leaf, drawn, retain_graph=True, allow_unused=True)
    return gradient is not None and bool(gradient.any())


def by_position(vectors: Tensor, gradient: Tensor, axes: tuple[int, int], items: int = 1) -> Tensor:
    """`x_k · gradient_k` for each row and position; positions of several items of a row stand one after the other."""
    given = (vectors * gradient).movedim(axes, (0, 1)).flatten(2).sum(-1)
    return given if items == 1 else given.reshape(len(given) // items, -1)


def _along(factors: Tensor, like: Tensor, axes: tuple[int, int], items: int = 1) -> Tensor:
    """Factors of rows and positions, shaped to multiply vectors."""
    if items != 1:
        factors = factors.reshape(len(factors) * items, -1)
    shaped = factors.to(like.dtype).reshape(*factors.shape, *[1] * (like.ndim - 2))
    return shaped.movedim((0, 1), axes)


def _shape_of(inputs: ModelInputs) -> tuple[int, set[int]]:
    """The number of rows, and their possible numbers of positions."""
    found = [x.shape for _, x in sequences_first(inputs) if x.ndim >= 2]
    if not found:
        raise InputError("inputs hold no tensor of rows and positions, which explain() needs")
    rows = rows_of(inputs) if holds_media(inputs) else int(found[0][0])
    return rows, {int(shape[1]) for shape in found}
