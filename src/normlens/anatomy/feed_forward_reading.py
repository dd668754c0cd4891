"""Read a feed-forward block from the trace, backwards from what it adds to the stream to the stream itself.

Met on the way are linear maps, activations (whole ones, or spelled out as a chain of element-wise operations), products
of two of them (gated units), normalizations, constants, sums, and the experts of a router. What is found is a recipe for
the tree of `normlens.decompose.feed_forward`, and the places where the model's own numbers are read. Anything else stops
the reading with the operation's name; the reconstruction proof confirms the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normlens.anatomy.description import FeedForward, TensorRef
from normlens.anatomy.experts import ExpertWeights, experts_giving
from normlens.anatomy.graph import ADD, MULTIPLY, Graph, Linear
from normlens.anatomy.joining import constant_step, same_numel
from normlens.anatomy.norms import norm_of
from normlens.anatomy.operations import LAYOUT
from normlens.anatomy.trace import Call, Operation, Value
from normlens.decompose import feed_forward as trees
from normlens.decompose.steps import Normalization, Step

_UNARY = {
    *("gelu", "silu", "relu", "tanh", "sigmoid", "erf", "mish", "elu", "leaky_relu", "hardswish", "hardsigmoid"),
    *("hardtanh", "abs", "pow", "square", "neg", "clamp", "clamp_min", "clamp_max", "relu6", "softsign"),
}
#: Those that only multiply or add a number bend nothing.
_BINARY = {"add", "sub", "mul", "div", "maximum", "minimum"}
_SPLITS = {"aten::split", "aten::split_with_sizes", "aten::unbind"}


@dataclass(frozen=True)
class _Chain:
    """A value as an element-wise function of another one; `key` is None where it has weights of its own."""

    source: int
    function: Callable[[Tensor], Tensor]
    key: Hashable | None
    bent: bool


@dataclass(eq=False)
class Recipe:
    """A builder of a tree node in a working dtype, from the model's weights as they are then."""

    make: Callable[[_Builder], trees.Node]
    bent: bool = False


@dataclass
class _Builder:
    """Makes each node once, however often it is used."""

    dtype: torch.dtype
    _made: dict[int, trees.Node] = field(default_factory=dict)

    def __call__(self, recipe: Recipe) -> trees.Node:
        if id(recipe) not in self._made:
            self._made[id(recipe)] = recipe.make(self)
        return self._made[id(recipe)]

    def steps(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(step.to(self.dtype) for step in steps)


def read_feed_forward(
    graph: Graph, stream: int, branch: int, stream_steps: tuple[Step, ...], *, parallel: bool
) -> FeedForward:
    """The block whose output `branch` joins the stream; raises `AnatomyError` with what could not be read."""
    reader = _Reader(graph, stream)
    steps, output = reader.peeled(branch)
    recipe = reader.read(output)

    def build(dtype: torch.dtype) -> trees.Node:
        return _Builder(dtype)(recipe)

    return FeedForward(
        build,
        tuple(dict.fromkeys(reader.places)),
        reader.place(output),
        steps,
        stream_steps,
        parallel,
        reader.routed,
    )


class _Reader:
    """Reads one block; each value once."""

    def __init__(self, graph: Graph, stream: int) -> None:
        self.graph, self.trace, self.stream = graph, graph.trace, stream
        self.width = self.trace.tensors[stream].shape[-1]
        self.positions = self.trace.tensors[stream].numel() // self.width
        self.sequence_first = graph.visible(stream, "what enters the feed-forward block").sequence_first
        self.places: list[TensorRef] = []
        self.routed = False
        self._read: dict[int, Recipe] = {}

    # ---- along the way -------------------------------------------------------------------------------------------

    def place(self, value: int) -> TensorRef:
        """The tensor at which a value is read in later runs: at a boundary, if the same numbers pass one in any layout."""
        found = self.graph.visible(value, "what the feed-forward block computes")
        return self._oriented(self.graph.copy_at_boundary(found, value, onwards=True))

    def _oriented(self, place: TensorRef) -> TensorRef:
        # Rows of products in the middle of the code show no axis: they stand as the stream does.
        flat = self.sequence_first and not place.sequence_first
        return replace(place, sequence_first=True) if flat else place

    def _seen(self, place: TensorRef) -> TensorRef:
        self.places.append(place)
        return place

    def _producer(self, value: int) -> Operation | None:
        index = self.trace.producer.get(value)
        return None if index is None else self.trace.operations[index]

    def _norm_giving(self, value: int) -> tuple[Call, Normalization] | None:
        for index in self.trace.given_by[value]:
            call = self.trace.calls[index]
            if len(call.inputs) == 1 and len(call.outputs) == 1 and call.inputs[0][1] != value:
                norm = norm_of(self.graph, call, self.trace.tensors[value].shape[-1])
                if norm is not None:
                    return call, norm
        return None

    def _laid_out(self, value: int) -> int | None:
        """The value that this one is a mere layout of."""
        operation = self._producer(value)
        if operation is None or operation.name not in LAYOUT or not operation.inputs:
            return None
        source = operation.inputs[0]
        return source if same_numel(self.graph, source, value) else None

    def _constant_before(self, value: int) -> tuple[int, Step] | None:
        """The value before a constant that multiplies, divides or is added, and that constant."""
        operation = self._producer(value)
        if operation is None or not operation.outputs or operation.outputs[0] != value:
            return None
        for operand in operation.operands[:2]:
            if isinstance(operand, Value) and same_numel(self.graph, operand.number, value):
                step = constant_step(self.graph, operation, operand.number, self.trace.tensors[value].shape[-1])
                if step is not None:
                    return operand.number, step
        return None

    def peeled(self, value: int) -> tuple[tuple[Step, ...], int]:
        """The path from the block's last linear map to the sum: steps of the branch, and where they begin."""
        steps: list[Step] = []
        while self.graph.linear_giving(value) is None and experts_giving(self.graph, value) is None:
            norm, laid, constant = self._norm_giving(value), self._laid_out(value), self._constant_before(value)
            if norm is not None:
                steps.append(norm[1])
                value = norm[0].inputs[0][1]
            elif laid is not None:
                value = laid
            elif constant is not None:
                value = constant[0]
                steps.append(constant[1])
            else:
                break
        return tuple(reversed(steps)), value

    def entering(self, value: int) -> tuple[Step, ...] | None:
        """The steps from the stream to a value; None where something else stands in between."""
        if value == self.stream:
            return ()
        norm, laid, constant = self._norm_giving(value), self._laid_out(value), self._constant_before(value)
        before: int | None = None
        step: tuple[Step, ...] = ()
        if norm is not None:
            before, step = norm[0].inputs[0][1], (norm[1],)
        elif laid is not None:
            before = laid
        elif constant is not None:
            before, step = constant[0], (constant[1],)
        found = None if before is None else self.entering(before)
        return None if found is None else (*found, *step)

    # ---- the tree ------------------------------------------------------------------------------------------------

    def read(self, value: int) -> Recipe:
        """The recipe of one value."""
        if value not in self._read:
            self._read[value] = self._recipe(value)
        return self._read[value]

    def _recipe(self, value: int) -> Recipe:
        linear = self.graph.linear_giving(value)
        if linear is not None:
            return self._linear(linear)
        experts = experts_giving(self.graph, value)
        if experts is not None:
            return self._experts(experts)
        norm = self._norm_giving(value)
        if norm is not None:
            source = self.read(norm[0].inputs[0][1])
            return Recipe(lambda build: trees.AffineSteps(build(source), build.steps((norm[1],))))
        laid = self._laid_out(value)
        if laid is not None:
            return self.read(laid)
        chain = self._chain(value)
        if chain.source != value:
            source = self.read(chain.source)
            return Recipe(lambda build: trees.Activation(build(source), chain.function, chain.key), chain.bent)
        operation = self._producer(value)
        if operation is None or not self.trace.comes_from(value, self.stream):
            raise self._stopped("a value that does not come from the stream")
        columns = self._columns(operation, value)
        if columns is not None:
            source = self.read(operation.inputs[0])
            return Recipe(lambda build: trees.Columns(build(source), *columns))
        tensors = [operand.number for operand in operation.operands[:2] if isinstance(operand, Value)]
        if operation.name in MULTIPLY and len(tensors) == 2:
            return self._product(*tensors)
        if operation.name in ADD and len(tensors) == 2:
            left, right = map(self.read, tensors)
            return Recipe(lambda build: trees.Sum(build(left), build(right)))
        if operation.name == "aten::glu":
            return self._glu(operation)
        raise self._stopped(f"`{operation.name.removeprefix('aten::')}`")

    def _stopped(self, what: str) -> Exception:
        return self.graph.stopped(
            "a feed-forward block is made of linear maps, activations, gates, normalizations and experts",
            f"{what} was met on the way back to the stream",
        )

    def _linear(self, linear: Linear) -> Recipe:
        steps = self.entering(linear.taken)
        if steps is None:
            source = self.read(linear.taken)
            return Recipe(
                lambda build: trees.Affine(
                    build(source), linear.map.matrix().to(build.dtype), _to(linear.map.bias(), build.dtype)
                )
            )
        copy = self.graph.copy_at_boundary(linear.output, linear.given, onwards=True)
        place = self._seen(self._oriented(copy))
        return Recipe(
            lambda build: trees.InputLinear(
                build.steps(steps), linear.map.matrix().to(build.dtype), _to(linear.map.bias(), build.dtype), place
            )
        )

    def _experts(self, found: ExpertWeights) -> Recipe:
        steps = self.entering(found.taken)
        if steps is None:
            raise self._stopped("something before the experts that is no normalization")
        self.routed = True
        chosen, weights = self._seen(found.chosen), self._seen(found.weights)

        def make(build: _Builder) -> trees.Node:
            first, second = found.matrices(build.dtype)
            return trees.Experts(
                build.steps(steps), first, second, found.act, found.key, found.gated, found.interleaved, chosen, weights
            )

        return Recipe(make)

    def _product(self, left: int, right: int) -> Recipe:
        sizes = {value: self.trace.tensors[value].numel() for value in (left, right)}
        for weight, other in ((left, right), (right, left)):
            if sizes[weight] == self.positions and sizes[other] > self.positions:  # one number for a whole vector
                return self._weighted(weight, other)
        first, second = self.read(left), self.read(right)
        gate, other_one = (first, second) if first.bent else (second, first)
        if not gate.bent:
            return Recipe(lambda build: trees.Product(build(first), build(second)))

        def make(build: _Builder) -> trees.Node:
            made = build(gate)
            assert isinstance(made, trees.Activation), "only an activation bends"
            return trees.Gated(made, build(other_one))

        return Recipe(make)

    def _weighted(self, weight: int, other: int) -> Recipe:
        self.routed = True
        place, source = self._seen(self.place(weight)), self.read(other)
        return Recipe(lambda build: trees.RouterWeighted(build(source), place))

    def _glu(self, operation: Operation) -> Recipe:
        source, half = self.read(operation.inputs[0]), self.trace.tensors[operation.outputs[0]].shape[-1]

        def make(build: _Builder) -> trees.Node:
            gate = trees.Activation(trees.Columns(build(source), half, 2 * half), torch.sigmoid, ("aten", "sigmoid"))
            return trees.Gated(gate, trees.Columns(build(source), 0, half))

        return Recipe(make)

    def _columns(self, operation: Operation, value: int) -> tuple[int, int] | None:
        """The neighbouring coordinates of its input that an operation selects."""
        if not operation.inputs:
            return None
        source = self.trace.tensors[operation.inputs[0]]
        axis = next((o for o in operation.operands[2:] if isinstance(o, int)), 0)
        if operation.name in _SPLITS and axis in (-1, source.ndim - 1):
            sizes = [self.trace.tensors[output].shape[-1] for output in operation.outputs]
            start = sum(sizes[: operation.outputs.index(value)])
            return start, start + self.trace.tensors[value].shape[-1]
        if operation.name == "aten::slice" and operation.operands[1] in (-1, source.ndim - 1):
            step = operation.operands[4] if len(operation.operands) > 4 else 1
            start = operation.operands[2] or 0
            if step == 1 and isinstance(start, int):
                start = start + source.shape[-1] if start < 0 else start
                return start, start + self.trace.tensors[value].shape[-1]
        return None

    # ---- element-wise functions, however they are spelled --------------------------------------------------------

    def _chain(self, value: int) -> _Chain:
        here = _Chain(value, lambda z: z, ("aten",), False)
        operation = self._producer(value)
        if value == self.stream or operation is None or self.graph.linear_giving(value) is not None:
            return here
        laid = self._laid_out(value)
        if laid is not None:
            return self._chain(laid)
        name = operation.name.removeprefix("aten::").rstrip("_")
        if name not in _UNARY | _BINARY:
            return here
        operands = operation.operands[: 2 if name in _BINARY else None]
        live = [o for o in operands if isinstance(o, Value) and self.trace.comes_from(o.number, self.stream)]
        if not live or any(not same_numel(self.graph, o.number, value) for o in live):
            return here
        chains = {o.number: self._chain(o.number) for o in live}
        sources = {chain.source for chain in chains.values()}
        fixed = [o for o in operands if o not in live]
        known = [self._fixed(o, value) for o in fixed]
        if len(sources) != 1 or any(isinstance(o, Value) and f is None for o, f in zip(fixed, known, strict=True)):
            return here
        function = getattr(torch.ops.aten, name)
        options = dict(operation.options)
        arguments: list[Any] = [
            chains[o.number].function if o in live else _Number(known[fixed.index(o)] if isinstance(o, Value) else o)
            for o in operands
        ]

        def joined(z: Tensor) -> Tensor:
            given = [a.value(z) if isinstance(a, _Number) else a(z) for a in arguments]
            return function(*given, **options)  # type: ignore[no-any-return]

        keys = [chains[o.number].key if o in live else _Number(o).key for o in operands]
        key = None if None in keys else ("aten", name, *keys, *sorted(options.items()))
        bends = name in _UNARY or len(live) > 1
        return _Chain(sources.pop(), joined, key, bends or any(chain.bent for chain in chains.values()))

    def _fixed(self, operand: Any, value: int) -> float | Tensor | None:
        if isinstance(operand, Value):
            return self.graph.constant(operand, self.trace.tensors[value].shape[-1])
        return None


@dataclass(frozen=True)
class _Number:
    """A constant operand."""

    constant: Any

    def value(self, like: Tensor) -> Any:
        return self.constant.to(like) if isinstance(self.constant, Tensor) else self.constant

    @property
    def key(self) -> Hashable | None:
        return None if isinstance(self.constant, Tensor | Value) else ("number", self.constant)


def _to(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias.to(dtype)
