"""The proof of what lies beyond the norms of the attention block: the layer's end, and maps of shares.

The same two checks as in `proof`: what a place holds must be what the one before it makes of it, and a seeded few entries
of each map are rebuilt from explicit vectors, straight from the equations, in float64.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.decompose.block import Block
from normlens.measures import MEASURES
from normlens.proof import Subject, explicit_heads, explicit_parts, proved_gaps

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
    samples = t.pairs.samples.to(t.values.device)
    batch, query, key = samples.unbind(-1)
    heads = explicit_heads(block, batch, query, key)
    stages = explicit_parts(block, (t.pairs.sampled_weights.double().unsqueeze(1) @ heads).squeeze(1), samples)
    explicit = layer.explicit(batch, query, key, stages)
    for name, place in places.items():
        length, rows = explicit[place].norm(dim=-1), values[name][batch, query]
        entry = rows[torch.arange(len(key), device=key.device), key]
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
    row, query, _ = t.pairs.samples[0].tolist()
    device = t.values.device
    keys = torch.arange(t.values.shape[2], device=device)
    parts = explicit_row(block, row, query, keys)
    y = block.output[row, query].double()
    beside = block.residual_at("ln")
    residual = torch.zeros_like(y) if beside is None or t.self_attends else beside[row, query].double()
    for name in names:
        if name == "alti":
            nearer = (y.abs().sum() - (y - torch.cat([parts, residual[None]])).abs().sum(-1)).clamp_min(0)
            total = nearer.sum()
            explicit = nearer[:-1] / (total if float(total) > 0 else 1)
        else:
            explicit = parts @ y / y.square().sum()
        error = float((values[name][row, query] - explicit).abs().max() / explicit.abs().max().clamp_min(1e-30))
        if not error <= subject.tolerance:
            raise subject.fail(f"{name} of query {query}", error)


def explicit_row(block: Block, row: int, query: int, keys: Int[Tensor, " key"]) -> Float[Tensor, "key model"]:
    """The parts of one query at the end of the attention block, one vector after the other in float64."""
    batch, at = torch.full_like(keys, row), torch.full_like(keys, query)
    heads = explicit_heads(block, batch, at, keys)  # key head model
    weights = block.weights[row, :, query, keys].T.double()  # key head
    parts = (weights.unsqueeze(1) @ heads).squeeze(1)
    return explicit_parts(block, parts, torch.stack([batch, at, keys], -1))["ln"]
