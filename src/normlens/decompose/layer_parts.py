"""The parts of an attention block carried through the feed-forward block that follows it (2024), to the layer's end.

Three stages: the feed-forward output (`ff`), the sum with the stream (`ffres`), and the normalization after it (`ffln`).
The block is an affine map of its input (`decompose.feed_forward`), another one for each query.

A ratio needs two vectors for each query: its own part, and the rest. A map needs one for each pair. There, the first
matrix is applied by heads: `W_1 part_ij = sum_h a_hij (W_1 f_hj)` is a product with the width of the model for each head of
a key, not for each query; only the second half is a whole product for each pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.block import Block, gap
from normlens.decompose.feed_forward import (
    Affine,
    AtInput,
    Constants,
    FeedForwardPass,
    InputLinear,
    Node,
    Rows,
    apply_steps,
    has_constants,
    has_router,
    input_linears,
)
from normlens.decompose.parts import (
    PairBlock,
    attention_parts,
    carried_parts,
    head_vectors,
    pair_blocks,
    weighted_sums,
)
from normlens.decompose.stages import FEED_FORWARD_STAGES, FeedForwardStage
from normlens.decompose.steps import Step, applied, inverse_scale, linear, scale_through

#: A part at each stage.
AtStages = dict[FeedForwardStage, Tensor]


@dataclass(frozen=True)
class FeedForwardTensors:
    """The tensors of one feed-forward block, in the working dtype."""

    root: Node
    captured: Mapping[Hashable, Tensor]  # by the names in the tree (batch query width); a router's choices are integers
    output: Float[Tensor, "batch query model"]
    branch: tuple[Step, ...]
    stream: tuple[Step, ...]
    #: The input of a block that stands beside attention: the layer's input. None: it follows attention.
    beside: Float[Tensor, "batch query model"] | None


class LayerParts:
    """Parts of one site at the stages of its feed-forward block, computed on first access."""

    def __init__(self, block: Block) -> None:
        end = block.end
        assert end is not None and end.feed_forward is not None, "the feed-forward block must have been requested"
        self.block, self.end, self.tensors = block, end, end.feed_forward

    @cached_property
    def x(self) -> Float[Tensor, "row model"]:
        """The input of the feed-forward block, one row per query."""
        if self.tensors.beside is not None:
            return self.tensors.beside.flatten(0, 1)
        return self.block.output.flatten(0, 1)

    @cached_property
    def frozen(self) -> FeedForwardPass:
        """The block as an affine map, at the model's own vectors."""
        captured = {name: tensor.flatten(0, 1) for name, tensor in self.tensors.captured.items()}
        return FeedForwardPass(self.tensors.root, self.x, captured)

    # ---- from the feed-forward output to the end of the layer ----------------------------------------------------

    @cached_property
    def _branch_scale(self) -> Float[Tensor, "batch query 1"] | None:
        return scale_through(self.tensors.branch, self.tensors.output)

    @cached_property
    def _end_scale(self) -> Float[Tensor, "batch query 1"] | None:
        if self.tensors.beside is not None:
            norm, total = self.block.norm, self.block.total
        else:
            norm, total = self.end.norm, self.end.total
        return None if norm is None else inverse_scale(norm, total)

    def _at_stages(self, fed: Tensor, part: Tensor, branch_scale: Tensor | None, end_scale: Tensor | None) -> AtStages:
        """A part at each stage: `fed` at the feed-forward output, `part` as it stands in the stream before the sum."""
        arriving = linear(self.tensors.branch, fed)
        if branch_scale is not None:
            arriving = arriving * branch_scale
        summed = arriving + linear(self.tensors.stream, part)
        norm = self.end.norm if self.tensors.beside is None else self.block.norm
        ended = summed
        if norm is not None and end_scale is not None:
            ended = linear((norm,), summed) * end_scale
        return {"ff": fed, "ffres": summed, "ffln": ended}

    # ---- two vectors for each query ------------------------------------------------------------------------------

    @cached_property
    def own(self) -> AtStages:
        """The self part of each position at each stage (in cross-attention: the residual's)."""
        part = self._by_query(self._entering_own)
        if self.tensors.beside is not None:
            part = self.block.self_vectors("res")
        return self._at_stages(self._fed[0], part, self._branch_scale, self._end_scale)

    @cached_property
    def context(self) -> AtStages:
        """The parts of all other positions, summed, at each stage."""
        if self.tensors.beside is not None:  # the block reads its own position alone
            part = self.block.context_vectors("res")
            return self._at_stages(torch.zeros_like(part), part, self._branch_scale, self._end_scale)
        part = self.block.context_vectors("ln")
        return self._at_stages(self._fed[1], part, self._branch_scale, self._end_scale)

    def mixing_norms(
        self, stage: FeedForwardStage
    ) -> tuple[Float[Tensor, "batch query"], Float[Tensor, "batch query"]]:
        """`‖context‖` and `‖self‖` at a stage."""
        return self.context[stage].norm(dim=-1), self.own[stage].norm(dim=-1)

    @cached_property
    def _entering_own(self) -> Float[Tensor, "row model"]:
        if self.tensors.beside is not None:
            return self.x
        return self.block.self_vectors("ln").flatten(0, 1)

    @cached_property
    def _own_at_input(self) -> dict[InputLinear, Float[Tensor, "row width"]]:
        at_input = self.frozen.vectors_at(self._entering_own)
        return {entering: at_input(entering, slice(None)) for entering in input_linears(self.tensors.root)}

    @cached_property
    def _fed(self) -> tuple[Float[Tensor, "batch query model"], Float[Tensor, "batch query model"]]:
        """The self part and the rest at the feed-forward output.

        The rest is the block's output without the self part and without what belongs to no position. At the first linear
        maps that is a difference of known vectors; the constants are a few vectors. One product with the last matrix
        serves both.
        """
        known, by_vectors = self._own_at_input, self.frozen.vectors_at(self._entering_own)

        def own_at_input(entering: InputLinear, rows: Rows) -> Tensor:
            if entering in known:
                return known[entering][rows]
            return by_vectors(entering, rows)

        own = self.frozen.before_last(own_at_input, slice(None))
        rest_at_input = self._rest_at_input
        if rest_at_input is None:
            fed = self._by_query(self.frozen.last(own))
            return fed, self.tensors.output - fed
        rest = self.frozen.before_last(rest_at_input, slice(None))
        fed, left = self.frozen.last(torch.cat([own, rest])).chunk(2)
        return self._by_query(fed), self._by_query(left)

    @cached_property
    def _rest_at_input(self) -> AtInput | None:
        """The rest at the first linear maps; None where nothing belongs to no position, so that it needs no product."""
        block, root = self.block, self.tensors.root
        if self.tensors.beside is not None:  # the self part is everything
            return None
        constants = Constants(len(self.x)).plus(block.bias).through(block.branch, block.projected.flatten(0, 1))
        if block.norm is not None:
            constants = constants.through((block.norm,), block.total.flatten(0, 1))
        if block.others is None and not constants.terms and not has_constants(root):
            return None
        if block.others is None and not has_router(root):
            return self.frozen.rest_at(self._own_at_input, constants)
        # A shift on the residual, another branch, experts: from the vectors themselves.
        return self.frozen.vectors_at(block.context_vectors("ln").flatten(0, 1))

    def _by_query(self, rows: Float[Tensor, "row any"]) -> Float[Tensor, "batch query any"]:
        return rows.view(*self.block.total.shape[:2], -1)

    # ---- a vector for each pair ----------------------------------------------------------------------------------

    @cached_property
    def _widest(self) -> int:
        """The largest number of coordinates that a pair has on its way."""
        return max(self.x.shape[-1], sum(entering.weight.shape[-1] for entering in input_linears(self.tensors.root)))

    def _empty_map(self) -> Float[Tensor, "batch query key"]:
        block = self.block
        return block.projected.new_zeros(*block.projected.shape[:2], block.values.shape[2])

    @cached_property
    def norms(self) -> dict[FeedForwardStage, Float[Tensor, "batch query key"]]:
        """`‖part_ij‖` at each stage."""
        norms = {stage: self._empty_map() for stage in FEED_FORWARD_STAGES}
        if self.tensors.beside is not None:
            self._fill_beside(norms)
            return norms
        for chosen in pair_blocks(self.block.edge_weights, self._widest):
            fed, part = self.pairs(chosen)
            branch_scale = _of_pairs(self._branch_scale, chosen)
            end_scale = _of_pairs(self._end_scale, chosen)
            for stage, vectors in self._at_stages(fed, part, branch_scale, end_scale).items():
                norms[stage][chosen.row, chosen.queries, chosen.keys] = vectors.norm(dim=-1)
        return norms

    def pairs(self, chosen: PairBlock) -> tuple[Float[Tensor, "query key model"], Float[Tensor, "query key model"]]:
        """The parts of a rectangle at the feed-forward output, and as they entered the block."""
        part = carried_parts(self.block, chosen, "ln")
        first = chosen.row * self.block.total.shape[1]
        rows = slice(first + chosen.queries.start, first + chosen.queries.stop)
        return self.frozen.carry(self._pairs_at_input(chosen, part, rows), rows), part

    def _pairs_at_input(self, chosen: PairBlock, part: Float[Tensor, "query key model"], rows: slice) -> AtInput:
        block = self.block
        vectors: Tensor | None = None
        if block.gate is None and block.w_o.shape[0] < part.shape[0]:  # by heads, where they are fewer than queries
            vectors = linear(block.steps["ln"], head_vectors(block, chosen))

        def at_input(entering: InputLinear, of: Rows) -> Tensor:
            if vectors is None or not isinstance(of, slice):
                inside = part if isinstance(of, slice) else part[of - rows.start]
                at_map = linear(entering.steps, inside) @ entering.weight
            else:
                at_map = weighted_sums(block, chosen, linear(entering.steps, vectors) @ entering.weight)
                before = _of_pairs(block.scales["ln"], chosen)
                if before is not None:
                    at_map = at_map * before
                self._add_residual(at_map, entering, chosen)
            scale = self.frozen.input_scale(entering)
            return at_map if scale is None else at_map * scale[of].unsqueeze(1)

        return at_input

    def _add_residual(self, at_map: Float[Tensor, "query key width"], entering: InputLinear, chosen: PairBlock) -> None:
        residual = self.block.residual_at("ln")
        if residual is None or not self.block.self_attends:
            return
        own = chosen.diagonal()
        at = torch.arange(own.start, own.stop, device=at_map.device)
        vectors = linear(entering.steps, residual[chosen.row, own]) @ entering.weight
        at_map[at - chosen.queries.start, at - chosen.keys.start] += vectors

    def _fill_beside(self, norms: dict[FeedForwardStage, Tensor]) -> None:
        """A block beside attention reads its own position alone: the pairs are those of attention, but for the diagonal."""
        norms["ffres"].copy_(self.block.part_norms("res"))
        norms["ffln"].copy_(self.block.part_norms("ln"))
        for stage, vectors in self.own.items():
            norms[stage].diagonal(dim1=-2, dim2=-1).copy_(vectors.norm(dim=-1))

    # ---- a key without its value ---------------------------------------------------------------------------------

    @cached_property
    def value_zeroing(self) -> Float[Tensor, "batch query key"]:
        """`1 - cos(y_i, y_i without the value vector of j)`, `y` the layer's output (Mohebbi et al. 2023).

        The layer is computed again for each pair, as the model does it; a key without weight changes nothing. Of two
        nearly equal vectors the distance is taken from the difference of their unit vectors.
        """
        block, distances = self.block, self._empty_map()
        for chosen in pair_blocks(block.edge_weights, self._widest):
            projected = block.projected[chosen.row, chosen.queries].unsqueeze(1)
            whole = self._layer(projected, chosen)
            changed = self._layer(projected - attention_parts(block, chosen), chosen)
            difference = torch.nn.functional.normalize(whole, dim=-1) - torch.nn.functional.normalize(changed, dim=-1)
            unseen = (block.edge_weights[chosen.row, :, chosen.queries, chosen.keys] == 0).all(0)
            distance = difference.square().sum(-1) / 2
            distances[chosen.row, chosen.queries, chosen.keys] = distance.masked_fill(unseen, 0)
        return distances

    def _layer(
        self, projected: Float[Tensor, "query pair model"], chosen: PairBlock
    ) -> Float[Tensor, "query pair model"]:
        """The layer from an attention output on."""
        block, where = self.block, (chosen.row, chosen.queries)
        y = apply_steps(block.branch, projected) + block.residual[where].unsqueeze(1)
        if block.others is not None:
            y = y + block.others[where].unsqueeze(1)
        if block.norm is not None:
            y = applied(block.norm, y)
        if self.tensors.beside is not None:  # it is among the others, and reads no other position
            return y
        run = FeedForwardPass(self.tensors.root, y.flatten(0, 1), {})
        fed = run.value(self.tensors.root).view(*y.shape[:2], -1)
        y = apply_steps(self.tensors.branch, fed) + apply_steps(self.tensors.stream, y)
        return y if self.end.norm is None else applied(self.end.norm, y)

    # ---- the distance of each stage from its reconstruction ------------------------------------------------------

    def gaps(self) -> dict[str, Float[Tensor, "2 batch query"]]:
        """The norms of the difference and of the observed vector, by what is compared.

        Products with whole matrices are compared along random directions, as in the attention block's proof.
        """
        tensors, root, gaps = self.tensors, self.tensors.root, {}
        captured = [entering for entering in input_linears(root) if entering.captured is not None]
        for n, entering in enumerate(captured):
            y = self._by_query(apply_steps(entering.steps, self.x))
            norms = entering.check.gaps(y, tensors.captured[entering.captured])
            gaps[f"matrix {n + 1} of the feed-forward block"] = torch.stack(norms)
        hidden = self._by_query(self.frozen.hidden)
        if isinstance(root, Affine):
            gaps["feed-forward output"] = torch.stack(root.check.gaps(hidden, tensors.output))
        else:
            gaps["feed-forward output"] = gap(hidden, tensors.output)
        arriving = apply_steps(tensors.branch, tensors.output)
        if tensors.beside is None:
            summed = arriving + apply_steps(tensors.stream, self.block.output)
            gaps["last residual sum"] = gap(summed, self.end.total)
        elif self.block.others is not None:
            gaps["branch beside attention"] = gap(arriving, self.block.others)
        return gaps


def _of_pairs(scale: Float[Tensor, "batch query 1"] | None, chosen: PairBlock) -> Float[Tensor, "query 1 1"] | None:
    """A factor by query beside the pairs of a rectangle."""
    return None if scale is None else scale[chosen.row, chosen.queries].unsqueeze(1)
