"""A feed-forward block as an affine map of what enters it, with slopes, gates and denominators held (2024, Section 3).

The block is a small tree of nodes, read from the model by the anatomy: linear maps that take the entering vector (`Stem`),
activations by their slope `(g(z) - g(0)) / z`, gated units by the integrated gradient from zero, further linear maps,
weights of a router that are held. `Frozen` works the tree out at the model's own vectors, one row per position, and then
carries any part of them through: parts are given at the stems, since products with the first matrices can be had in more
than one way. Biases belong to no part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.decompose.activations import Activation, derivative_at_zero, gate_factors, slope_of
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


@dataclass(frozen=True, eq=False)
class Stem:
    """`x W + b`, of the entering vector after some steps; `seen` names where the model's own result was captured."""

    steps: tuple[Step, ...]
    weight: Float[Tensor, "model width"]
    bias: Float[Tensor, " width"] | None
    seen: Hashable | None = None

    @cached_property
    def check(self) -> RandomCheck:
        """What the matrix must do, along random directions."""
        return RandomCheck.of(self.weight, self.bias)

    def constants(self, vectors: Float[Tensor, "term model"] | None) -> Float[Tensor, "row width"]:
        """What the matrix makes of fixed vectors, and the bias in a row after them.

        The vectors are the same in every pass, and reading the whole matrix for them is not cheap: the last answer is kept.
        """
        if vectors is None:
            return self.weight.new_zeros(0, self.weight.shape[-1]) if self.bias is None else self.bias.unsqueeze(0)
        kept: tuple[Tensor, Tensor] | None = self.__dict__.get("_kept")
        # Off the CPU the product is nothing, and the host would have to wait for the comparison.
        if kept is None or vectors.device.type != "cpu" or not torch.equal(kept[0], vectors):
            rows = vectors @ self.weight
            kept = vectors, rows if self.bias is None else torch.cat([rows, self.bias.unsqueeze(0)])
            self.__dict__["_kept"] = kept
        return kept[1]


@dataclass(frozen=True, eq=False)
class Affine:
    """A further linear map."""

    source: Node
    weight: Float[Tensor, "input output"]
    bias: Float[Tensor, " output"] | None

    @cached_property
    def check(self) -> RandomCheck:
        """What the matrix must do, along random directions."""
        return RandomCheck.of(self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Columns:
    """Some neighbouring coordinates, as where two projections are one matrix."""

    source: Node
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Bend:
    """An element-wise function `g`; `key` names one that has no weights of its own."""

    source: Node
    act: Activation
    key: Hashable | None


@dataclass(frozen=True, eq=False)
class Gated:
    """`act(a) · b`, `a` the source of the gate."""

    gate: Bend
    other: Node


@dataclass(frozen=True, eq=False)
class Product:
    """Any other product of two parts: each factor in turn, half and half."""

    left: Node
    right: Node


@dataclass(frozen=True, eq=False)
class Sum:
    """Two branches added."""

    left: Node
    right: Node


@dataclass(frozen=True, eq=False)
class Stepped:
    """Normalizations, constant factors and shifts inside the block."""

    source: Node
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Weighted:
    """One number per position that multiplies a whole vector: a router's weight, which is held."""

    source: Node
    seen: Hashable


@dataclass(frozen=True, eq=False)
class Experts:
    """`sum over chosen experts e of weight_e · W2_e (act(W1_e x) · W3_e x)`; choice and weights are held."""

    steps: tuple[Step, ...]
    first: Float[Tensor, "expert model first_width"]  # gate and up side by side where the unit is gated
    second: Float[Tensor, "expert width model"]
    act: Activation
    key: Hashable | None
    gated: bool
    interleaved: bool  # gate and up in turn instead of side by side
    chosen: Hashable  # (row, choice)
    weights: Hashable

    def expert(self, number: int) -> Node:
        """One expert by itself."""
        stem = Stem(self.steps, self.first[number], None)
        if not self.gated:
            return Affine(Bend(stem, self.act, self.key), self.second[number], None)
        half = stem.weight.shape[-1] // 2
        if self.interleaved:
            gate, up = (Stem(self.steps, self.first[number][:, n::2], None) for n in (0, 1))
            return Affine(Gated(Bend(gate, self.act, self.key), up), self.second[number], None)
        gated = Gated(Bend(Columns(stem, 0, half), self.act, self.key), Columns(stem, half, 2 * half))
        return Affine(gated, self.second[number], None)


Node = Stem | Affine | Columns | Bend | Gated | Product | Sum | Stepped | Weighted | Experts
#: Parts at the stems: what becomes of a part after a stem's steps and its matrix, without its bias.
AtStem = Callable[[Stem, slice | Int[Tensor, " row"]], Float[Tensor, "row *pairs width"]]


def stems(node: Node) -> list[Stem]:
    """The first linear maps of a tree; those inside of experts are not among them."""
    if isinstance(node, Stem):
        return [node]
    if isinstance(node, Experts):
        return []
    return [stem for child in children(node) for stem in stems(child)]


def children(node: Node) -> tuple[Node, ...]:
    """The nodes that a node is made of."""
    if isinstance(node, Gated):
        return (node.gate, node.other)
    if isinstance(node, Product | Sum):
        return (node.left, node.right)
    return () if isinstance(node, Stem | Experts) else (node.source,)


def has_experts(node: Node) -> bool:
    """Whether a router chooses inside the block."""
    return isinstance(node, Experts | Weighted) or any(map(has_experts, children(node)))


def has_constants(node: Node) -> bool:
    """Whether anything in the block belongs to no part: a bias, a shift, an activation that is not zero at zero."""

    def shifts(steps: tuple[Step, ...]) -> bool:
        return any(
            isinstance(step, Shift) or (isinstance(step, Normalization) and step.beta is not None) for step in steps
        )

    if isinstance(node, Stem | Affine) and node.bias is not None:
        return True
    if isinstance(node, Stem | Stepped | Experts) and shifts(node.steps):
        return True
    if isinstance(node, Bend) and bool(node.act(torch.zeros((), dtype=torch.float64)).any()):
        return True
    return any(map(has_constants, children(node)))


def entered(steps: tuple[Step, ...], x: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
    """Vectors after some steps, as the model computes them."""
    for step in steps:
        x = applied(step, x)
    return x


def computed(node: Node, x: Float[Tensor, "row model"]) -> Float[Tensor, "row width"]:
    """The block as the model computes it, of vectors that need not be the model's own; not where a router chooses."""
    match node:
        case Stem():
            return _affine(entered(node.steps, x), node.weight, node.bias)
        case Affine():
            return _affine(computed(node.source, x), node.weight, node.bias)
        case Columns():
            return computed(node.source, x)[..., node.start : node.stop]
        case Bend():
            return node.act(computed(node.source, x))
        case Gated():
            return computed(node.gate, x) * computed(node.other, x)
        case Product():
            return computed(node.left, x) * computed(node.right, x)
        case Sum():
            return computed(node.left, x) + computed(node.right, x)
        case Stepped():
            return entered(node.steps, computed(node.source, x))
        case _:
            raise AssertionError("a router's choice depends on its input")


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else x @ weight + bias


class Frozen:
    """A block at the model's own vectors, one row per position; `carry` is the affine map that it is there."""

    def __init__(self, root: Node, x: Float[Tensor, "row model"], seen: Mapping[Hashable, Tensor]) -> None:
        self.root, self.x, self._seen = root, x, seen
        self._values: dict[Node, Tensor] = {}
        self._held: dict[Node, tuple[Tensor, ...]] = {}
        self._experts: dict[Node, list[tuple[Tensor, Tensor, Frozen]]] = {}
        inner = root.source if isinstance(root, Affine) else root
        self._value(inner)

    # ---- what the model computed ---------------------------------------------------------------------------------

    @property
    def hidden(self) -> Float[Tensor, "row width"]:
        """What the last matrix is given (or the whole result, where the block does not end with one)."""
        return self._values[self.root.source if isinstance(self.root, Affine) else self.root]

    def _value(self, node: Node) -> Tensor:
        if node not in self._values:
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: Node) -> Tensor:
        match node:
            case Stem():
                known = None if node.seen is None else self._seen.get(node.seen)
                return known if known is not None else computed(node, self.x)
            case Affine():
                return _affine(self._value(node.source), node.weight, node.bias)
            case Columns():
                return self._value(node.source)[..., node.start : node.stop]
            case Bend():
                return self._bend(node)
            case Gated():
                a, b, active = self._value(node.gate.source), self._value(node.other), self._active(node.gate)
                self._held[node] = gate_factors(
                    a, b, active, node.gate.act, node.gate.key, lambda: derivative_at_zero(node.gate.act)
                )
                return active * b
            case Product():
                left, right = self._value(node.left), self._value(node.right)
                self._held[node] = (left, right)
                return left * right
            case Sum():
                return self._value(node.left) + self._value(node.right)
            case Stepped():
                y, scales = self._value(node.source), []
                for step in node.steps:
                    scales.append(inverse_scale(step, y) if isinstance(step, Normalization) else y.new_ones(()))
                    y = applied(step, y)
                self._held[node] = tuple(scales)
                return y
            case Weighted():
                self._held[node] = (self._seen[node.seen].reshape(len(self.x), 1),)
                return self._held[node][0] * self._value(node.source)
            case Experts():
                return self._routed(node)

    def _active(self, node: Bend) -> Tensor:
        return node.act(self._value(node.source))

    def _bend(self, node: Bend) -> Tensor:
        z, value = self._value(node.source), self._active(node)
        zero = node.act(torch.zeros((), dtype=z.dtype, device=z.device))
        constant = None if zero.ndim == 0 and float(zero) == 0 else zero
        self._held[node] = (slope_of(z, value, constant, lambda: derivative_at_zero(node.act)),)
        return value

    def _routed(self, node: Experts) -> Tensor:
        chosen, weights = (self._seen[name].reshape(len(self.x), -1) for name in (node.chosen, node.weights))
        out, found = torch.zeros_like(self.x), []
        for number in range(len(node.first)):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                weight, tree = weights[rows, choice].unsqueeze(-1), node.expert(number)
                frozen = Frozen(tree, self.x[rows], {})
                found.append((rows, weight, frozen))
                out.index_add_(0, rows, weight * frozen._value(tree))
        self._experts[node] = found
        return out

    # ---- the affine map ------------------------------------------------------------------------------------------

    def carry(self, at_stem: AtStem, rows: slice | Tensor) -> Float[Tensor, "row *pairs model"]:
        """What the block makes of a part of these rows."""
        return self.last(self.before_last(at_stem, rows))

    def before_last(self, at_stem: AtStem, rows: slice | Tensor) -> Float[Tensor, "row *pairs width"]:
        """The same up to the last matrix."""
        return self._carried(self.root.source if isinstance(self.root, Affine) else self.root, at_stem, rows)

    def last(self, hidden: Tensor) -> Tensor:
        """What the last matrix makes of it."""
        return hidden @ self.root.weight if isinstance(self.root, Affine) else hidden

    def _carried(self, node: Node, at_stem: AtStem, rows: slice | Tensor) -> Tensor:
        def inner(child: Node) -> Tensor:
            return self._carried(child, at_stem, rows)

        match node:
            case Stem():
                return at_stem(node, rows)
            case Affine():
                return inner(node.source) @ node.weight
            case Columns():
                return inner(node.source)[..., node.start : node.stop]
            case Bend():
                part = inner(node.source)
                return part * _among(self._held[node][0][rows], part)
            case Gated():
                left, right = inner(node.gate.source), inner(node.other)
                to_a, to_b = (_among(factor[rows], left) for factor in self._held[node])
                return left * to_a + right * to_b
            case Product():
                left, right = inner(node.left), inner(node.right)
                of_left, of_right = (_among(value[rows], left) for value in self._held[node])
                return 0.5 * (left * of_right + right * of_left)
            case Sum():
                return inner(node.left) + inner(node.right)
            case Stepped():
                part = inner(node.source)
                for step, scale in zip(node.steps, self._held[node], strict=True):
                    part = linear((step,), part)
                    part = part if scale.ndim == 0 else part * _among(scale[rows], part)
                return part
            case Weighted():
                part = inner(node.source)
                return part * _among(self._held[node][0][rows], part)
            case Experts():
                return self._carried_by_experts(node, at_stem, rows)

    def _carried_by_experts(self, node: Experts, at_stem: AtStem, rows: slice | Tensor) -> Tensor:
        numbers = torch.arange(len(self.x), device=self.x.device)[rows]
        place = torch.full((len(self.x),), -1, device=self.x.device)
        place[numbers] = torch.arange(len(numbers), device=self.x.device)
        out: Tensor | None = None
        for mine, weight, frozen in self._experts[node]:
            here = place[mine] >= 0
            if not bool(here.any()):
                continue
            inside = here.nonzero().flatten()  # rows of the expert's own
            outer = mine[inside]  # the same rows of the whole

            def of_expert(stem: Stem, _: slice | Tensor, outer: Tensor = outer) -> Tensor:
                return at_stem(stem, outer)

            part = frozen.carry(of_expert, inside)
            part = part * _among(weight[inside], part)
            if out is None:
                out = part.new_zeros(len(numbers), *part.shape[1:])
            out.index_add_(0, place[outer], part)
        assert out is not None, "every position has its experts"
        return out

    def stem_scale(self, stem: Stem) -> Float[Tensor, "row 1"] | None:
        """What the normalizations before a stem multiply a part of each row by."""
        return scale_through(stem.steps, self.x)

    def vectors_at(self, vectors: Float[Tensor, "row model"]) -> AtStem:
        """One part for each row, given as vectors that enter the block."""

        def at_stem(stem: Stem, rows: slice | Tensor) -> Tensor:
            part, scale = linear(stem.steps, vectors[rows]), self.stem_scale(stem)
            return (part if scale is None else part * scale[rows]) @ stem.weight

        return at_stem

    def rest_at(self, known: Mapping[Stem, Float[Tensor, "row width"]], constants: Constants) -> AtStem:
        """What is left at the stems without a known part there, and without what belongs to no position."""

        def at_stem(stem: Stem, rows: slice | Tensor) -> Tensor:
            left = self._values[stem] - known[stem]
            return constants.through(stem.steps, self.x).take_off(left, stem)[rows]

        return at_stem


def _among(factor: Float[Tensor, "row width"], part: Tensor) -> Tensor:
    """A factor by row beside parts of several pairs."""
    return factor if part.ndim == factor.ndim else factor.unsqueeze(1)


@dataclass(frozen=True)
class Constants:
    """A sum of a few fixed vectors, each with a coefficient by row (None: one): what biases become on their way."""

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
            shift = step.vector if isinstance(step, Shift) else None if isinstance(step, Scaling) else step.beta
            if shift is not None:
                terms.append((None, shift))
        return Constants(self.rows, tuple(terms))

    def plus(self, vector: Tensor | None) -> Constants:
        """With one more vector, the same in every row."""
        return self if vector is None else Constants(self.rows, (*self.terms, (None, vector)))

    def take_off(self, vectors: Float[Tensor, "row width"], stem: Stem) -> Float[Tensor, "row width"]:
        """Take the sum, as a stem sees it, off these vectors, in place: a product of a few vectors, not of one per row."""
        fixed = stem.constants(torch.stack([vector for _, vector in self.terms]) if self.terms else None)
        if not len(fixed):
            return vectors
        one = vectors.new_ones(self.rows, 1)
        coefficients = [one if c is None else c for c, _ in self.terms] + [one] * (len(fixed) - len(self.terms))
        return vectors.addmm_(torch.cat(coefficients, dim=1), fixed, alpha=-1)
