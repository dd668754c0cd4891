"""The parts of an attention block carried through the feed-forward block that follows it (2024), to the layer's end.

Three places to look at: the feed-forward output (`ff`), the sum with the stream (`ffres`), and the normalization after it
(`ffln`). The block is an affine map of what enters it (`decompose.feed_forward`), another one for each query.

A ratio needs two vectors for each query: what it gives itself, and the rest. A map needs one for each pair. There, the first
matrix is met by heads: `W_1 part_ij = sum_h a_hij (W_1 f_hj)` is a product with the width of the model for each head of a
key, not for each query; only the second half is a whole product for each pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.block import Block, gap
from normlens.decompose.feed_forward import (
    Affine,
    AtStem,
    Constants,
    Frozen,
    Node,
    Stem,
    computed,
    entered,
    has_constants,
    has_experts,
    stems,
)
from normlens.decompose.parts import (
    PairBlock,
    attention_parts,
    carried_parts,
    head_vectors,
    pair_blocks,
    weighted_sums,
)
from normlens.decompose.steps import Step, applied, inverse_scale, linear, scale_through

#: Where a part is looked at: the feed-forward output, the sum with the stream, the normalized sum.
Place = Literal["ff", "ffres", "ffln"]
PLACES: tuple[Place, ...] = ("ff", "ffres", "ffln")


@dataclass(frozen=True)
class FeedForwardTensors:
    """What one feed-forward block computed, in the working dtype."""

    root: Node
    seen: Mapping[Hashable, Tensor]  # what the tree names (batch query width); a router's choices are whole numbers
    output: Float[Tensor, "batch query model"]
    branch: tuple[Step, ...]
    stream: tuple[Step, ...]
    #: Where the block stands beside attention: what enters it, the layer's input. None: it follows attention.
    beside: Float[Tensor, "batch query model"] | None


class LayerParts:
    """Parts of one site at the places of its feed-forward block; each quantity is computed when it is first asked for."""

    def __init__(self, block: Block) -> None:
        end = block.tensors.end
        assert end is not None and end.feed_forward is not None, "the feed-forward block must have been asked for"
        self.block, self.end, self.tensors = block, end, end.feed_forward

    @cached_property
    def x(self) -> Float[Tensor, "row model"]:
        """What enters the feed-forward block, one row per query."""
        beside = self.tensors.beside
        return (self.block.output if beside is None else beside).flatten(0, 1)

    @cached_property
    def frozen(self) -> Frozen:
        """The block as an affine map, at the model's own vectors."""
        return Frozen(self.tensors.root, self.x, {name: v.flatten(0, 1) for name, v in self.tensors.seen.items()})

    # ---- from the feed-forward output to the end of the layer ----------------------------------------------------

    @cached_property
    def _branch_scale(self) -> Float[Tensor, "batch query 1"] | None:
        return scale_through(self.tensors.branch, self.tensors.output)

    @cached_property
    def _end_scale(self) -> Float[Tensor, "batch query 1"] | None:
        if self.tensors.beside is not None:
            t = self.block.tensors
            return None if t.norm is None else inverse_scale(t.norm, t.total)
        return None if self.end.norm is None else inverse_scale(self.end.norm, self.end.total)

    def _on_branch(self, fed: Tensor, scale: Tensor | None) -> Tensor:
        arriving = linear(self.tensors.branch, fed)
        return arriving if scale is None else arriving * scale

    def _ended(self, summed: Tensor, scale: Tensor | None) -> Tensor:
        norm = self.end.norm if self.tensors.beside is None else self.block.tensors.norm
        if norm is None or scale is None:
            return summed
        return linear((norm,), summed) * scale

    def _places(self, fed: Tensor, part: Tensor, branch: Tensor | None, end: Tensor | None) -> dict[Place, Tensor]:
        """A part at each place: `fed` at the feed-forward output, `part` as it stands in the stream before the sum."""
        summed = self._on_branch(fed, branch) + linear(self.tensors.stream, part)
        return {"ff": fed, "ffres": summed, "ffln": self._ended(summed, end)}

    # ---- two vectors for each query ------------------------------------------------------------------------------

    @cached_property
    def own(self) -> dict[Place, Float[Tensor, "batch query model"]]:
        """What each position gives itself, at each place (in cross-attention: what the residual gives)."""
        entering = self._by_query(self._entering_own)
        part = entering if self.tensors.beside is None else self.block.self_vectors("res")
        return self._places(self._fed[0], part, self._branch_scale, self._end_scale)

    @cached_property
    def context(self) -> dict[Place, Float[Tensor, "batch query model"]]:
        """What all other positions give, at each place."""
        if self.tensors.beside is not None:  # it reads nothing but its own position
            part = self.block.context_vectors("res")
            return self._places(torch.zeros_like(part), part, self._branch_scale, self._end_scale)
        part = self.block.context_vectors("ln")
        return self._places(self._fed[1], part, self._branch_scale, self._end_scale)

    def mixing_norms(self, place: Place) -> tuple[Float[Tensor, "batch query"], Float[Tensor, "batch query"]]:
        """`‖context‖` and `‖self‖` at a place."""
        return self.context[place].norm(dim=-1), self.own[place].norm(dim=-1)

    @cached_property
    def _entering_own(self) -> Float[Tensor, "row model"]:
        return self.x if self.tensors.beside is not None else self.block.self_vectors("ln").flatten(0, 1)

    @cached_property
    def _own_at_stems(self) -> dict[Stem, Float[Tensor, "row width"]]:
        at_stem = self.frozen.vectors_at(self._entering_own)
        return {stem: at_stem(stem, slice(None)) for stem in stems(self.tensors.root)}

    @cached_property
    def _fed(self) -> tuple[Float[Tensor, "batch query model"], Float[Tensor, "batch query model"]]:
        """What the block makes of what each position gives itself, and of the rest.

        The rest is what the block gave, less the position's own and what belongs to nobody. At the stems that is a
        difference of what is known already; the constants are a few vectors. One product with the last matrix serves both.
        """
        known, inside = self._own_at_stems, self.frozen.vectors_at(self._entering_own)
        own = self.frozen.before_last(
            lambda stem, rows: known[stem][rows] if stem in known else inside(stem, rows), slice(None)
        )
        at_stem = self._rest_at_stems
        if at_stem is None:
            fed = self._by_query(self.frozen.last(own))
            return fed, self.tensors.output - fed
        rest = self.frozen.before_last(at_stem, slice(None))
        fed, left = self.frozen.last(torch.cat([own, rest])).chunk(2)
        return self._by_query(fed), self._by_query(left)

    @cached_property
    def _rest_at_stems(self) -> AtStem | None:
        """The rest at the stems; None where nothing belongs to nobody, so that it needs no product."""
        t, frozen, root = self.block.tensors, self.frozen, self.tensors.root
        if self.tensors.beside is not None:  # the position's own is all that there is
            return None
        constants = Constants(len(self.x)).plus(t.bias).through(t.branch, t.projected.flatten(0, 1))
        if t.norm is not None:
            constants = constants.through((t.norm,), t.total.flatten(0, 1))
        if t.others is None and not constants.terms and not has_constants(root):
            return None
        if t.others is None and not has_experts(root):
            return frozen.rest_at(self._own_at_stems, constants)
        # A shift on the residual, another branch, experts: by the vectors themselves.
        return frozen.vectors_at(self.block.context_vectors("ln").flatten(0, 1))

    def _by_query(self, rows: Float[Tensor, "row any"]) -> Float[Tensor, "batch query any"]:
        return rows.view(*self.block.tensors.total.shape[:2], -1)

    # ---- a vector for each pair ----------------------------------------------------------------------------------

    @cached_property
    def norms(self) -> dict[Place, Float[Tensor, "batch query key"]]:
        """`‖part_ij‖` at each place."""
        t = self.block.tensors
        found = {place: t.projected.new_zeros(*t.projected.shape[:2], t.values.shape[2]) for place in PLACES}
        if self.tensors.beside is not None:
            self._fill_beside(found)
            return found
        width = max([self.x.shape[-1], *(sum(s.weight.shape[-1] for s in stems(self.tensors.root)),)])
        for chosen in pair_blocks(self.block.weights, width):
            fed, part = self.pairs(chosen)
            where = (chosen.row, chosen.queries)
            for place, vectors in self._places(fed, part, *self._scales(*where)).items():
                found[place][chosen.row, chosen.queries, chosen.keys] = vectors.norm(dim=-1)
        return found

    def _scales(self, row: int, queries: slice) -> tuple[Tensor | None, Tensor | None]:
        branch, end = (
            None if scale is None else scale[row, queries].unsqueeze(1)
            for scale in (self._branch_scale, self._end_scale)
        )
        return branch, end

    def pairs(self, chosen: PairBlock) -> tuple[Float[Tensor, "query key model"], Float[Tensor, "query key model"]]:
        """The parts of a rectangle at the feed-forward output, and as they entered the block."""
        part = carried_parts(self.block, chosen, "ln")
        first = chosen.row * self.block.tensors.total.shape[1]
        rows = slice(first + chosen.queries.start, first + chosen.queries.stop)
        return self.frozen.carry(self._pairs_at(chosen, part, rows), rows), part

    def _pairs_at(self, chosen: PairBlock, part: Float[Tensor, "query key model"], rows: slice) -> AtStem:
        block, heads = self.block, self.block.tensors.weight.shape[0]
        by_heads = block.tensors.gate is None and heads < part.shape[0]
        vectors = linear(block.steps["ln"], head_vectors(block, chosen)) if by_heads else None

        def at_stem(stem: Stem, of: slice | Tensor) -> Tensor:
            scale = self.frozen.stem_scale(stem)
            if vectors is None or not isinstance(of, slice):
                inside = part if isinstance(of, slice) else part[of - rows.start]
                inside = linear(stem.steps, inside) @ stem.weight
                return inside if scale is None else inside * scale[of].unsqueeze(1)
            found = weighted_sums(block, chosen, linear(stem.steps, vectors) @ stem.weight)
            before = block.scales["ln"]
            if before is not None:
                found = found * before[chosen.row, chosen.queries].unsqueeze(1)
            self._add_residual(found, stem, chosen)
            return found if scale is None else found * scale[of].unsqueeze(1)

        return at_stem

    def _add_residual(self, found: Float[Tensor, "query key width"], stem: Stem, chosen: PairBlock) -> None:
        residual = self.block.residual_at("ln")
        if residual is None or not self.block.tensors.self_attends:
            return
        own = chosen.diagonal()
        at = torch.arange(own.start, own.stop, device=found.device)
        vectors = linear(stem.steps, residual[chosen.row, own]) @ stem.weight
        found[at - chosen.queries.start, at - chosen.keys.start] += vectors

    def _fill_beside(self, found: dict[Place, Tensor]) -> None:
        """A block beside attention reads its own position alone: the pairs are those of attention, but for the diagonal."""
        found["ffres"].copy_(self.block.part_norms("res"))
        found["ffln"].copy_(self.block.part_norms("ln"))
        for place, vectors in self.own.items():
            found[place].diagonal(dim1=-2, dim2=-1).copy_(vectors.norm(dim=-1))

    # ---- a key without its value ---------------------------------------------------------------------------------

    @cached_property
    def value_zeroing(self) -> Float[Tensor, "batch query key"]:
        """`1 - cos(y_i, y_i without the value vector of j)`, `y` what the layer gives (Mohebbi et al. 2023).

        The layer is computed again for each pair, as the model does it; a key without weight changes nothing. Of two
        nearly equal vectors the distance is taken from the difference of their unit vectors.
        """
        t = self.block.tensors
        found = t.projected.new_zeros(*t.projected.shape[:2], t.values.shape[2])
        width = max([self.x.shape[-1], *(sum(s.weight.shape[-1] for s in stems(self.tensors.root)),)])
        for chosen in pair_blocks(self.block.weights, width):
            parts = attention_parts(self.block, chosen)
            projected = t.projected[chosen.row, chosen.queries].unsqueeze(1)
            whole = self._layer(projected, chosen)
            changed = self._layer(projected - parts, chosen)
            units = [torch.nn.functional.normalize(y, dim=-1) for y in (whole, changed)]
            distance = (units[0] - units[1]).square().sum(-1) / 2
            unseen = (self.block.weights[chosen.row, :, chosen.queries, chosen.keys] == 0).all(0)
            found[chosen.row, chosen.queries, chosen.keys] = distance.masked_fill(unseen, 0)
        return found

    def _layer(
        self, projected: Float[Tensor, "query pair model"], chosen: PairBlock
    ) -> Float[Tensor, "query pair model"]:
        """The rest of the layer from an attention output on."""
        t, where = self.block.tensors, (chosen.row, chosen.queries)
        y = entered(t.branch, projected) + t.residual[where].unsqueeze(1)
        y = y if t.others is None else y + t.others[where].unsqueeze(1)
        y = y if t.norm is None else applied(t.norm, y)
        if (
            self.tensors.beside is not None
        ):  # the block beside attention is among the others, and reads no other position
            return y
        fed = computed(self.tensors.root, y.flatten(0, 1)).view(*y.shape[:2], -1)
        y = entered(self.tensors.branch, fed) + entered(self.tensors.stream, y)
        return y if self.end.norm is None else applied(self.end.norm, y)

    # ---- how far each place is from what the one before makes of it ----------------------------------------------

    def gaps(self) -> dict[str, Float[Tensor, "2 batch query"]]:
        """The norms of the difference and of what was observed, by what is compared.

        Products with whole matrices are seen along random directions, as in the attention block's proof.
        """
        root, found = self.tensors.root, {}
        for n, stem in enumerate(s for s in stems(root) if s.seen is not None):
            gaps = stem.check.gaps(self._by_query(entered(stem.steps, self.x)), self.tensors.seen[stem.seen])
            found[f"matrix {n + 1} of the feed-forward block"] = torch.stack(gaps)
        if isinstance(root, Affine):
            gaps = root.check.gaps(self._by_query(self.frozen.hidden), self.tensors.output)
            found["feed-forward output"] = torch.stack(gaps)
        else:
            found["feed-forward output"] = gap(self._by_query(self.frozen.hidden), self.tensors.output)
        arriving = entered(self.tensors.branch, self.tensors.output)
        if self.tensors.beside is None:
            summed = arriving + entered(self.tensors.stream, self.block.output)
            found["last residual sum"] = gap(summed, self.end.total)
        elif self.block.tensors.others is not None:
            found["branch beside attention"] = gap(arriving, self.block.tensors.others)
        return found
