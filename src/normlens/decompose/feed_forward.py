"""A feed-forward block as an affine map of its input, with slopes, gates and denominators held fixed (2024, Section 3).

The block is a small tree of nodes, read from the model by the anatomy. Each node defines its step twice: `compute` gives
its value, `carry` what becomes of a part of its input. A `FeedForwardPass` evaluates the tree at the model's own vectors,
one row per position, and carries parts through it. Parts are given at the first linear maps (`InputLinear`), since their
products can be computed in more than one way. Biases belong to no part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.decompose.activations import ActivationFunction, derivative_at_zero, gate_factors, slope_of
from normlens.decompose.block import RandomCheck
from normlens.decompose.steps import (
    Normalization,
    Scaling,
    Shift,
    Step,
    applied,
    inverse_scale,
    linear,
    scale_through,
    with_vectors,
)

#: Rows of positions: a range, or numbers.
Rows = slice | Int[Tensor, " row"]
#: Parts after the steps and the matrix of a first linear map, without its bias.
AtInput = Callable[["InputLinear", Rows], Float[Tensor, "row *pairs width"]]


class Node:
    """A step of a feed-forward block."""

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes whose values it takes."""
        return ()

    @property
    def adds_constant(self) -> bool:
        """Return True if the step adds something that belongs to no part."""
        return False

    def compute(self, run: FeedForwardPass) -> Float[Tensor, "row width"]:
        """The value of the node."""
        raise NotImplementedError

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The part after the step, from the parts of its sources."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class InputLinear(Node):
    """`x W + b` of the entering vector after some steps; `captured` names the model's own result."""

    steps: tuple[Step, ...]
    weight: Float[Tensor, "model width"]
    bias: Float[Tensor, " width"] | None
    captured: Hashable | None = None

    @property
    def adds_constant(self) -> bool:
        """Return True if there is a bias."""
        return self.bias is not None or _adds_shift(self.steps)

    @cached_property
    def check(self) -> RandomCheck:
        """The matrix seen along random directions."""
        return RandomCheck.of(self.weight, self.bias)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The captured result, or the map of the entering vectors."""
        if self.captured in run.captured:
            return run.captured[self.captured]
        return run.affine(apply_steps(run.steps(self.steps), run.x), self.weight, self.bias)

    def constants(self, vectors: Float[Tensor, "term model"] | None) -> Float[Tensor, "row width"]:
        """The matrix times fixed vectors, and the bias in a row after them.

        The vectors are the same in every pass, and reading the whole matrix for them is not cheap: the last result is kept.
        """
        if vectors is None:
            return self.weight.new_zeros(0, self.weight.shape[-1]) if self.bias is None else self.bias.unsqueeze(0)
        kept: tuple[Tensor, Tensor] | None = self.__dict__.get("_kept")
        # Off the CPU the product is cheap, and the host would have to wait for the comparison.
        if kept is None or vectors.device.type != "cpu" or not torch.equal(kept[0], vectors):
            rows = vectors @ self.weight
            if self.bias is not None:
                rows = torch.cat([rows, self.bias.unsqueeze(0)])
            kept = vectors, rows
            self.__dict__["_kept"] = kept
        return kept[1]


@dataclass(frozen=True, eq=False)
class Affine(Node):
    """A further linear map."""

    source: Node
    weight: Float[Tensor, "input output"]
    bias: Float[Tensor, " output"] | None

    @property
    def sources(self) -> tuple[Node, ...]:
        """The mapped node."""
        return (self.source,)

    @property
    def adds_constant(self) -> bool:
        """Return True if there is a bias."""
        return self.bias is not None

    @cached_property
    def check(self) -> RandomCheck:
        """The matrix seen along random directions."""
        return RandomCheck.of(self.weight, self.bias)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The map with its bias."""
        return run.affine(run.value(self.source), self.weight, self.bias)

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The map without its bias."""
        return run.affine(part_of(self.source), self.weight, None)


@dataclass(frozen=True, eq=False)
class Columns(Node):
    """Neighbouring coordinates, as where two projections are one matrix."""

    source: Node
    start: int
    stop: int

    @property
    def sources(self) -> tuple[Node, ...]:
        """The node whose coordinates they are."""
        return (self.source,)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The coordinates."""
        return run.value(self.source)[..., self.start : self.stop]

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The same coordinates of the part."""
        return part_of(self.source)[..., self.start : self.stop]


@dataclass(frozen=True, eq=False)
class Activation(Node):
    """An element-wise function `g`, carried by its slope `(g(z) - g(0)) / z`; `key` names one without weights."""

    source: Node
    act: ActivationFunction
    key: Hashable | None

    @property
    def sources(self) -> tuple[Node, ...]:
        """The activated node."""
        return (self.source,)

    @property
    def adds_constant(self) -> bool:
        """Return True if `g(0)` is not 0."""
        return bool(self.act(torch.zeros((), dtype=torch.float64)).any())

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The activation."""
        return self.act(run.value(self.source))

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The part times the slope."""
        (slope,) = run.held(self, lambda: self._slope(run))
        return _times_rows(part_of(self.source), slope, rows)

    def _slope(self, run: FeedForwardPass) -> tuple[Tensor]:
        z = run.value(self.source)
        at_zero = self.act(torch.zeros((), dtype=z.dtype, device=z.device))
        constant = None if at_zero.ndim == 0 and float(at_zero) == 0 else at_zero
        return (slope_of(z, run.value(self), constant, lambda: derivative_at_zero(self.act)),)


@dataclass(frozen=True, eq=False)
class Gated(Node):
    """`act(a) · b`, carried by the integrated gradient from zero; `a` is the source of the gate."""

    gate: Activation
    other: Node

    @property
    def sources(self) -> tuple[Node, ...]:
        """The gate and the node that it multiplies."""
        return (self.gate, self.other)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The product."""
        return run.value(self.gate) * run.value(self.other)

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The parts of `a` and of `b`, each times its factor."""
        to_a, to_b = run.held(self, lambda: self._factors(run))
        left, right = part_of(self.gate.source), part_of(self.other)
        return _times_rows(left, to_a, rows) + _times_rows(right, to_b, rows)

    def _factors(self, run: FeedForwardPass) -> tuple[Tensor, Tensor]:
        a, b, active = run.value(self.gate.source), run.value(self.other), run.value(self.gate)
        gate = self.gate
        return gate_factors(a, b, active, gate.act, gate.key, lambda: derivative_at_zero(gate.act))


@dataclass(frozen=True, eq=False)
class Product(Node):
    """Any other product of two parts: each factor in turn, half and half."""

    left: Node
    right: Node

    @property
    def sources(self) -> tuple[Node, ...]:
        """The two factors."""
        return (self.left, self.right)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The product."""
        return run.value(self.left) * run.value(self.right)

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """Half of each factor's part times the other factor."""
        of_left = _times_rows(part_of(self.left), run.value(self.right), rows)
        of_right = _times_rows(part_of(self.right), run.value(self.left), rows)
        return 0.5 * (of_left + of_right)


@dataclass(frozen=True, eq=False)
class Sum(Node):
    """Two branches added."""

    left: Node
    right: Node

    @property
    def sources(self) -> tuple[Node, ...]:
        """The two branches."""
        return (self.left, self.right)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The sum."""
        return run.value(self.left) + run.value(self.right)

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The sum of the parts."""
        return part_of(self.left) + part_of(self.right)


@dataclass(frozen=True, eq=False)
class AffineSteps(Node):
    """Normalizations, constant factors and shifts inside the block."""

    source: Node
    affine_steps: tuple[Step, ...]

    @property
    def sources(self) -> tuple[Node, ...]:
        """The node that takes the steps."""
        return (self.source,)

    @property
    def adds_constant(self) -> bool:
        """Return True if a step has a shift."""
        return _adds_shift(self.affine_steps)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The vectors after the steps."""
        return apply_steps(run.steps(self.affine_steps), run.value(self.source))

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The part after the steps, with the denominators of the model's own vectors."""
        part = part_of(self.source)
        scales = run.held(self, lambda: self._scales(run))
        for step, scale in zip(run.steps(self.affine_steps), scales, strict=True):
            part = linear((step,), part)
            if scale.ndim:
                part = _times_rows(part, scale, rows)
        return part

    def _scales(self, run: FeedForwardPass) -> tuple[Tensor, ...]:
        y, scales = run.value(self.source), []
        for step in run.steps(self.affine_steps):
            scales.append(inverse_scale(step, y) if isinstance(step, Normalization) else y.new_ones(()))
            y = applied(step, y)
        return tuple(scales)


@dataclass(frozen=True, eq=False)
class RouterWeighted(Node):
    """One number per position that multiplies a whole vector: a router's weight, which is held."""

    source: Node
    captured: Hashable

    @property
    def sources(self) -> tuple[Node, ...]:
        """The weighted node."""
        return (self.source,)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The weighted vectors."""
        return self._weight(run) * run.value(self.source)

    def carry(self, run: FeedForwardPass, part_of: Callable[[Node], Tensor], rows: Rows) -> Tensor:
        """The weighted part."""
        return _times_rows(part_of(self.source), self._weight(run), rows)

    def _weight(self, run: FeedForwardPass) -> Float[Tensor, "row 1"]:
        return run.captured[self.captured].reshape(len(run.x), 1)


@dataclass(frozen=True, eq=False)
class Experts(Node):
    """`sum over chosen experts e of weight_e · W2_e (act(W1_e x) · W3_e x)`; choice and weights are held."""

    steps: tuple[Step, ...]
    first: Float[Tensor, "expert model first_width"]  # gate and up side by side where the unit is gated
    second: Float[Tensor, "expert width model"]
    act: ActivationFunction
    key: Hashable | None
    gated: bool
    interleaved: bool  # gate and up in turn instead of side by side
    chosen: Hashable  # names the captured choices (row, choice)
    weights: Hashable  # and their weights

    @property
    def adds_constant(self) -> bool:
        """Return True if a step before the experts has a shift."""
        return _adds_shift(self.steps)

    def expert(self, number: int) -> Node:
        """One expert by itself."""
        first = self.first[number]
        half = first.shape[-1] // 2
        entering = InputLinear(self.steps, first, None)
        hidden: Node
        if not self.gated:
            hidden = Activation(entering, self.act, self.key)
        elif self.interleaved:
            gate, up = (InputLinear(self.steps, first[:, n::2], None) for n in (0, 1))
            hidden = Gated(Activation(gate, self.act, self.key), up)
        else:
            gate_half = Activation(Columns(entering, 0, half), self.act, self.key)
            hidden = Gated(gate_half, Columns(entering, half, 2 * half))
        return Affine(hidden, self.second[number], None)

    def compute(self, run: FeedForwardPass) -> Tensor:
        """The weighted sum of the chosen experts."""
        out = torch.zeros_like(run.x)
        for rows, weight, expert in run.experts(self):
            out.index_add_(0, rows, weight * expert.value(expert.root))
        return out

    def choices(self, run: FeedForwardPass) -> list[tuple[Tensor, Tensor, FeedForwardPass]]:
        """For each expert that was chosen: the rows that chose it, their weights, and its own pass over them."""
        chosen, weights = (run.captured[name].reshape(len(run.x), -1) for name in (self.chosen, self.weights))
        choices = []
        for number in range(len(self.first)):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                weight = weights[rows, choice].unsqueeze(-1)
                expert = FeedForwardPass(self.expert(number), run.x[rows], {}, run.arithmetic)
                choices.append((rows, weight, expert))
        return choices


def apply_steps(steps: Sequence[Step], x: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
    """Vectors after some steps, as the model computes them."""
    for step in steps:
        x = applied(step, x)
    return x


def input_linears(node: Node) -> list[InputLinear]:
    """The first linear maps of a tree, without those inside of experts."""
    if isinstance(node, InputLinear):
        return [node]
    inner = []
    for source in node.sources:
        inner += input_linears(source)
    return inner


def has_router(node: Node) -> bool:
    """Return True if a router chooses or weighs inside the block."""
    return isinstance(node, Experts | RouterWeighted) or any(has_router(source) for source in node.sources)


def has_constants(node: Node) -> bool:
    """Return True if anything in the block belongs to no part: a bias, a shift, an activation that is not zero at zero."""
    return node.adds_constant or any(has_constants(source) for source in node.sources)


def _adds_shift(steps: Sequence[Step]) -> bool:
    for step in steps:
        if isinstance(step, Shift) or (isinstance(step, Normalization) and step.beta is not None):
            return True
    return False


def _times_rows(part: Tensor, factor: Float[Tensor, "row width"], rows: Rows) -> Tensor:
    """A part times a factor by row, for one part of each row or for several."""
    chosen = factor[rows]
    return part * (chosen if part.ndim == chosen.ndim else chosen.unsqueeze(1))


class Arithmetic:
    """The arithmetic of a pass: in the working dtype. The proof has one in float64."""

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """`x @ weight`."""
        return x @ weight

    def bias(self, bias: Tensor) -> Tensor:
        """A bias vector."""
        return bias

    def steps(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Steps."""
        return steps


_WORKING = Arithmetic()


class FeedForwardPass:
    """A block evaluated at some vectors, one row per position; `carry` is the affine map that it is there.

    Args:
        root: The last node of the block.
        x: The vectors that enter the block.
        captured: The model's own tensors by the names that nodes give them.
        arithmetic: How products are computed.
    """

    def __init__(
        self,
        root: Node,
        x: Float[Tensor, "row model"],
        captured: Mapping[Hashable, Tensor],
        arithmetic: Arithmetic = _WORKING,
    ) -> None:
        self.root, self.x, self.captured, self.arithmetic = root, x, captured, arithmetic
        self._values: dict[Node, Tensor] = {}
        self._held: dict[Node, tuple[Tensor, ...]] = {}
        self._experts: dict[Node, list[tuple[Tensor, Tensor, FeedForwardPass]]] = {}

    def value(self, node: Node) -> Tensor:
        """The value of a node, computed once."""
        if node not in self._values:
            self._values[node] = node.compute(self)
        return self._values[node]

    def held(self, node: Node, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The factors of a node that are held fixed, computed once."""
        if node not in self._held:
            self._held[node] = compute()
        return self._held[node]

    def experts(self, node: Experts) -> list[tuple[Tensor, Tensor, FeedForwardPass]]:
        """The chosen experts (`Experts.choices`), found once."""
        if node not in self._experts:
            self._experts[node] = node.choices(self)
        return self._experts[node]

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`x W + b`."""
        product = self.arithmetic.product(x, weight)
        return product if bias is None else product + self.arithmetic.bias(bias)

    def steps(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Steps in the arithmetic of this pass."""
        return self.arithmetic.steps(steps)

    # ---- the affine map ------------------------------------------------------------------------------------------

    @property
    def _before_last(self) -> Node:
        return self.root.source if isinstance(self.root, Affine) else self.root

    @property
    def hidden(self) -> Float[Tensor, "row width"]:
        """The input of the last matrix (or the whole result, where the block does not end with one)."""
        return self.value(self._before_last)

    def carry(self, at_input: AtInput, rows: Rows) -> Float[Tensor, "row *pairs model"]:
        """Carry parts of these rows through the block."""
        return self.last(self.before_last(at_input, rows))

    def before_last(self, at_input: AtInput, rows: Rows) -> Float[Tensor, "row *pairs width"]:
        """Carry parts up to the last matrix."""
        return self._carry(self._before_last, at_input, rows)

    def last(self, hidden: Tensor) -> Tensor:
        """Carry parts through the last matrix."""
        return self.affine(hidden, self.root.weight, None) if isinstance(self.root, Affine) else hidden

    def _carry(self, node: Node, at_input: AtInput, rows: Rows) -> Tensor:
        if isinstance(node, InputLinear):
            return at_input(node, rows)
        if isinstance(node, Experts):
            return self._carry_by_experts(node, at_input, rows)
        return node.carry(self, lambda source: self._carry(source, at_input, rows), rows)

    def _carry_by_experts(self, node: Experts, at_input: AtInput, rows: Rows) -> Tensor:
        numbers = torch.arange(len(self.x), device=self.x.device)[rows]
        place = torch.full((len(self.x),), -1, device=self.x.device)
        place[numbers] = torch.arange(len(numbers), device=self.x.device)
        out: Tensor | None = None
        for own_rows, weight, expert in self.experts(node):
            inside = (place[own_rows] >= 0).nonzero().flatten()  # rows of the expert's own pass
            if not len(inside):
                continue
            outer = own_rows[inside]  # the same rows of this pass

            def of_expert(entering: InputLinear, _: Rows, outer: Tensor = outer) -> Tensor:
                return at_input(entering, outer)

            part = _times_rows(expert.carry(of_expert, inside), weight, inside)
            if out is None:
                out = part.new_zeros(len(numbers), *part.shape[1:])
            out.index_add_(0, place[outer], part)
        assert out is not None, "every position has its experts"
        return out

    def input_scale(self, entering: InputLinear) -> Float[Tensor, "row 1"] | None:
        """The factor of a part of each row from the normalizations before a first linear map."""
        return scale_through(self.steps(entering.steps), self.x)

    def vectors_at(self, vectors: Float[Tensor, "row model"]) -> AtInput:
        """One part for each row, given as vectors that enter the block."""

        def at_input(entering: InputLinear, rows: Rows) -> Tensor:
            part, scale = linear(self.steps(entering.steps), vectors[rows]), self.input_scale(entering)
            if scale is not None:
                part = part * scale[rows]
            return self.affine(part, entering.weight, None)

        return at_input

    def rest_at(self, known: Mapping[InputLinear, Float[Tensor, "row width"]], constants: Constants) -> AtInput:
        """The values at the first linear maps without a known part, and without what belongs to no position."""

        def at_input(entering: InputLinear, rows: Rows) -> Tensor:
            rest = self.value(entering) - known[entering]
            return constants.through(entering.steps, self.x).subtract_from(rest, entering)[rows]

        return at_input


@dataclass(frozen=True)
class Constants:
    """A sum of a few fixed vectors, each with a coefficient by row (None: 1): biases on their way through a layer."""

    rows: int
    terms: tuple[tuple[Float[Tensor, "row 1"] | None, Float[Tensor, " model"]], ...] = ()

    def through(self, steps: tuple[Step, ...], y: Float[Tensor, "row model"]) -> Constants:
        """The same after some steps, with the denominators that they have for `y`; their own shifts join."""
        terms = list(self.terms)
        for step, entering in with_vectors(steps, y):
            terms = [(coefficient, linear((step,), vector)) for coefficient, vector in terms]
            if isinstance(step, Normalization):
                inverse = inverse_scale(step, entering)
                terms = [(inverse if c is None else c * inverse, vector) for c, vector in terms]
            shift = None
            if isinstance(step, Shift):
                shift = step.vector
            elif not isinstance(step, Scaling):
                shift = step.beta
            if shift is not None:
                terms.append((None, shift))
        return Constants(self.rows, tuple(terms))

    def plus(self, vector: Tensor | None) -> Constants:
        """With one more vector, the same in every row."""
        return self if vector is None else Constants(self.rows, (*self.terms, (None, vector)))

    def subtract_from(self, vectors: Float[Tensor, "row width"], entering: InputLinear) -> Float[Tensor, "row width"]:
        """Subtract the sum, after a first linear map, from these vectors in place: a product of a few vectors."""
        fixed = entering.constants(torch.stack([vector for _, vector in self.terms]) if self.terms else None)
        if not len(fixed):
            return vectors
        one = vectors.new_ones(self.rows, 1)
        coefficients = [one if coefficient is None else coefficient for coefficient, _ in self.terms]
        coefficients += [one] * (len(fixed) - len(self.terms))
        return vectors.addmm_(torch.cat(coefficients, dim=1), fixed, alpha=-1)
