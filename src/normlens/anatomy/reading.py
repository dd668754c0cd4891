"""Read a model's anatomy from one traced forward pass.

The rule, the same for every family: start where an attention ends, follow its output to the linear map that takes it
(the output projection), follow that map's output to the addition with a value that attention itself came from (the
residual), and look whether the sum goes through a normalization before anything else sees it (post-norm). What is met
between projection and sum (a normalization, a constant, a parallel branch) is written down on the way.
Whatever is read here is only believed after the reconstruction proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normlens.anatomy.description import Anatomy, LinearMap, Norm, Place, Scale, Site, Step, ValueMap
from normlens.anatomy.norms import read_norm
from normlens.anatomy.numbering import kind_of, layer_numbers
from normlens.anatomy.trace import AttentionEvent, Call, Operation, Trace, Value
from normlens.errors import AnatomyError

#: Operations that hand a tensor on with the same numbers in another shape, layout or dtype.
_SAME = {
    f"aten::{name}"
    for name in ["view", "_unsafe_view", "reshape", "transpose", "permute", "clone", "contiguous", "_to_copy", "alias", "detach", "expand", "squeeze", "unsqueeze", "t", "slice", "select", "_reshape_alias", "lift_fresh", "to", "unflatten", "flatten"]
}
_ADD = {"aten::add", "aten::add_"}
_MULTIPLY = {"aten::mul", "aten::mul_"}


def read_anatomy(family: str, trace: Trace) -> Anatomy:
    """The sites of a traced model; raises `AnatomyError` that says what was looked for and where reading stopped."""
    if not trace.attentions:
        raise AnatomyError(
            f"every attention must go through transformers' attention interface: {family!r} called it nowhere; "
            "see docs/adding_a_family.md"
        )
    kinds = [kind_of(trace, event) for event in trace.attentions]
    layers = layer_numbers(trace, kinds)
    return Anatomy(
        family,
        tuple(
            _Reader(family, trace, event).site(kind, layer)
            for event, kind, layer in zip(trace.attentions, kinds, layers, strict=True)
        ),
    )


@dataclass
class _Joined:
    """How the projected output joins the residual stream."""

    steps: list[Step] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    residual: int = -1
    total: int = -1


@dataclass
class _Reader:
    """Follows the output of one attention through the trace."""

    family: str
    trace: Trace
    event: AttentionEvent

    def site(self, kind: str, layer: int) -> Site:
        trace, event = self.trace, self.event
        projection = self._projection()
        given = projection.outputs[0][1]
        linear = LinearMap(projection.module, projection.path)
        joined = self._join(given)
        norm_call = self._post_norm(joined.total, trace.tensors[given].shape[-1])
        residual, scale = self._residual(joined.residual)
        x, value_map = self._value_map()
        return Site(
            kind=kind,  # type: ignore[arg-type]
            layer=layer,
            attention=event.module,
            path=event.path,
            heads=trace.tensors[event.alpha].shape[1],
            kv_heads=trace.tensors[event.value].shape[1],
            value_width=trace.tensors[event.value].shape[-1],
            textbook=event.textbook,
            projection=linear,
            projected=_output(projection),
            branch=tuple(joined.steps),
            residual=residual,
            residual_scale=scale,
            others=tuple(self._visible(other, "a branch beside attention") for other in joined.others),
            total=self._visible(joined.total, "the residual sum"),
            norm=None if norm_call is None else self._norm(norm_call),
            normalized=None if norm_call is None else _output(norm_call),
            x=x,
            value_map=value_map,
        )

    # ---- the output projection -----------------------------------------------------------------------------------

    def _projection(self) -> Call:
        """The one linear map whose input is the attention output, its heads side by side."""
        found: list[Call] = []
        stack, seen, met = [self.event.output], set(), []
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            taking = [self.trace.calls[c] for c in self.trace.taken_by[value]]
            linear = [c for c in taking if c.start >= self.event.end and _is_linear(c) and c.inputs[0][1] == value]
            # A wrapper (LoRA) and the layer it wraps take the same tensor: the outer one is the whole map.
            outer = [c for c in linear if not any(parent.index in c.parents for parent in linear)]
            found.extend(outer)
            inside = {index for call in outer for index in range(call.start, call.end)}
            for index in self.trace.consumers[value]:
                operation = self.trace.operations[index]
                if index < self.event.end or index in inside:
                    continue
                if operation.name in _SAME:
                    stack.extend(operation.outputs)
                else:
                    met.append(operation.name)
        if len(found) != 1:
            what = (
                "nothing took it" if not met and not found else f"{len(found)} did; on the way: {', '.join(met) or '-'}"
            )
            raise self._stopped("exactly one linear map must take the attention output", what)
        heads = self.trace.tensors[self.event.output]
        taken = self.trace.tensors[found[0].inputs[0][1]]
        if not torch.equal(heads.reshape(taken.shape), taken):
            raise self._stopped(
                "the output projection must take the heads side by side", f"{found[0].path} takes another order"
            )
        return found[0]

    # ---- the way into the residual stream ------------------------------------------------------------------------

    def _join(self, value: int) -> _Joined:
        upstream = self.trace.ancestors(self.event.output)
        width = self.trace.tensors[value].shape[-1]
        joined = _Joined()
        for _ in range(32):  # no family has a longer way than a few steps
            norm = self._norm_call(value, width)
            if norm is not None:
                joined.steps.append(self._norm(norm))
                value = norm.outputs[0][1]
                continue
            operation, other = self._next(value)
            if operation.name in _SAME:
                value = operation.outputs[0]
            elif operation.name in _MULTIPLY:
                joined.steps.append(Scale(self._constant(operation, value)))
                value = operation.outputs[0]
            elif isinstance(other, Value) and other.number in upstream:
                joined.residual, joined.total = other.number, operation.outputs[0]
                return joined
            elif isinstance(other, Value):
                if joined.others and other.number == joined.others[-1]:
                    raise self._stopped("a branch joins once", "the same value was added twice")
                joined.others.append(other.number)
                value = operation.outputs[0]
            else:
                break
        raise self._stopped("the projected output must be added to the residual", "no such addition was met")

    def _next(self, value: int) -> tuple[Operation, object]:
        """The operation that takes the branch on, and its other operand."""
        options: list[tuple[Operation, object]] = []
        for index in self.trace.consumers[value]:
            operation = self.trace.operations[index]
            if operation.name in _SAME and operation.operands[0] == Value(value):
                options.append((operation, None))
            elif operation.name in _ADD | _MULTIPLY:
                left, right = operation.operands[:2]
                options.append((operation, right if left == Value(value) else left))
        if len(options) != 1:
            names = [self.trace.operations[i].name for i in self.trace.consumers[value]]
            raise self._stopped(
                "the projected output must have one way into the residual stream",
                f"{len(options)} were met ({', '.join(names) or 'nothing takes it'})",
            )
        return options[0]

    def _constant(self, operation: Operation, value: int) -> float | Tensor:
        left, right = operation.operands[:2]
        factor = right if left == Value(value) else left
        if isinstance(factor, int | float):
            return float(factor)
        if isinstance(factor, Value) and factor.number not in self.trace.producer:
            tensor = self.trace.tensors[factor.number]
            if tensor.numel() == 1:
                return float(tensor)
            if tensor.shape == (self.trace.tensors[value].shape[-1],):
                return tensor.detach()
        raise self._stopped("only a constant may scale the branch", f"{operation.name} by something computed")

    def _residual(self, value: int) -> tuple[Place, float]:
        """Where the residual input can be read, and the constant that multiplies it on the way to the sum."""
        scale = 1.0
        while not self.trace.taken_by[value] and not self.trace.given_by[value]:
            operation = self.trace.operations[self.trace.producer[value]]
            if operation.name not in _MULTIPLY or not isinstance(operation.operands[1], int | float):
                break
            scale *= operation.operands[1]
            value = operation.inputs[0]
        return self._visible(value, "the residual input"), scale

    # ---- normalizations ------------------------------------------------------------------------------------------

    def _norm_call(self, value: int, width: int) -> Call | None:
        for index in self.trace.taken_by[value]:
            call = self.trace.calls[index]
            alone = len(call.inputs) == 1 and len(call.outputs) == 1 and call.start >= self.event.end
            if alone and call.outputs[0][1] != value and read_norm(call.module, call.path, width) is not None:
                return call
        return None

    def _norm(self, call: Call) -> Norm:
        norm = read_norm(call.module, call.path, self.trace.tensors[call.outputs[0][1]].shape[-1])
        if norm is None:
            raise self._stopped("a normalization must be readable", f"{call.path} is not")
        return norm

    def _post_norm(self, total: int, width: int) -> Call | None:
        """The normalization that all readers of the sum stand behind, if it belongs to the same block."""
        call = self._norm_call(total, width)
        if call is None or not set(call.parents) & set(self.event.parents[1:]):
            return None
        # In a pre-norm block the sum itself lives on: somebody else than the normalization takes it too.
        elsewhere = [i for i in self.trace.consumers[total] if not call.start <= i < call.end]
        return None if elsewhere or not self._same_block(call) else call

    def _same_block(self, call: Call) -> bool:
        """Whether a call stands inside the layer that holds this attention, not behind the whole stack."""
        depth = max((d for d, index in enumerate(self.event.parents) if self._in_list(index)), default=0)
        for index in self.event.parents[: depth + 1]:
            if self._in_list(index):
                return index in call.parents
        return True

    def _in_list(self, call: int) -> bool:
        return self.trace.calls[call].path.rpartition(".")[2].isdigit()

    # ---- where f acts --------------------------------------------------------------------------------------------

    def _value_map(self) -> tuple[Place, ValueMap | None]:
        """The input of the first linear map on the way to the values, and that way if it is one affine map."""
        own = next(self.trace.calls[i] for i in reversed(self.event.parents) if self._holds(i))
        inside = [
            call
            for call in self.trace.calls
            if call.start >= own.start and call.end <= self.event.end and call.end >= 0 and _is_linear(call)
        ]
        given = {call.outputs[0][1]: call for call in inside}
        chain: list[Call] = []
        value = self.event.value
        while (call := self._linear_behind(value, given, own)) is not None:
            chain.append(call)
            value = call.inputs[0][1]
        if not chain:
            raise self._stopped("the values must come from a linear map inside the attention module", "none was met")
        first = chain[-1]
        columns = self._columns(first) if len(chain) == 1 else None
        x = Place(first.module, first.path, "input", first.inputs[0][0], first.occurrence)
        return x, None if columns is None else ValueMap(LinearMap(first.module, first.path), columns)

    def _holds(self, call: int) -> bool:
        return self.trace.calls[call].module is self.event.module

    def _linear_behind(self, value: int, given: dict[int, Call], own: Call) -> Call | None:
        stack, seen = [value], set()
        while stack:
            current = stack.pop()
            if current in given:
                return given[current]
            if current in seen or current not in self.trace.producer:
                continue
            seen.add(current)
            operation = self.trace.operations[self.trace.producer[current]]
            if operation.index >= own.start:
                stack.extend(reversed(operation.inputs))
        return None

    def _columns(self, call: Call) -> Tensor | None:
        """Which columns of a (perhaps fused) map are the values: compared number by number, so any layout will do."""
        computed = self.trace.tensors[call.outputs[0][1]].flatten(0, -2)
        values = self.trace.tensors[self.event.value].transpose(1, 2)  # batch key kv_head width
        if computed.shape[0] != values.shape[0] * values.shape[1]:
            return None
        by_content = {column.numpy(force=True).tobytes(): i for i, column in enumerate(computed.float().T.contiguous())}
        wanted = values.flatten(0, 1).flatten(1).float().T.contiguous()
        found = [by_content.get(column.numpy(force=True).tobytes()) for column in wanted]
        return None if None in found else torch.tensor(found).view(values.shape[2], values.shape[3])

    # ---- places and errors ---------------------------------------------------------------------------------------

    def _visible(self, value: int, what: str) -> Place:
        """A place where this value passes a module's boundary."""
        for index in self.trace.given_by[value]:
            call = self.trace.calls[index]
            key = next(key for key, number in call.outputs if number == value)
            if key == ():  # a module that gives one tensor: nothing about it depends on the inputs
                return Place(call.module, call.path, "output", key, call.occurrence)
        for index in self.trace.taken_by[value]:
            call = self.trace.calls[index]
            key = next(key for key, number in call.inputs if number == value)
            return Place(call.module, call.path, "input", key, call.occurrence)
        for index in self.trace.given_by[value]:
            call = self.trace.calls[index]
            key = next(key for key, number in call.outputs if number == value)
            return Place(call.module, call.path, "output", key, call.occurrence)
        raise self._stopped(f"{what} must pass a module's boundary to be seen", "it does not")

    def _stopped(self, rule: str, arrived: str) -> AnatomyError:
        return AnatomyError(
            f"{rule}: in {self.family!r} at {self.event.path}, {arrived}; see docs/adding_a_family.md to teach it"
        )


def _output(call: Call) -> Place:
    return Place(call.module, call.path, "output", call.outputs[0][0], call.occurrence)


def _is_linear(call: Call) -> bool:
    """Whether a call is one linear map of one tensor: Linear, Conv1D, or a wrapper around a Linear."""
    if len(call.inputs) != 1 or len(call.outputs) != 1:
        return False
    module: nn.Module = call.module
    return isinstance(module, nn.Linear | Conv1D) or isinstance(getattr(module, "base_layer", None), nn.Linear)
