"""The frozen affine map of one run, and every term of an explanation as what is missing when its vector is taken out.

No gradients, no code of normlens. A family writes its forward pass with the operations of `FrozenRun`; tensors have a
leading axis of rows. Row 0 is the model itself. Every other row is the same pass with one vector taken out, its *cell*.
The first pass has row 0 alone: it records what is held fixed, in the order of computation, and which cells there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: (site, part, coordinates of the part's axes).
Cell = tuple[Any, ...]
#: (site, layer, block): where a constant is added.
Place = tuple[str, int, str]
#: Terms by (site, part) and coordinates.
Terms = dict[tuple[str, str], dict[tuple[Any, ...], float]]
Activation = Callable[[Tensor], Tensor]

BASELINE = "baseline"
NODES, WEIGHTS = np.polynomial.legendre.leggauss(100)


def quadrature() -> Iterator[tuple[float, float]]:
    """Points and weights of Gauss and Legendre on [0, 1]."""
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        yield float(node + 1) / 2, float(weight) / 2


def integrated_attention(scores: Tensor, values: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Integrated gradients of `softmax(S) V` on `(t S, t V)`, for values and for scores (row, head, query, key, width)."""
    by_value, by_score = torch.zeros_like(scores), torch.zeros_like(scores[..., None] * values[..., None, :, :])
    for t, weight in quadrature():
        alpha = torch.softmax((t * scores).masked_fill(~allowed, -torch.inf), -1)
        mixed = (alpha @ values)[..., None, :]
        by_value += weight * alpha
        by_score += weight * t * alpha[..., None] * (values[..., None, :, :] - mixed)
    return by_value, by_score


class FrozenRun:
    """The operations of a forward pass in which weights are held fixed and one vector per row is taken out."""

    def __init__(self, integrated: bool, mean: bool, output_site: str) -> None:
        self.integrated = integrated
        self.mean = mean
        self.output_site = output_site
        self.recording = True
        self.rows: dict[Cell, int] = {}
        self._held: list[Tensor] = []
        self._cursor = 0

    # ---- passes --------------------------------------------------------------------------------------------------------

    def explain(self, forward: Callable[[], Tensor]) -> tuple[float, Terms]:
        """Run the pass twice; return the number and all terms. `forward` returns one number for each row."""
        with torch.no_grad():
            forward()
            self.recording, self._cursor = False, 0
            numbers = forward().tolist()
        terms: Terms = {}
        for (site, part, *where), row in self.rows.items():
            missing = numbers[0] - numbers[row]
            if part == "direct_biases":
                missing = numbers[row]  # the row without the entrance and without any block
            terms.setdefault((site, part), {})[tuple(where)] = missing
        self._complete_direct(terms)
        return numbers[0], terms

    def _complete_direct(self, terms: Terms) -> None:
        """Head 0 of `direct` is the block without its heads."""
        direct = terms.get((self.output_site, "direct"), {})
        for layer, block, head in list(direct):
            if head != 0:
                direct[layer, block, 0] -= direct[layer, block, head]

    @property
    def count(self) -> int:
        """Number of rows of this pass."""
        if self.recording:
            return 1
        return 1 + len(self.rows)

    def row(self, *cell: Any) -> list[int]:
        """The row of a cell, none in the first pass."""
        if self.recording:
            self.rows.setdefault(cell, len(self.rows) + 1)
            return []
        return [self.rows[cell]]

    def bias_row(self, place: Place) -> list[int]:
        """The row without the constants of a block."""
        site, layer, block = place
        if block == BASELINE and not self.mean:
            return []  # they are part of the vector that enters the first layer
        return self.row(site, "biases", layer, block)

    def hold(self, computed: Tensor) -> Tensor:
        """The tensor as it was in the model: that of row 0 in the first pass."""
        if self.recording:
            self._held.append(computed[:1])
        self._cursor += 1
        return self._held[self._cursor - 1]

    # ---- vectors taken out ---------------------------------------------------------------------------------------------

    def look_up(self, table: Tensor, ids: Tensor, site: str, at_entrance: bool = True) -> Tensor:
        """Rows of a table that token ids index. From zero, what is looked up at the entrance is taken out there."""
        x = table[ids].repeat(self.count, 1, 1)
        average = torch.zeros_like(table[0])
        if self.mean:
            average = table.mean(0)
            x[self.row(site, "biases", 0, BASELINE)] -= average
        elif at_entrance:
            return x
        for key in range(len(ids)):
            x[self.row(site, "tokens", key), key] = average
        return x

    def state(self, x: Tensor, site: str, layer: int) -> Tensor:
        """Vectors (row, position, width) that enter a layer."""
        x = self.without_positions(x, site, "states", layer)
        if layer == 1 and not self.mean:
            x = self.without_positions(x, site, "tokens")
        if layer == 1 and site == self.output_site:
            x = self.without_positions(x, site, "direct_entrance")
            x[self.row(site, "direct_biases")] = 0
        return x

    def without_positions(self, x: Tensor, *cell: Any) -> Tensor:
        """One position's vector taken out in each of the rows (*cell, key)."""
        whole, x = self.hold(x), x.clone()
        for key in range(x.shape[1]):
            x[self.row(*cell, key), key] -= whole[0, key]
        return x

    def block(self, out: Tensor, place: Place) -> Tensor:
        """The output of a block as it enters the residual sum. Rows of `direct` have the model's own, or none."""
        site, layer, block = place
        out = self.without_positions(out, site, "blocks", layer, block)
        whole = self.hold(out)
        for cell, row in self.rows.items():
            is_own_head = cell[:4] == (site, "direct", layer, block)
            if cell[1].startswith("direct") and not is_own_head and not self.recording:
                out[row] = whole[0]
        if site == self.output_site:
            out[self.row(site, "direct", layer, block, 0)] = 0
            out[self.row(site, "direct_biases")] = 0
        return out

    def attend(self, scores: Tensor, values: Tensor, allowed: Tensor, place: Place, edges: str) -> Tensor:
        """Weighted values: scores (row, head, query, key), values (row, head, key, width), `edges` the site of edges."""
        whole_scores, whole_values = self.hold(scores), self.hold(values)
        alpha = torch.softmax(whole_scores.masked_fill(~allowed, -torch.inf), -1)
        if self.integrated:
            by_value, by_score = integrated_attention(whole_scores, whole_values, allowed)
            out = by_value @ values + torch.einsum("rhqk,hqkd->rhqd", scores, by_score[0])
        else:
            out = alpha @ values
        site, layer, block = place
        heads, queries, keys = alpha.shape[1:]
        whole = (alpha @ whole_values)[0]
        for head in range(heads):
            out[self.row(edges, "heads", layer, head + 1), head] -= whole[head]
            if site == self.output_site:
                out[self.row(site, "direct", layer, block, head + 1), head] -= whole[head]
            for query, key in np.ndindex(queries, keys):
                carried = alpha[0, head, query, key] * whole_values[0, head, key]
                out[self.row(edges, "edges", layer, head + 1, query, key), head, query] -= carried
        return out

    # ---- operations of the design's table --------------------------------------------------------------------------------

    def add(self, x: Tensor, constant: Tensor | float, place: Place) -> Tensor:
        """A constant belongs to no input."""
        whole = x + constant
        rows = self.bias_row(place)
        whole[rows] = x[rows]
        return whole

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, place: Place) -> Tensor:
        """`x W^T + b`."""
        y = x @ weight.T
        if bias is None:
            return y
        return self.add(y, bias, place)

    def layer_norm(self, x: Tensor, module: Any, place: Place) -> Tensor:
        """The denominator is held fixed."""
        centred = x - x.mean(-1, keepdim=True)
        size = self.hold((centred.square().mean(-1, keepdim=True) + module.eps).sqrt())
        return self.add(centred / size * module.weight, module.bias, place)

    def rms_norm(self, x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
        """The denominator is held fixed."""
        size = self.hold((x.square().mean(-1, keepdim=True) + eps).sqrt())
        return x / size * weight

    def activate(self, x: Tensor, act: Activation) -> Tensor:
        """Slope `g(z)/z` for `g(0) = 0`; `z` is never exactly zero here."""
        z = self.hold(x)
        return x * (act(z) / z)

    def gate(self, act: Activation, a: Tensor, b: Tensor) -> Tensor:
        """`act(a) b`: a part gets `a_k b (act(a) - c)/a + b_k c`; at `a = 0` the quotient is `act'(0)/2`."""
        whole_a, whole_b = self.hold(a), self.hold(b)
        c = torch.zeros_like(whole_a)
        for t, weight in quadrature():
            c += weight * act(t * whole_a)
        step = torch.tensor(1e-4, dtype=torch.float64)
        slope_at_zero = (act(step) - act(-step)) / (2 * step)
        slope = torch.where(whole_a == 0, slope_at_zero / 2, (act(whole_a) - c) / whole_a)
        return a * whole_b * slope + b * c

    def product(self, a: Tensor, b: Tensor, multiply: Callable[[Tensor, Tensor], Tensor] = torch.mul) -> Tensor:
        """Any other product: each factor in turn, half and half."""
        return (multiply(a, self.hold(b)) + multiply(self.hold(a), b)) / 2
