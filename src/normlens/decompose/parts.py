"""The part vectors themselves, a block of keys at a time, for what cannot be had from Gram matrices.

A norm of a part follows from products of heads (`decompose.grams`); a distance, or what a layer makes of a part, does not.
So the vectors are built here, `sum_h a_hij f_h(x_j)` carried to a stage, for as many pairs as fit a block: memory does
not grow with the number of pairs. Queries that give a block's keys no weight at all (those before them, in a decoder)
are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.block import Block, in_streams, out_of_streams
from normlens.decompose.stages import Stage
from normlens.decompose.steps import Normalization, Scaling, Step, linear

#: Numbers of part vectors that exist at once, on a CPU and elsewhere.
PART_NUMBERS = {"cpu": 4_000_000}
OTHER_PART_NUMBERS = 64_000_000


@dataclass(frozen=True)
class PairBlock:
    """A rectangle of pairs of one sequence."""

    row: int
    queries: slice
    keys: slice

    def diagonal(self) -> slice:
        """The positions that are a query and a key of the rectangle."""
        first = max(self.queries.start, self.keys.start)
        return slice(first, max(first, min(self.queries.stop, self.keys.stop)))


def pair_blocks(weights: Float[Tensor, "batch head query key"], width: int) -> Iterator[PairBlock]:
    """Rectangles that hold every pair with a weight, and the diagonal, each of at most so many vectors of this width."""
    most = PART_NUMBERS.get(weights.device.type, OTHER_PART_NUMBERS)
    batch, _, queries, keys = weights.shape
    height = min(queries, max(1, most // width))
    across = max(1, most // (width * height))
    starts = range(0, keys, across)
    seen = (weights != 0).any(1)  # batch query key
    reached = torch.stack([seen[:, :, start : start + across].any(-1) for start in starts], 1).cpu()  # asked once
    for row in range(batch):
        for n, start in enumerate(starts):
            found = reached[row, n].nonzero().flatten().tolist()
            own = range(start, min(start + across, queries)) if queries == keys else range(0)
            first = min([*found[:1], *own[:1]], default=0)
            last = max([*found[-1:], *own[-1:]], default=-1)
            for top in range(first, last + 1, height):
                yield PairBlock(row, slice(top, min(top + height, last + 1)), slice(start, min(start + across, keys)))


def weighted_sums(
    block: Block,
    chosen: PairBlock,
    f: Float[Tensor, "head key width"],
) -> Float[Tensor, "query key width"]:
    """`sum_h a_hij f_hj` of a rectangle, for vectors by head and key that do not depend on the query."""
    weights = block.edge_weights[chosen.row, :, chosen.queries, chosen.keys].permute(2, 1, 0)  # key query head
    return (weights @ f.transpose(0, 1)).transpose(0, 1)


def head_vectors(block: Block, chosen: PairBlock) -> Float[Tensor, "head key model"]:
    """`f_h(x_j)` of a rectangle's keys."""
    return block.values_by_head[chosen.row, :, chosen.keys] @ block.w_o


def attention_parts(block: Block, chosen: PairBlock) -> Float[Tensor, "query key model"]:
    """`sum_h a_hij f_h(x_j)` of a rectangle, at the attention output."""

    if block.gate is None:
        return weighted_sums(block, chosen, head_vectors(block, chosen))
    # A gate makes f depend on the query: the values are gated one query at a time.
    weights = block.edge_weights[chosen.row, :, chosen.queries, chosen.keys]  # head query key
    values = block.values_by_head[chosen.row, :, chosen.keys]  # head key width
    gate = block.gate[chosen.row, chosen.queries]  # query head width
    gated = torch.einsum("hqk,hkc,qhc->qkhc", weights, values, gate)
    return gated.flatten(2) @ block.w_o.flatten(0, 1)


def carried_parts(block: Block, chosen: PairBlock, stage: Stage) -> Float[Tensor, "query key stream"]:
    """The parts of a rectangle at a stage, the residual with those on the diagonal."""
    parts = linear(block.steps[stage], attention_parts(block, chosen))
    scale = block.scales[stage]
    if scale is not None:
        parts = parts * scale[chosen.row, chosen.queries].unsqueeze(1)
    weights = block.stream_weights
    if weights is not None and stage != "attn":
        parts = in_streams(parts, weights[chosen.row, chosen.queries].unsqueeze(1))
    residual = block.residual_at(stage)
    if residual is not None and block.self_attends:
        own = chosen.diagonal()
        at = torch.arange(own.start, own.stop, device=parts.device)
        parts[at - chosen.queries.start, at - chosen.keys.start] += residual[chosen.row, own]
    return parts


def filled(
    block: Block, width: int, compute: Callable[[PairBlock], Float[Tensor, "query key"]]
) -> Float[Tensor, "batch query key"]:
    """A map of one number per pair, worked out rectangle by rectangle; zero where there is no weight."""
    weights = block.edge_weights
    found = weights.new_zeros(weights.shape[0], *weights.shape[2:])
    for chosen in pair_blocks(weights, width):
        found[chosen.row, chosen.queries, chosen.keys] = compute(chosen)
    return found


# ---- maps that compare a part with what the block gave ---------------------------------------------------------------


def alti(block: Block) -> tuple[Float[Tensor, "batch query key"], Float[Tensor, "batch query"]]:
    """`max(0, ‖y_i‖₁ - ‖y_i - part_ij‖₁)`, divided by its row's sum, and the residual's share in cross-attention.

    Ferrando et al. 2022, Section 3. The difference of the two norms is taken coordinate by coordinate: the
    norms themselves may be far larger. A row of zeros stays zero.
    """
    y = block.output

    def nearer(y: Tensor, parts: Tensor) -> Tensor:
        return (y.abs() - (y - parts).abs()).sum(-1).clamp_min(0)

    found = filled(
        block,
        y.shape[-1],
        lambda chosen: nearer(y[chosen.row, chosen.queries].unsqueeze(1), carried_parts(block, chosen, "ln")),
    )
    residual = None if block.self_attends else block.residual_at("ln")
    beside = y.new_zeros(y.shape[:2]) if residual is None else nearer(y, residual)
    total = found.sum(-1) + beside
    safe = torch.where(total > 0, total, torch.ones_like(total))
    return found / safe.unsqueeze(-1), beside / safe


def projection(block: Block) -> tuple[Float[Tensor, "batch query key"], Float[Tensor, "batch query"]]:
    """`part_ij · y_i / ‖y_i‖²`, signed, and the residual's share in cross-attention.

    No part vector is needed: `part_ij · y_i = scale_i sum_h a_hij v_hj · W_h L^T y_i`, with `L` what no input changes of
    the way to the end of the block. Rows add up to 1 less what belongs to the biases.
    """
    y = block.output
    size = y.square().sum(-1).clamp_min(torch.finfo(y.dtype).tiny)
    towards = torch.einsum(
        "hcd,bqd->bhqc", block.w_o, transposed(block.steps["ln"], out_of_streams(y, block.stream_weights))
    )
    if block.gate is not None:
        towards = towards * block.gate.transpose(1, 2)
    found = y.new_zeros(*y.shape[:2], block.values.shape[2])
    for head in range(block.w_o.shape[0]):
        found += block.edge_weights[:, head] * (towards[:, head] @ block.values_by_head[:, head].mT)
    scale = block.scales["ln"]
    found = found / size.unsqueeze(-1) if scale is None else found * (scale / size.unsqueeze(-1))
    residual = block.residual_at("ln")
    assert residual is not None, "the end of the block has the residual"
    beside = (residual * y).sum(-1) / size
    if block.self_attends:
        found.diagonal(dim1=-2, dim2=-1).add_(beside)
    return found, beside


def transposed(steps: tuple[Step, ...], y: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
    """The transpose of `linear`: `linear(steps, v) · y = v · transposed(steps, y)`."""
    for step in reversed(steps):
        if isinstance(step, Scaling):
            y = y * step.factor
        elif isinstance(step, Normalization):
            y = y if step.weight is None else y * step.weight
            y = y - y.mean(-1, keepdim=True) if step.centred else y
    return y
