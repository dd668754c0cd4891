"""The proof of what lies beyond the norms of the attention block: the layer's end, feed-forward maps, and maps of shares.

The same two checks as in `proof`: what a place holds must be what the one before it makes of it, and a seeded few entries
of each map are rebuilt from explicit vectors, straight from the equations, in float64.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.block import Block
from normlens.decompose.devices import on_host
from normlens.decompose.pairs import Samples
from normlens.decompose.stages import Stage
from normlens.measures import MEASURES
from normlens.proof import Subject, explicit_heads, explicit_parts, proved_gaps, rows_of_queries

_SHARES = ("alti", "projection")


def prove_end(block: Block, query_mask: Bool[Tensor, "batch query"], subject: Subject) -> Float[Tensor, " batch"]:
    """The largest relative error of what follows the attention block, for each sequence; too large is an error."""
    end = block.tensors.end
    assert end is not None, "what follows the block must have been captured"
    found = {} if end.feed_forward is None else block.layer.gaps()
    last = end.gap()
    if last is not None:
        found["normalized sum at the end of the layer"] = last
    if not found:
        return torch.zeros(len(query_mask), dtype=torch.float64)
    return proved_gaps(torch.stack(list(found.values())), list(found), query_mask, subject)


def prove_layer(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild the sampled entries of the feed-forward maps: vectors as they are, through a block worked out anew.

    Neither heads nor captured products are used, and every part is added up before the first matrix.
    """
    places = {name: place for name in values if (place := MEASURES[name].place) is not None}
    if not places:
        return
    t, layer = block.tensors, block.layer
    device = t.values.device
    batch, query, key = torch.tensor(t.pairs.samples, device=device).unbind(-1)
    found = explicit_stages(block, t.pairs.samples, t.pairs.sampled_weights)
    stages = {stage: torch.from_numpy(vectors).to(t.values.dtype).to(device) for stage, vectors in found.items()}
    explicit = layer.explicit(batch, query, key, stages)
    for name, place in places.items():
        length, rows = explicit[place].norm(dim=-1), values[name][batch, query]
        entry = rows[torch.arange(len(key), device=device), key]
        errors = (entry - length).abs() / (length + 1e-3 * rows.amax(-1) + 1e-30)
        if not bool((errors <= subject.tolerance).all()):
            worst = int(errors.nan_to_num(torch.inf).argmax())
            where = f"query {int(query[worst])} and key {int(key[worst])}"
            raise subject.fail(f"{name} of {where}", float(errors[worst]))


def prove_shares(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild one row of each map of shares from explicit vectors; a difference is an error."""
    names = [name for name in _SHARES if name in values]
    if not names:
        return
    t = block.tensors
    row, query, _ = t.pairs.samples[0]
    beside = None if t.self_attends else block.residual_at("ln")
    gathered = [block.output[row, query], *([] if beside is None else [beside[row, query]])]
    y, *residual = (array.astype(np.float64) for array in on_host(gathered))
    pairs = tuple((row, query, key) for key in range(t.values.shape[2]))
    parts = explicit_stages(block, pairs, block.weights[row, :, query].T)["ln"]
    found = on_host([values[name][row, query] for name in names])
    for name, shares in zip(names, found, strict=True):
        if name == "alti":
            parted = np.stack([*parts, *(residual or [np.zeros_like(y)])])
            nearer = np.maximum(np.abs(y).sum() - np.abs(y - parted).sum(-1), 0)
            explicit = nearer[:-1] / (nearer.sum() or 1.0)
        else:
            explicit = parts @ y / np.square(y).sum()
        error = float(np.abs(shares - explicit).max() / max(np.abs(explicit).max(), 1e-30))
        if not error <= subject.tolerance:
            raise subject.fail(f"{name} of query {query}", error)


def explicit_stages(
    block: Block, pairs: Samples, weights: Float[Tensor, "pair head"]
) -> dict[Stage, Float[np.ndarray, "pair _"]]:
    """The parts of some pairs at each stage, one vector after the other in float64 on the host."""
    rows = rows_of_queries(block, pairs)
    heads, by_head, *arrays = on_host([explicit_heads(block, pairs), weights, *rows.values()])
    parts = np.einsum("ph,phd->pd", by_head.astype(np.float64), heads.astype(np.float64))
    return explicit_parts(block, parts, pairs, dict(zip(rows, arrays, strict=True)))
