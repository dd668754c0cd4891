"""One run: the frozen forward pass, one backward pass, and the terms that they give, with their proof."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from normlens.anatomy.inputs import holds_media, is_shared, modality_of
from normlens.anatomy.interface import use_implementation
from normlens.anatomy.scope import PassScope
from normlens.attribution.edges import TopEdges, all_edges, with_heads
from normlens.attribution.frozen import FrozenPass
from normlens.attribution.layers import OpSite
from normlens.attribution.lookups import Positions, Root, mark_ids, mark_media
from normlens.attribution.observer import BlockTerm, Observer, Replayed, TermSelection, by_position
from normlens.attribution.patches import expose_hidden_ops
from normlens.attribution.sharing import BiasShares
from normlens.decompose.devices import doubles_on_host
from normlens.errors import AnatomyError
from normlens.types import ModelInputs

#: How far `direct` may be from the number: by the type that the model computes in, since it is added up along the stream.
_DIRECT_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}

#: Attention implementations whose operations the rules can see; any other is run as the family's eager one.
_VISIBLE = ("eager", "sdpa")
#: One number for each row of a model's output.
Select = Callable[[Any], Tensor]
#: Stack, layer (0: the head) and block, or kind of attention.
Where = tuple[int, int, str]


@dataclass(frozen=True)
class Cut:
    """The entrance of a layer: what its vectors gave, and the sum with all that still enters after it."""

    stack: int
    number: int
    states: Tensor  # row key
    total: Tensor  # row


@dataclass(frozen=True)
class StackOrigin:
    """The origin of the vectors that enter a stack."""

    input: str  # the model's input that they were made of; empty for vectors that the model has learned
    reached: bool  # whether terms belong to them; those of a tower stand at the model that takes its output
    items: int  # images of a row
    grid: tuple[int, int] | None = None  # height and width of a feature map
    carried: bool = False  # whether a later stack's terms were carried on to it
    layer: nn.Module | None = None  # its first layer


@dataclass
class Terms:
    """The terms of one number of each row."""

    value: Tensor  # row
    tokens: list[Tensor]  # for each stack: row key
    cuts: list[Cut]
    constants: dict[Where, Tensor]  # row
    absolute: Tensor  # row: the sum of absolute terms
    words: list[Tensor | None] = field(default_factory=list)  # for each stack: what words gave beyond an average one
    heads: dict[Where, Tensor] = field(default_factory=dict)  # row head
    edges: dict[Where, Tensor] = field(default_factory=dict)  # row head query key
    top_edges: dict[Where, TopEdges] = field(default_factory=dict)
    edge_distances: list[tuple[int, int, Tensor]] = field(default_factory=list)  # stack, layer; row: edges from heads
    blocks: dict[Where, Tensor] = field(default_factory=dict)  # row key
    direct: dict[Where, Tensor] = field(default_factory=dict)  # row head; head 0: no head's
    direct_keys: dict[Where, Tensor] = field(default_factory=dict)  # row key: what attention to each key gave directly
    direct_entrance: Tensor | None = None  # row key
    direct_biases: Tensor | None = None  # row
    stacks: list[StackOrigin] = field(default_factory=list)
    moved_ids: list[Tensor | None] = field(
        default_factory=list
    )  # for each stack: row position, where its code moved them

    def row(self, row: int) -> Terms:
        """The terms of one row alone."""

        mine = slice(row, row + 1)

        def one(found: dict[Where, Tensor]) -> dict[Where, Tensor]:
            return {where: given[mine] for where, given in found.items()}

        def some(given: Tensor | None) -> Tensor | None:
            return None if given is None else given[mine]

        return Terms(
            self.value[mine],
            [t[mine] for t in self.tokens],
            [Cut(c.stack, c.number, c.states[mine], c.total[mine]) for c in self.cuts],
            one(self.constants),
            self.absolute[mine],
            [some(given) for given in self.words],
            one(self.heads),
            one(self.edges),
            {where: given.row(row) for where, given in self.top_edges.items()},
            [(stack, layer, given[mine]) for stack, layer, given in self.edge_distances],
            one(self.blocks),
            one(self.direct),
            one(self.direct_keys),
            some(self.direct_entrance),
            some(self.direct_biases),
            self.stacks,
            [some(ids) for ids in self.moved_ids],
        )

    def beyond_baseline(self) -> Terms:
        """The same sum, with what an average word would have given in each place under `biases` instead of `tokens`.

        A side whose words cannot be reached (vectors were handed in, not tokens) stays as it is.
        """
        tokens, constants = list(self.tokens), dict(self.constants)
        for stack, given in enumerate(self.words):
            if given is not None:
                constants[stack, 0, "baseline"] = (tokens[stack] - given).sum(1)
                tokens[stack] = given
        return replace(self, tokens=tokens, constants=constants)

    def with_hidden(self, hidden: Sequence[bool]) -> Terms:
        """The same sum, with the constants of stacks that are not shown under those of the last one that is."""
        shown = [number for number, out in enumerate(hidden) if not out]
        constants: dict[Where, Tensor] = {}
        for (stack, layer, block), given in self.constants.items():
            where = (shown[-1], 0, "head") if hidden[stack] else (stack, layer, block)
            constants[where] = constants[where] + given if where in constants else given
        return replace(self, constants=constants)

    def on_real(self, real: Sequence[Sequence[int]]) -> Terms:
        """The same sum of one row, with what other positions than the real ones of each stack gave under `biases`."""
        tokens, constants = list(self.tokens), dict(self.constants)
        for stack, places in enumerate(real):
            kept = torch.zeros_like(tokens[stack])
            kept[:, list(places)] = tokens[stack][:, list(places)]
            rest = (tokens[stack] - kept).sum(1)
            if bool(rest.any()):
                where = (stack, 0, "baseline")
                constants[where] = constants.get(where, torch.zeros_like(rest)) + rest
                tokens[stack] = kept
        return replace(self, tokens=tokens, constants=constants)

    @property
    def distances(self) -> Tensor:
        """Row and entrance: how far the sum is from the number."""
        return torch.stack([(cut.total - self.value).abs() for cut in self.cuts], 1)

    @property
    def gaps(self) -> Tensor:
        """Row and entrance: the distance over the sum of absolute terms (over the number, where that is larger)."""
        scale = torch.maximum(self.absolute, self.value.abs()).clamp_min(torch.finfo(torch.float64).tiny)
        return self.distances / scale.unsqueeze(1)


class Run:
    """A model's frozen pass on one batch; several numbers of its output may be explained one after the other."""

    def __init__(
        self,
        model: nn.Module,
        inputs: ModelInputs,
        wanted: TermSelection,
        *,
        integrated: bool,
        record: bool = False,
        attending: Collection[nn.Module] = (),
    ) -> None:
        self._model, self._inputs, self._wanted = model, inputs, wanted
        self._sees, self._attending = holds_media(inputs), attending
        self.observer = Observer(model, inputs, wanted, attending=attending)
        self._frozen = FrozenPass(self.observer.rows, self.observer, integrated=integrated)
        if record:
            self._frozen.tape = []
        try:
            self.output = run_frozen(model, inputs, self._frozen, self.observer)
        except BaseException:
            self.observer.release()
            raise
        self._root_stacks = self.observer.root_stacks()
        if not self.observer.stacks:
            raise AnatomyError(
                "no list of layers took input vectors in this model, so there is nothing to attribute to; see "
                "docs/explain.md"
            )

    def explain(self, select: Select, *, again: bool = False, through: bool = False) -> Terms:
        """The terms of one number per row.

        Args:
            select: Picks the numbers out of the model's output.
            again: Another number will be asked for.
            through: Carry the terms of positions that an earlier stack made (image patches in a language model) on to it.
        """
        try:
            terms = self._explained(select, again, through)
        except BaseException:
            self.release()
            raise
        if not again:
            self.release()
        return terms

    def release(self) -> None:
        """Let the graph go."""
        self.observer.release()
        self.output = None

    def _explained(self, select: Select, again: bool, through: bool) -> Terms:
        observer = self.observer
        value = select(self.output)
        if not value.requires_grad:
            raise AnatomyError(
                "the model cuts the way from the input vectors to the number (a detached state, or a pass "
                "without gradients inside); see docs/explain.md"
            )
        observer.forget_gradients()
        leaves = [stack.leaf for stack in observer.stacks] + [root.leaf for root in observer.roots]
        for leaf in leaves:
            leaf.grad = None
        # The way from the table of words to the first layer is gone through once more, for `words`.
        kept = again or self._wanted.direct or observer.looks_back or self._sees
        torch.autograd.backward(value.sum(), inputs=leaves, retain_graph=kept)
        reached = [stack.leaf.grad is not None for stack in observer.stacks]
        if self._sees:
            self._find_made()
        before = list(reached)
        if through:
            self._carry_on(reached)
        carried = [now and not earlier for now, earlier in zip(reached, before, strict=True)]
        terms = self._collect(value.detach().cpu().double(), through)
        terms.stacks = [
            StackOrigin(
                stack.entrance.media or _name_of(stack.root),
                reached[number],
                stack.entrance.items,
                stack.entrance.grid,
                carried[number],
                observer.layers.followed.calls[stack.entrance.layer - 1],
            )
            for number, stack in enumerate(observer.stacks)
        ]
        return terms

    def _find_made(self) -> None:
        """Find the positions of each stack that were made of images or sound: all that were made of no token."""
        stacks = self.observer.stacks
        for stack in stacks:
            entrance = stack.entrance
            if stack.root is None or entrance.before is None or entrance.made is not None:
                continue
            entrance.made = ~self.observer.positions_of_text(stack)
            entrance.after_tower = any(s.entrance.media and s.entrance.layer < entrance.layer for s in stacks)

    def _carry_on(self, reached: list[bool]) -> None:
        """Continue the backward pass from the positions that an earlier stack made, through that stack."""
        stacks = self.observer.stacks
        for stack in reversed(stacks):
            entrance = stack.entrance
            if entrance.made is None or not entrance.after_tower or stack.leaf.grad is None or entrance.before is None:
                continue
            chosen = entrance.made.movedim((0, 1), entrance.axes)
            chosen = chosen.reshape(*chosen.shape, *[1] * (stack.leaf.ndim - 2)).to(stack.leaf.device)
            before = [s.leaf for s in stacks if s.entrance.layer < entrance.layer]
            onwards = torch.where(chosen, stack.leaf.grad, 0.0)
            gradients = torch.autograd.grad(entrance.before, before, onwards, retain_graph=True, allow_unused=True)
            for leaf, gradient in zip(before, gradients, strict=True):
                if gradient is not None:
                    leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
        for number, stack in enumerate(stacks):
            reached[number] = stack.leaf.grad is not None

    def _collect(self, value: Tensor, through: bool) -> Terms:
        observer = self.observer
        rows = observer.rows
        zero = torch.zeros(rows, dtype=torch.float64)
        tokens: list[Tensor] = []
        for stack in observer.stacks:
            gradient = stack.leaf.grad if stack.leaf.grad is not None else torch.zeros_like(stack.leaf)
            entrance = stack.entrance
            entrance.given = by_position(stack.leaf.detach(), gradient, entrance.axes, entrance.items)
        observer.to_host()
        for stack in observer.stacks:
            assert stack.entrance.given is not None, "the entrance of a stack was read above"
            given = stack.entrance.given.clone()
            if through and stack.entrance.made is not None and stack.entrance.after_tower:
                given = given.masked_fill(stack.entrance.made, 0.0)
            tokens.append(given)
        entered = [given.sum(1) for given in tokens]  # by the vectors of each stack's own inputs
        looked_up: list[tuple[int, Tensor]] = []
        for side, root in zip(observer.root_stacks(), observer.roots, strict=True):
            if root.leaf.grad is None:
                continue
            if side is None:
                raise AnatomyError(
                    f"what is looked up for {root.positions.name} enters this model, but no layer takes vectors of these "
                    "positions, so that its terms belong to no token"
                )
            given = by_position(root.leaf.detach(), root.leaf.grad, root.axes).cpu().double()
            _add_positions(tokens[side], given)
            looked_up.append((root.layer, given.sum(1)))
        absolute = sum((t.abs().sum(1) for t in tokens), zero.clone())
        constants: dict[Where, Tensor] = {}
        for place, given in observer.constants:
            absolute = absolute + given.abs()
            where = self._where(place)
            constants[where] = constants.get(where, zero) + given
        cuts = []
        for entrance in observer.entrances:
            states = zero.unsqueeze(1) if entrance.given is None else entrance.given
            total = states.sum(1)
            for other, given in zip(observer.stacks, entered, strict=True):
                if other.entrance.layer > entrance.layer:
                    total = total + given
            for place, given in observer.constants:
                if place.layer >= entrance.layer:
                    total = total + given
            for layer, given in looked_up:
                if layer >= entrance.layer:
                    total = total + given
            for crossing in observer.crossings:
                if crossing.born < entrance.layer <= crossing.layer:
                    total = total + crossing.given
            cuts.append(Cut(entrance.stack, entrance.number, states, total))
        terms = Terms(value, tokens, cuts, constants, absolute, self._words(tokens))
        for stack in observer.stacks:
            moved = stack.root is not None and stack.root.positions.moved
            terms.moved_ids.append(stack.root.ids if stack.root is not None and moved else None)
        self._collect_blocks(terms)
        if self._wanted.direct:
            self._collect_direct(terms)
        return terms

    def _words(self, tokens: list[Tensor]) -> list[Tensor | None]:
        """For each stack, `(w_k - mean of all words) · ∂value/∂w_k` at the table in which words are looked up.

        What a model does between its table and its first layer is frozen like the rest, so this is a share of `tokens`.
        """
        observer = self.observer
        heard = list(observer.constants), list(observer.crossings)  # what follows goes back through the same places
        sides = observer.root_stacks()
        found: list[Tensor | None] = []
        for side, stack in enumerate(observer.stacks):
            given = torch.zeros_like(tokens[side])
            reached = False
            for owner, root in zip(sides, observer.roots, strict=True):
                if owner != side or root.table is None:
                    continue
                gradient = root.leaf.grad
                if stack.entrance.before is not None and stack.leaf.grad is not None:
                    (way,) = torch.autograd.grad(
                        stack.entrance.before, root.leaf, stack.leaf.grad, retain_graph=True, allow_unused=True
                    )
                    if way is not None:
                        gradient = way if gradient is None else gradient + way
                if gradient is not None:
                    reached = True
                    _add_positions(given, self._beyond_mean(root, gradient))
            if reached and stack.entrance.made is not None:  # what is no word has no average word
                given = torch.where(stack.entrance.made, tokens[side], given)
            found.append(given if reached else None)
        observer.constants, observer.crossings = heard
        return found

    def _beyond_mean(self, root: Root, gradient: Tensor) -> Tensor:
        """Row and position: `(w_k - mean of the table) · gradient`; 0 at padding, which holds no token."""
        assert root.table is not None
        exact = torch.promote_types(root.table.dtype, torch.float32)
        average = root.table.detach().mean(0, dtype=exact).to(root.leaf)
        given = by_position(root.leaf.detach() - average, gradient, root.axes).cpu().double()
        mask = self._inputs.get(root.positions.name.replace("input_ids", "attention_mask"))
        if isinstance(mask, Tensor) and mask.shape == given.shape:
            given = given.masked_fill(mask.cpu() == 0, 0.0)
        return given

    def _where(self, place: OpSite) -> Where:
        """Stack, layer and block of a constant: after a stack's last layer it is the head's."""
        observer = self.observer
        if place.layer == 0:
            return 0, 0, "head"
        entrance = observer.entrances[place.layer - 1]
        last = place.layer == len(observer.entrances) or observer.entrances[place.layer].stack != entrance.stack
        if last and not place.inside:
            return entrance.stack, 0, "head"
        return entrance.stack, entrance.number, observer.layers.block_at(place)

    def _site(self, layer: int) -> tuple[int, int]:
        entrance = self.observer.entrances[layer - 1]
        return entrance.stack, entrance.number

    def _collect_blocks(self, terms: Terms) -> None:
        unplaced: set[tuple[int, str]] = set()  # stacks and kinds of attention of which some layer cannot be read
        for attention in self.observer.attentions:
            where = (*self._site(attention.layer), attention.kind)
            if not attention.by_head:
                unplaced.add((where[0], where[2]))
            if self._wanted.heads and not _add(terms.heads, where, attention.heads):
                unplaced.add((where[0], where[2]))
            if self._wanted.edges:
                if attention.edge_distance is not None:
                    terms.edge_distances.append((*where[:2], attention.edge_distance))
                if not _add(terms.edges, where, attention.edges):
                    unplaced.add((where[0], where[2]))
                if attention.top is not None:
                    several = where in terms.top_edges  # parts of one attention: their edges are the same ones
                    terms.top_edges.pop(where, None) if several else terms.top_edges.update({where: attention.top})
        for found in (terms.heads, terms.edges):
            for where in [where for where in found if (where[0], where[2]) in unplaced]:
                del found[where]  # a layer that is missing would read as zero
        placed = all(block.by_position for block in self.observer.blocks)
        for block in self.observer.blocks:
            if (
                self._wanted.blocks
                and placed
                and not _add(terms.blocks, (*self._site(block.layer), block.kind), block.given)
            ):
                placed = False
        if not placed:
            terms.blocks.clear()

    def _collect_direct(self, terms: Terms) -> None:
        """A second backward pass along the stream alone, with every block's output as a leaf."""
        observer = self.observer
        last = observer.last
        if last is None or last.gradient is None:
            return
        leaves = [block.leaf for block in observer.blocks if block.leaf is not None]
        start = observer.shadows[observer.entrances[-1].stack]
        wanted = [x for x in (start, *leaves, *observer.shadow_constants) if x is not None]
        for leaf in wanted:
            leaf.grad = None
        torch.autograd.backward(last.shadow, last.gradient, inputs=wanted, retain_graph=True)
        sent: dict[tuple[str, int], Tensor] = {}
        if start is not None and start.grad is not None:
            sent["entrance", 0] = by_position(start.detach(), start.grad, observer.entrances[-1].axes)
        for number, leaf in enumerate(observer.shadow_constants):
            if leaf.grad is not None:
                sent["added", number] = self._along_stream(leaf)
        for number, block in enumerate(observer.blocks):
            if block.leaf is not None and block.leaf.grad is not None:
                sent["block", number] = self._along_stream(block.leaf)
                by_head = self._direct_heads(block)
                if by_head is not None:
                    sent["heads", number] = by_head
                if self._wanted.direct_keys:
                    self._collect_direct_keys(block, terms)
        home = dict(zip(sent, doubles_on_host(list(sent.values())), strict=True))
        zero = torch.zeros(observer.rows, dtype=torch.float64)
        terms.direct_entrance = home.get(("entrance", 0))
        found = zero if terms.direct_entrance is None else terms.direct_entrance.sum(1)
        for number, block in enumerate(observer.blocks):
            if ("block", number) in home:
                whole, heads = home["block", number], home.get(("heads", number))
                # Head 0: what no head gave, such as the output's bias; then each head.
                each = whole.unsqueeze(1)
                if heads is not None:
                    each = torch.cat([(whole - heads.sum(1)).unsqueeze(1), heads], 1)
                where = (*self._site(block.layer), block.kind)
                before = terms.direct.get(where, zero.unsqueeze(1))
                width = max(each.shape[1], before.shape[1])  # not every part of a block need have heads
                terms.direct[where] = nnf.pad(before, (0, width - before.shape[1])) + nnf.pad(
                    each, (0, width - each.shape[1])
                )
                found = found + whole
        # What is added along the stream belongs to no input, and so does what the head adds after it.
        after = [given for place, given in observer.constants if place.blocks == len(observer.blocks)]
        added = [given for (what, _), given in home.items() if what == "added"]
        terms.direct_biases = sum([*after, *added], zero)
        distance = (found + terms.direct_biases - terms.value).abs()
        gap = distance / terms.absolute.clamp_min(torch.finfo(torch.float64).tiny)
        allowed = _DIRECT_TOLERANCE[last.stream.dtype]
        if not bool((gap <= allowed).all()):  # a stream of another kind: nothing rather than a wrong number
            terms.direct, terms.direct_entrance, terms.direct_biases = {}, None, None

    def _along_stream(self, leaf: Tensor) -> Tensor:
        """Row: what a leaf of the stream without branches gave."""
        assert leaf.grad is not None, "leaves without a gradient were left out"
        return self.observer.by_row(leaf.detach() * leaf.grad)

    def _direct_heads(self, block: Any) -> Tensor | None:
        """The direct terms of the heads of a block (row head); None where it has no heads that can be told apart."""
        outputs = [
            a.output
            for a in self.observer.attentions
            if a.layer == block.layer and a.kind == block.kind and a.by_head and a.output.requires_grad
        ]
        if not outputs or block.kind not in ("attention", "cross_attention") or not block.output.requires_grad:
            return None
        gradients = torch.autograd.grad(block.output, outputs, block.leaf.grad, retain_graph=True, allow_unused=True)
        heads = None
        for output, gradient in zip(outputs, gradients, strict=True):
            if gradient is not None:
                given = with_heads(output.detach() * gradient, self.observer.rows)
                if given is None:
                    return None
                heads = given.sum((-1, -2)) if heads is None else heads + given.sum((-1, -2))
        return heads

    def _collect_direct_keys(self, block: BlockTerm, terms: Terms) -> None:
        """The direct terms of a block's attention by key, where its weights and values are known."""
        for attention in self.observer.attentions:
            if (attention.layer, attention.kind) != (block.layer, block.kind) or attention.values is None:
                continue
            if attention.weights is None or block.leaf is None:
                continue
            (gradient,) = torch.autograd.grad(
                block.output, attention.output, block.leaf.grad, retain_graph=True, allow_unused=True
            )
            if gradient is None:
                continue
            edges, _ = all_edges(attention.weights, attention.values.tensor, gradient, self.observer.rows)
            if edges is not None:
                _add(terms.direct_keys, (*self._site(block.layer), block.kind), edges.sum((1, 2)).cpu().double())

    # ---- forwards once more ----------------------------------------------------------------------------------------

    def carried(self, factors: list[Tensor], select: Select) -> Tensor:
        """Row: as `replayed`, with every constant shared among all rows but the last (see `sharing.BiasShares`)."""
        layers = self.observer.layers
        kinds = []
        for place, operation in self._frozen.places:
            waits = operation != "layer_norm" and layers.block_at(place) in ("attention", "cross_attention")
            kinds.append(waits and place.inside)
        self._frozen.sharing = BiasShares(kinds, self.observer.rows)
        try:
            return self.replayed(factors, select)
        finally:
            self._frozen.sharing = None

    def replayed(self, factors: list[Tensor], select: Select, *, through: bool = False) -> Tensor:
        """Row: the number that the frozen map gives with the input vectors multiplied by factors (stack: row position)."""
        stacks = self.observer.stacks
        moved = [factor.to(stack.leaf.device) for factor, stack in zip(factors, stacks, strict=True)]
        replayed = Replayed(stacks, self._root_stacks, moved, through)
        observer = Observer(self._model, self._inputs, TermSelection(), replayed, self._attending)
        self._frozen.listener = observer
        self._frozen.replay()
        with _nothing_saved():
            return select(run_frozen(self._model, self._inputs, self._frozen, observer)).detach().cpu().double()


def _name_of(root: Root | None) -> str:
    return "" if root is None else root.positions.name


def _add_positions(tokens: Tensor, given: Tensor) -> None:
    """Add what positions gave; a model may have padded them by itself."""
    width = min(given.shape[1], tokens.shape[1])
    tokens[:, :width] += given[:, :width]


def _add(found: dict[Where, Tensor], where: Where, given: Tensor | None) -> bool:
    """Add to what a place has; False for a part of another shape (a chunk, say), which cannot be added."""
    if given is None:
        return True
    if where in found and found[where].shape != given.shape:
        return False
    found[where] = found[where] + given if where in found else given
    return True


def _nothing_saved() -> AbstractContextManager[Any]:
    """Keep no tensor for a backward pass that will not come."""

    def refuse(_: Any) -> Tensor:
        raise RuntimeError("a replay has no backward pass")

    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, refuse)


def run_frozen(model: nn.Module, inputs: ModelInputs, frozen: FrozenPass, observer: Observer) -> Any:
    """The forward pass of the model's own code, with gradients for what is live and for nothing else."""
    arguments = {name: _followed(name, value, observer) for name, value in inputs.items()}
    with PassScope(model, grad=True) as scope:
        if getattr(getattr(model, "config", None), "_attn_implementation", None) not in (None, *_VISIBLE):
            use_implementation(scope, "eager")
        observer.watch(scope)
        expose_hidden_ops(scope, frozen)
        scope.enter(frozen)
        return model(**arguments)


def _followed(name: str, value: Any, observer: Observer) -> Any:
    """An input whose positions own terms: token ids, or vectors in their place; any other as it is."""
    if not isinstance(value, Tensor):
        return value
    if name.endswith("input_ids"):
        return mark_ids(value, name)
    if value.is_floating_point() and modality_of(name) in ("vision", "audio"):
        return mark_media(value, name)
    if value.is_floating_point() and value.ndim >= 3 and not is_shared(name) and not name.startswith("encoder_"):
        return observer.add_root(Root(0, Positions(name), value, (0, 1)))
    return value
