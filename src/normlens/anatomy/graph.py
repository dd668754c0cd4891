"""Questions to a trace that every reader asks: where can a value be seen, which operation is a linear map."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normlens.anatomy.description import AffineMap, Layout, LinearMap, ParameterMap, TensorRef
from normlens.anatomy.operations import LAYOUT
from normlens.anatomy.trace import AttentionEvent, Call, Operation, Trace, Value
from normlens.errors import AnatomyError

SPLITS = {"aten::split", "aten::split_with_sizes", "aten::chunk", "aten::unbind"}
ADD = {"aten::add", "aten::add_"}
SUBTRACT = {"aten::sub", "aten::sub_"}
MULTIPLY = {"aten::mul", "aten::mul_"}
DIVIDE = {"aten::div", "aten::div_"}
PRODUCTS = {"aten::bmm", "aten::baddbmm", "aten::mm", "aten::matmul"}


@dataclass(frozen=True)
class Linear:
    """One linear map as it ran: the value it took, the value it gave, and the map."""

    taken: int
    given: int
    map: AffineMap
    start: int
    end: int
    input: TensorRef
    output: TensorRef


class Graph:
    """One attention of a trace and the ways that lead from and to it."""

    def __init__(self, family: str, trace: Trace, event: AttentionEvent) -> None:
        self.family = family
        self.trace = trace
        self.event = event
        self.queries = event.alpha.shape[2]

    # ---- linear maps ---------------------------------------------------------------------------------------------

    def linear_taking(self, value: int) -> list[Linear]:
        """The linear maps that take this value after the attention ended."""
        calls = [self.trace.calls[c] for c in self.trace.taken_by[value]]
        whole = [c for c in calls if c.start >= self.event.end and is_linear(c) and c.inputs[0][1] == value]
        # A wrapper (LoRA) and the layer it wraps take the same tensor: the outer one is the whole map.
        outer = [c for c in whole if not any(parent.index in c.parents for parent in whole)]
        found = [self._of_call(call) for call in outer]
        for index in self.trace.consumers[value]:
            if index >= self.event.end and not any(linear.start <= index < linear.end for linear in found):
                linear = self.linear_operation(self.trace.operations[index], value)
                if linear is not None:
                    found.append(linear)
        return found

    def linear_giving(self, value: int) -> Linear | None:
        """The linear map that gave this value."""
        for index in self.trace.given_by[value]:
            call = self.trace.calls[index]
            if is_linear(call):
                return self._of_call(call)
        if value in self.trace.producer:
            operation = self.trace.operations[self.trace.producer[value]]
            position = {"aten::addmm": 1, "aten::mm": 0, "aten::bmm": 0}.get(operation.name)
            if position is not None and isinstance(operation.operands[position], Value):
                return self.linear_operation(operation, operation.operands[position].number)
        return None

    def _of_call(self, call: Call) -> Linear:
        return Linear(
            call.inputs[0][1],
            call.outputs[0][1],
            LinearMap(call.module, call.path),
            call.start,
            call.end,
            self._place(
                TensorRef(call.module, call.path, "input", call.inputs[0][0], call.occurrence), call.inputs[0][1]
            ),
            self._place(
                TensorRef(call.module, call.path, "output", call.outputs[0][0], call.occurrence), call.outputs[0][1]
            ),
        )

    def linear_operation(self, operation: Operation, value: int) -> Linear | None:
        """The product of a value with a parameter, outside of any Linear module."""
        operands = operation.operands
        if operation.name == "aten::addmm" and operands[1] == Value(value):
            position, weight, bias = 1, operands[2], operands[0]
        elif operation.name in ("aten::mm", "aten::bmm") and operands[0] == Value(value):
            position, weight, bias = 0, operands[1], None
        else:
            return None
        found = self._parameter(weight)
        shift = self._parameter(bias) if bias is not None else None
        if found is None or (bias is not None and shift is None):
            return None
        if operation.name == "aten::bmm" and self.trace.tensors[weight.number].shape[0] != 1:
            return None
        scope = self.trace.calls[operation.scope]
        key = operation.key
        given = operation.outputs[0]
        return Linear(
            value,
            given,
            ParameterMap(
                scope.module,
                found[0],
                None if shift is None else shift[0],
                found[1],
                () if shift is None else shift[1],
                scope.path,
            ),
            operation.index,
            operation.index + 1,
            self._place(TensorRef(scope.module, scope.path, "input", (position,), scope.occurrence, key), value),
            self._place(TensorRef(scope.module, scope.path, "output", (0,), scope.occurrence, key), given),
        )

    def _parameter(self, operand: object) -> tuple[Tensor, tuple[Layout, ...]] | None:
        """The parameter that an operand comes from, and the operations that gave it another layout."""
        if not isinstance(operand, Value):
            return None
        steps: list[Layout] = []
        number = operand.number
        while number in self.trace.producer:
            operation = self.trace.operations[self.trace.producer[number]]
            if operation.name not in LAYOUT | SPLITS or len(operation.inputs) != 1:
                return None
            index = operation.outputs.index(number) if operation.name in SPLITS else None
            steps.append((operation.name.removeprefix("aten::"), tuple(operation.operands[1:]), index))
            number = operation.inputs[0]
        tensor = self.trace.tensors[number]
        return (tensor, tuple(reversed(steps))) if isinstance(tensor, nn.Parameter) else None

    def constant(self, operand: object, width: int) -> float | Tensor | None:
        """An operand that no input changes: a number, or one number per coordinate; None where it is neither."""
        if isinstance(operand, int | float):
            return float(operand)
        if not isinstance(operand, Value):
            return None
        number = operand.number
        while number in self.trace.producer:
            operation = self.trace.operations[self.trace.producer[number]]
            if operation.name not in LAYOUT or len(operation.inputs) != 1:
                return None
            number = operation.inputs[0]
        tensor = self.trace.tensors[number]
        if tensor.numel() == 1:
            return float(tensor)
        return tensor.detach().reshape(-1) if tensor.numel() == width else None

    def fixed_number(self, operand: object) -> float | None:
        """One number that no input changes, computed from parameters as it may be; None where it is not."""
        if isinstance(operand, int | float):
            return float(operand)
        if not isinstance(operand, Value) or self.trace.tensors[operand.number].numel() != 1:
            return None
        given = {number for _, number in self.trace.calls[0].inputs}
        return None if given & self.trace.ancestors(operand.number) else float(self.trace.tensors[operand.number])

    def has_learned_queries(self) -> bool:
        """Return True if no input of the model decides what the attention's queries are."""
        trace = self.trace
        inside = range(self.event.begin, self.event.end)
        products = [trace.operations[i] for i in inside if trace.operations[i].name in PRODUCTS]
        if not products:
            return False
        weights = next((n for n in products[-1].inputs if n != self.event.value), None)
        while weights is not None and weights in trace.producer:
            operation = trace.operations[trace.producer[weights]]
            if operation.name in PRODUCTS:
                given = {number for _, number in trace.calls[0].inputs}
                matrices = [o.number for o in operation.operands if isinstance(o, Value)][-2:]
                return not given & trace.ancestors(matrices[0])
            weights = operation.inputs[0] if operation.inputs else None
        return False

    # ---- places --------------------------------------------------------------------------------------------------

    def visible(self, value: int, what: str) -> TensorRef:
        """A place where this value can be read: at a module's boundary if it passes one, else at its operation."""
        found = self.at_boundary(value)
        if found is not None:
            return found
        if value in self.trace.producer:
            operation = self.trace.operations[self.trace.producer[value]]
            if operation.scope >= 0:
                scope = self.trace.calls[operation.scope]
                key = operation.key
                position = (operation.outputs.index(value),)
                place = TensorRef(scope.module, scope.path, "output", position, scope.occurrence, key)
                return self._place(place, value)
        raise self.stopped(f"{what} must be computed by the model to be seen", "it is not")

    def copy_at_boundary(self, place: TensorRef, value: int, *, onwards: bool) -> TensorRef:
        """A place at a module's boundary where the same numbers stand in another layout; the given one where none is.

        Which operations a product is made of may change with the batch (PyTorch folds axes where memory allows); what
        passes a boundary does not.
        """
        if place.operation is None:
            return place
        stack, seen = [value], set()
        while stack:
            current = stack.pop()
            if current in seen or self.trace.tensors[current].numel() != self.trace.tensors[value].numel():
                continue
            seen.add(current)
            found = self.at_boundary(current)
            if found is not None and self.trace.tensors[current].ndim == 3:
                return found
            if onwards:
                steps = [self.trace.operations[i] for i in self.trace.consumers[current]]
                stack.extend(step.outputs[0] for step in steps if step.name in LAYOUT)
            elif current in self.trace.producer:
                step = self.trace.operations[self.trace.producer[current]]
                stack.extend(step.inputs if step.name in LAYOUT else ())
        return place

    def at_boundary(self, value: int) -> TensorRef | None:
        """A place where this value passes a module's boundary."""
        given = [(self.trace.calls[index], "output") for index in self.trace.given_by[value]]
        taken = [(self.trace.calls[index], "input") for index in self.trace.taken_by[value]]
        options = []
        for call, side in given + taken:
            pairs = call.outputs if side == "output" else call.inputs
            key = next(key for key, number in pairs if number == value)
            # A module that gives one tensor: nothing about it depends on the inputs. Then arguments, then the rest.
            rank = 0 if side == "output" and key == () else 1 if side == "input" else 2
            options.append((rank, call, side, key))
        if not options:
            return None
        _, call, side, key = min(options, key=lambda option: option[0])
        return self._place(TensorRef(call.module, call.path, side, key, call.occurrence), value)  # type: ignore[arg-type]

    def _place(self, place: TensorRef, value: int) -> TensorRef:
        tensor = self.trace.tensors[value]
        # The trace has one sequence: an axis of length one in the middle is the batch.
        first = tensor.ndim == 3 and tensor.shape[0] > 1 and tensor.shape[1] == 1
        return replace(place, sequence_first=first, changes=tensor.untyped_storage().data_ptr() in self.trace.changed)

    def stopped(self, rule: str, arrived: str) -> AnatomyError:
        return AnatomyError(
            f"{rule}: in {self.family!r} at {self.event.path}, {arrived}; see docs/adding_a_family.md to teach it"
        )


def is_linear(call: Call) -> bool:
    """Return True if a call is one linear map of one tensor: Linear, Conv1D, or a wrapper around a Linear."""
    if len(call.inputs) != 1 or len(call.outputs) != 1:
        return False
    module: nn.Module = call.module
    return isinstance(module, nn.Linear | Conv1D) or isinstance(getattr(module, "base_layer", None), nn.Linear | Conv1D)
