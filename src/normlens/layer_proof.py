"""Do the parts rebuild what the model computed past the attention block: through the feed-forward block, to the layer's end?

Sums as in `normlens.proof`; and a seeded handful of entries of each map, rebuilt on the host in float64. The feed-forward
block is gone through here by itself, a value and a part side by side, from the vectors that the model put into it: neither
heads, nor captured products, nor slopes and integrals of the path that is checked are used.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.activations import Activation, derivative_at_zero
from normlens.decompose.block import Block
from normlens.decompose.devices import doubles_on_host, on_host, picked
from normlens.decompose.feed_forward import (
    Affine,
    Bend,
    Columns,
    Experts,
    Gated,
    Node,
    Product,
    Stem,
    Stepped,
    Sum,
    Weighted,
)
from normlens.decompose.pairs import Samples
from normlens.decompose.steps import Step
from normlens.measures import MEASURES
from normlens.proof import Subject, explicit_shift, explicit_stages, explicit_step, proved_gaps, relative

#: Maps of shares of which one row is rebuilt.
_REBUILT_SHARES = ("alti", "projection")
#: Entries of a matrix that are turned into float64 at a time.
_ENTRIES = 1 << 22
#: Gauss points of the integral of an activation.
_POINTS = 64


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
    """Rebuild the sampled entries of feed-forward maps and of value zeroing; a difference is an error."""
    places = {name: place for name in values if (place := MEASURES[name].place) is not None}
    if not places and "value_zeroing" not in values:
        return
    pairs = block.tensors.pairs.samples
    layer = _ExplicitLayer(block, pairs)
    explicit: dict[str, np.ndarray] = {}
    if places:
        parts = layer.parts()
        explicit = {name: np.linalg.norm(parts[place], axis=-1) for name, place in places.items()}
    if "value_zeroing" in values:
        explicit["value_zeroing"] = layer.zeroed()
    batch, query, key = zip(*pairs, strict=True)
    found = on_host(picked([values[name] for name in explicit], batch, query))
    for (name, wanted), rows in zip(explicit.items(), found, strict=True):
        errors = relative(rows[np.arange(len(key)), list(key)], wanted, rows.max(-1))
        if not (errors <= subject.tolerance).all():  # also true for NaN
            worst = int(np.nan_to_num(errors, nan=np.inf).argmax())
            raise subject.fail(f"{name} of query {query[worst]} and key {key[worst]}", float(errors[worst]))


def prove_shares(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild one row of each map of shares from explicit vectors; a difference is an error."""
    names = [name for name in _REBUILT_SHARES if name in values]
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


# ---- a layer for a few pairs, in float64 on the host -----------------------------------------------------------------


class _ExplicitLayer:
    """The way of the sampled pairs' parts to the end of the layer."""

    def __init__(self, block: Block, pairs: Samples) -> None:
        end = block.tensors.end
        assert end is not None and end.feed_forward is not None, "the feed-forward block must have been asked for"
        self.block, self.end, self.inside, self.pairs = block, end, end.feed_forward, pairs
        self.stages = explicit_stages(block, pairs, block.tensors.pairs.sampled_weights)
        self._held = self._at_queries()

    def _at_queries(self) -> dict[int, np.ndarray]:
        """What the model has at the pairs' queries, by the identity of the tensor that it is in; read all at once."""
        t, inside = self.block.tensors, self.inside
        some = [
            self.block.output,
            inside.beside,
            inside.output,
            self.end.total,
            t.total,
            t.projected,
            t.residual,
            t.others,
        ]
        tensors = [tensor for tensor in (*some, *inside.seen.values()) if tensor is not None]
        batch, query = ([pair[n] for pair in self.pairs] for n in (0, 1))
        rows = doubles_on_host([picked([tensor], batch, query)[0] for tensor in tensors])
        return {id(tensor): row.numpy() for tensor, row in zip(tensors, rows, strict=True)}

    def _rows(self, tensor: Tensor) -> np.ndarray:
        return self._held[id(tensor)]

    def parts(self) -> dict[str, Float[np.ndarray, "pair model"]]:
        """Each pair's part at the feed-forward output, at the sum with the stream, and after the normalization."""
        t, inside = self.block.tensors, self.inside
        if inside.beside is None:
            x, part = self._rows(self.block.output), self.stages["ln"]
            entering, norm, total = part, self.end.norm, self.end.total
        else:  # beside attention it reads its own position alone
            x, part = self._rows(inside.beside), self.stages["res"]
            own = np.array([[query == key] for _, query, key in self.pairs])
            entering, norm, total = x * own, t.norm, t.total
        held = {name: self._rows(tensor) for name, tensor in inside.seen.items()}
        _, fed = _through(inside.root, x, entering, held)
        _, arriving = _stepped(inside.branch, self._rows(inside.output), fed)
        _, staying = _stepped(inside.stream, part, part)
        summed = arriving + staying
        ended = summed if norm is None else explicit_step(norm, summed, self._rows(total))
        return {"ff": fed, "ffres": summed, "ffln": ended}

    def zeroed(self) -> Float[np.ndarray, " pair"]:
        """`1 - cos` of what the layer gives with and without the pair's value vector."""
        projected = self._rows(self.block.tensors.projected)
        whole, without = (self._given(y) for y in (projected, projected - self.stages["attn"]))
        lengths = np.linalg.norm(whole, axis=-1) * np.linalg.norm(without, axis=-1)
        distance: np.ndarray = 1 - np.einsum("pd,pd->p", whole, without) / lengths
        return distance

    def _given(self, projected: np.ndarray) -> np.ndarray:
        """What the layer gives from an attention output on; here a part is everything, so that values alone are read."""
        t, inside = self.block.tensors, self.inside
        y = _stepped(t.branch, projected, projected)[0] + self._rows(t.residual)
        y = y if t.others is None else y + self._rows(t.others)
        y = y if t.norm is None else _stepped((t.norm,), y, y)[0]
        if inside.beside is not None:
            return y
        fed = _through(inside.root, y, y, {})[0]
        y = _stepped(inside.branch, fed, fed)[0] + _stepped(inside.stream, y, y)[0]
        return y if self.end.norm is None else _stepped((self.end.norm,), y, y)[0]


#: A value as the model has it, and a part of it.
_Pair = tuple[np.ndarray, np.ndarray]


def _stepped(steps: tuple[Step, ...], y: np.ndarray, part: np.ndarray) -> _Pair:
    for step in steps:
        y, part = explicit_step(step, y, y) + explicit_shift(step), explicit_step(step, part, y)
    return y, part


def _through(node: Node, x: np.ndarray, part: np.ndarray, held: Mapping[Hashable, np.ndarray]) -> _Pair:
    """What a feed-forward block makes of the vectors that enter it, and of a part of each (2024, Section 3)."""

    def inner(child: Node) -> _Pair:
        return _through(child, x, part, held)

    match node:
        case Stem():
            return _affine(*_stepped(node.steps, x, part), node.weight, node.bias)
        case Affine():
            return _affine(*inner(node.source), node.weight, node.bias)
        case Columns():
            y, mine = inner(node.source)
            return y[..., node.start : node.stop], mine[..., node.start : node.stop]
        case Bend():
            z, mine = inner(node.source)
            value = _activated(node.act, z)
            return value, mine * _over(value - _activated(node.act, np.zeros(())), z, node.act)
        case Gated():
            (a, of_a), (b, of_b) = inner(node.gate.source), inner(node.other)
            value, mean = _activated(node.gate.act, a), _mean_activated(node.gate.act, a)
            share = _over(value - mean, a, node.gate.act, 0.5)
            return value * b, of_a * b * share + of_b * mean
        case Product():
            (a, of_a), (b, of_b) = inner(node.left), inner(node.right)
            return a * b, (of_a * b + a * of_b) / 2
        case Sum():
            (a, of_a), (b, of_b) = inner(node.left), inner(node.right)
            return a + b, of_a + of_b
        case Stepped():
            return _stepped(node.steps, *inner(node.source))
        case Weighted():
            y, mine = inner(node.source)
            weight = held[node.seen].reshape(len(x), 1)
            return weight * y, weight * mine
        case Experts():
            return _routed(node, x, part, held)


def _routed(node: Experts, x: np.ndarray, part: np.ndarray, held: Mapping[Hashable, np.ndarray]) -> _Pair:
    chosen, weights = (held[name].reshape(len(x), -1) for name in (node.chosen, node.weights))
    total, mine = np.zeros_like(x), np.zeros_like(x)
    for row in range(len(x)):
        few = slice(row, row + 1)
        for expert, weight in zip(chosen[row].astype(int), weights[row], strict=True):
            if 0 <= expert < len(node.first):
                value, own = _through(node.expert(int(expert)), x[few], part[few], {})
                total[few] += weight * value
                mine[few] += weight * own
    return total, mine


def _affine(y: np.ndarray, part: np.ndarray, weight: Tensor, bias: Tensor | None) -> _Pair:
    out = _times(np.concatenate([y, part]), weight)
    value, mine = out[: len(y)], out[len(y) :]
    return (value if bias is None else value + bias.cpu().double().numpy()), mine


def _times(rows: np.ndarray, weight: Tensor) -> np.ndarray:
    """`rows @ weight` in float64, some columns at a time; off the CPU where the matrix is, in its own dtype."""
    if weight.device.type != "cpu":
        found = torch.from_numpy(rows).to(weight.dtype).to(weight.device) @ weight
        return found.cpu().double().numpy()
    width = max(1, _ENTRIES // len(weight))
    return np.concatenate([rows @ block.double().numpy() for block in weight.split(width, dim=1)], axis=-1)


def _activated(act: Activation, z: np.ndarray) -> np.ndarray:
    return act(torch.from_numpy(np.ascontiguousarray(z))).double().numpy()


def _mean_activated(act: Activation, a: np.ndarray) -> np.ndarray:
    """`∫₀¹ act(t a) dt`."""
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    return np.asarray(sum(w / 2 * _activated(act, (x + 1) / 2 * a) for x, w in zip(nodes, weights, strict=True)))


def _over(numerator: np.ndarray, z: np.ndarray, act: Activation, share: float = 1.0) -> np.ndarray:
    """`numerator / z`; where `z` is zero, a share of the activation's slope there."""
    zero = z == 0
    slope = share * derivative_at_zero(act) if zero.any() else 0.0
    return np.where(zero, slope, numerator / np.where(zero, 1.0, z))
