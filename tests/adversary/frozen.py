"""The frozen map of an odd model written out by hand, in float64: every term is what is missing when its vector is.

Nothing that computes here knows normlens, gradients or the model's `forward`: weights are read from its modules, what is
held fixed comes from one ordinary run, and the same affine map is then run again and again with one vector (an input, a
state, an edge, a head, a block's output, a block's biases) taken out. The map is affine, so what is missing then is exactly
the term. What a block gives *directly* is missing from the stream when its output is taken out and all later blocks put
out what they did. A memory that is handed in belongs to no input: what is made of it counts among the biases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from normlens.results.explanation import Explanation
from tests.adversary.models import Experts, Gated, OddBlock, OddLayer, OddModel, asked
from tests.reference.blocks import Attention

#: What is taken out: ("state", layer, key), ("edge", layer, head, query, key), ("head", layer, head),
#: ("block", layer, block, key), ("biases", layer, block).
Taken = tuple[Any, ...]
#: By layer and block.
Outputs = dict[tuple[int, str], Tensor]


@dataclass
class FrozenOdd:
    """The affine map of one run."""

    model: OddModel
    inputs: dict[str, Any]
    record: list[Attention] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model).double().eval()
        self.inputs = {
            n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in self.inputs.items()
        }
        with torch.no_grad():
            self.own = self.model(**self.inputs, record=self.record)
            found: list[Tensor] = []
            handle = self.model.layers[0].register_forward_pre_hook(lambda module, args: found.append(args[0]))
            self.model(**self.inputs)
            handle.remove()
        self.entering = found[0]
        self.held: dict[Any, Tensor] = {}
        self._maps: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self.outputs: Outputs = {}  # of the last run
        self.run()

    def run(self, *taken: Taken, outputs: Outputs | None = None) -> Tensor:
        """The last state (row, position, width), with something taken out; `outputs` are what the blocks shall put out."""
        self._taken, self.outputs, self._fixed = set(taken), {}, outputs
        recipe = self.model.recipe
        x = self.entering
        with torch.no_grad():
            for number in range(recipe.layers):
                x = self._without(x, "state", number + 1)
                x = self._layer(x, number, self.model.layers[0 if recipe.shared else number])
            if self.model.final is not None:
                x = self._norm(x, self.model.final, ("final",), 0, "head")
        return x

    def _without(self, x: Tensor, *what: Any) -> Tensor:
        for key in range(x.shape[1]):
            if (*what, key) in self._taken:
                x = x.clone()
                x[:, key] = 0
        return x

    def _put_out(self, out: Tensor, layer: int, block: str) -> Tensor:
        """A block's output as it enters the residual sum."""
        self.outputs[layer, block] = out
        return self._without(out if self._fixed is None else self._fixed[layer, block], "block", layer, block)

    def _layer(self, x: Tensor, number: int, layer: OddLayer) -> Tensor:
        per_layer = 2 if self.model.recipe.cross else 1
        x = self._block(x, number, layer.own, self.record[per_layer * number], None)
        if layer.other is not None:
            x = self._block(x, number, layer.other, self.record[per_layer * number + 1], self.inputs["memory"])
        h = self._norm(x, layer.norm, ("norm", number), number + 1, "feed_forward")
        y = self._feed_forward(h, layer.feed_forward, ("feed_forward", number), number + 1, "feed_forward")
        return x + self._put_out(y, number + 1, "feed_forward")

    def _block(self, x: Tensor, number: int, block: OddBlock, seen: Attention, memory: Tensor | None) -> Tensor:
        r, layer = self.model.recipe, number + 1
        kind, name = ("attention", ("own", number)) if memory is None else ("cross_attention", ("other", number))
        if memory is not None and ("biases", layer, kind) in self._taken:
            memory = torch.zeros_like(memory)
        h = x if block.first is None else self._norm(x, block.first, (*name, "first"), layer, kind)
        out = self._attention(h, h if memory is None else memory, block, seen, name, layer, kind)
        if block.branch is not None:
            out = self._norm(out, block.branch, (*name, "branch"), layer, kind)
        if block.scale is not None:
            out = out * block.scale
        out = out * r.branch_scale
        total = x * r.residual_scale + self._put_out(out, layer, kind)
        if block.beside is not None:
            beside = self._feed_forward(h, block.beside, (*name, "beside"), layer, "beside")
            total = total + self._put_out(beside, layer, f"beside {kind}")
        if r.sum_scale != 1.0 and block.last is not None:
            total = total * r.sum_scale
        return total if block.last is None else self._norm(total, block.last, (*name, "last"), layer, kind)

    def _attention(
        self, h: Tensor, keys: Tensor, block: OddBlock, seen: Attention, name: Any, layer: int, kind: str
    ) -> Tensor:
        r, attention = self.model.recipe, block.attention
        alpha = torch.from_numpy(seen.alpha)
        if attention.fused:
            values = self._linear(keys, attention.qkv, layer, kind)[..., -attention.sizes[2] :]
        else:
            values = self._linear(keys, attention.v, layer, kind)
        values = values.unflatten(-1, (r.kv_heads, r.value_width)).repeat_interleave(r.heads // r.kv_heads, dim=2)
        whole = self._values(name, values)  # b_V goes with its key in an edge, whatever is taken out elsewhere
        o = torch.einsum("bhqk,bkhd->bqhd", alpha, values)
        for what in self._taken:
            if kind == "attention" and what[:2] == ("edge", layer):
                _, _, head, query, key = what
                o[:, query, head] -= alpha[:, head, query, key, None] * whole[:, key, head]
            if kind == "attention" and what[:2] == ("head", layer):
                o[:, :, what[2]] = 0
        if attention.inner_norm is not None:
            y = o.flatten(2) if r.inner_norm == "all" else o
            o = self._norm(y, attention.inner_norm, (*name, "inner"), layer, kind).view(o.shape)
        if attention.gate is not None:
            a = self._linear(h, attention.gate, layer, kind)
            if kind == "cross_attention":  # of a constant: an activation, times a number
                shape = a.shape if r.gate == "coordinate" else (*a.shape, 1)
                fixed = self._hold((*name, "b"), o.flatten(2) if r.gate == "coordinate" else o)
                bent = self._slope(lambda z: torch.sigmoid(z) - 0.5, a, name).view(shape) * fixed
                o = (bent if ("biases", layer, kind) in self._taken else bent + 0.5 * fixed).view(o.shape)
            elif r.gate == "coordinate":
                o = self._gate(torch.sigmoid, a, o.flatten(2), (*name, "gate")).view(o.shape)
            else:  # one number for a whole vector is a weight
                o = o * self._hold((*name, "gate"), torch.sigmoid(a)).unsqueeze(-1)
        return self._linear(o.flatten(2), attention.o, layer, kind)

    def _values(self, name: Any, values: Tensor) -> Tensor:
        return self._hold((*name, "values"), values)

    # ---- steps ---------------------------------------------------------------------------------------------------------

    def _hold(self, name: Any, computed: Tensor) -> Tensor:
        """The first run decides."""
        return self.held.setdefault(name, computed)

    def _linear(self, x: Tensor, module: nn.Module, layer: int, block: str) -> Tensor:
        if module not in self._maps:
            weight, bias = asked(module, x.shape[-1])
            self._maps[module] = torch.from_numpy(weight), torch.from_numpy(bias)
        weight, bias = self._maps[module]
        y: Tensor = x @ weight
        return y if ("biases", layer, block) in self._taken else y + bias

    def _norm(self, x: Tensor, module: nn.Module, name: Any, layer: int, block: str) -> Tensor:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        centred = x - x.mean(-1, keepdim=True) if isinstance(module, nn.LayerNorm) else x
        eps: Any = module.eps
        y = centred / self._hold((*name, "size"), (centred.square().mean(-1, keepdim=True) + eps).sqrt())
        y = y if weight is None else y * (weight + getattr(module, "offset", 0.0))
        if bias is not None and ("biases", layer, block) not in self._taken:
            y = y + bias
        for hook in module._forward_hooks.values():
            y = hook(module, (), y)  # a user's, which multiplies
        return y

    def _slope(self, act: Any, z: Tensor, name: Any) -> Tensor:
        return z * self._hold((*name, "slope"), act(z) / z)

    def _gate(self, act: Any, a: Tensor, b: Tensor, name: Any) -> Tensor:
        a0, b0 = self._hold((*name, "a"), a), self._hold((*name, "b"), b)
        nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(60))
        c = self._hold((*name, "c"), (act(a0.unsqueeze(-1) * (nodes + 1) / 2) * weights / 2).sum(-1))
        gated: Tensor = a * b0 * (act(a0) - c) / a0 + c * b
        return gated

    def _feed_forward(self, x: Tensor, module: nn.Module, name: Any, layer: int, block: str) -> Tensor:
        if isinstance(module, Gated):
            a, b = (self._linear(x, part, layer, block) for part in (module.gate, module.up))
            return self._linear(self._gate(nnf.silu, a, b, name), module.down, layer, block)
        if isinstance(module, Experts):
            scores = self._hold((*name, "router"), torch.softmax(self._linear(x, module.router, layer, block), -1))
            best = scores.topk(2, -1)
            weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values)
            each = [
                self._feed_forward(x, expert, (*name, number), layer, block)
                for number, expert in enumerate(module.experts)
            ]
            return (torch.stack(each, -1) * weights.unsqueeze(-2)).sum(-1)
        first, act, last = module  # type: ignore[misc]
        bent = self._slope(act, self._linear(x, first, layer, block), name)
        return self._linear(bent, last, layer, block)


def disagreements(
    found: Explanation,
    model: OddModel,
    inputs: dict[str, Any],
    row: int,
    real: list[int],
    direction: Tensor,
    random: Random,
) -> list[str]:
    """Terms of `direction · last state` at the last real position that are not what is missing without their vector.

    Every token and every block's biases are looked at, and a few of each other kind.
    """
    frozen = FrozenOdd(model, inputs)
    recipe, position = model.recipe, real[-1]
    arrays = next(iter(found.sites.values()))
    layers, places, kinds = (
        range(1, recipe.layers + 1),
        range(len(real)),
        ("attention", "cross_attention", "feed_forward"),
    )

    def number(*taken: Taken) -> float:
        return float(frozen.run(*taken)[row, position] @ direction.double())

    value = number()
    expected: list[tuple[str, Any, float]] = [
        ("value", float(found.value), float(frozen.own[row, position] @ direction.double()))
    ]

    def expect(name: str, where: dict[str, Any], *taken: Taken) -> None:
        """Each taken out by itself; what belongs to no such cell is zero."""
        array = arrays[name]
        there = "block" not in where or where["block"] in array["block"]
        got = float(array.sel(where)) if there else 0.0
        expected.append((f"{name} {where}", got, sum(value - number(one) for one in taken)))

    for k in places:
        expect("tokens", {"key": k}, ("state", 1, real[k]))
    for _ in range(3):
        layer, k = random.choice(layers), random.choice(places)
        expect("states", {"layer": layer, "key": k}, ("state", layer, real[k]))
        kind = random.choice(("attention", "feed_forward"))
        others = [f"beside {other}" for other in kinds] if kind == "feed_forward" else []
        if "blocks" in arrays:
            taken = [("block", layer, name, real[k]) for name in (kind, *others)]
            expect("blocks", {"layer": layer, "block": kind, "key": k}, *taken)
        head, q = random.randrange(recipe.heads), random.choice(places)
        if "edges" in arrays:
            where = {"layer": layer, "head": head + 1, "query": q, "key": k}
            expect("edges", where, ("edge", layer, head, real[q], real[k]))
            expect("heads", {"layer": layer, "head": head + 1}, ("head", layer, head))
    for layer in layers:
        if recipe.parallel:  # which of the two a shared bias belongs to is a matter of names
            got = float(arrays["biases"].sel(layer=layer).sum())
            expected.append(
                (f"biases {layer}", got, sum(value - number(("biases", layer, k)) for k in (*kinds, "beside")))
            )
            continue
        for kind in kinds:
            expect("biases", {"layer": layer, "block": kind}, ("biases", layer, kind))
    if "direct" in arrays:
        expected += _direct(frozen, arrays, real, lambda state: float(state[row, position] @ direction.double()))
    size = max(abs(right) for _, _, right in expected)
    return [
        f"{name}: {got:.9g}, not {right:.9g}" for name, got, right in expected if not abs(got - right) <= 1e-6 * size
    ]


def _direct(
    frozen: FrozenOdd, arrays: Any, real: list[int], number: Callable[[Tensor], float]
) -> list[tuple[str, float, float]]:
    """Every block, every head and the entrance, straight to the number: what is given, and what is missing without it."""
    recipe, expected = frozen.model.recipe, []
    value = number(frozen.run())
    full = frozen.outputs
    constant: Outputs = {}  # what attention brings from a memory, with its weights held, belongs to no input

    def missing(changed: Outputs) -> float:
        return value - number(frozen.run(outputs=full | changed))

    for layer in range(1, recipe.layers + 1):
        for kind in ("attention", "cross_attention", "feed_forward"):
            names = [(layer, kind)]
            if kind == "feed_forward":
                names += [(layer, f"beside {other}") for other in ("attention", "cross_attention")]
            here = {name: torch.zeros_like(full[name]) for name in names if name in full}
            if here and kind not in arrays["direct"]["block"]:
                constant |= {name: full[name] for name in here}
                continue
            if not here:
                continue
            given = arrays["direct"].sel(layer=layer, block=kind)
            expected.append((f"direct {layer} {kind}", float(given.sum()), missing(here)))
        for head in range(recipe.heads):
            frozen.run(("head", layer, head))
            without = {(layer, "attention"): frozen.outputs[layer, "attention"]}
            given = arrays["direct"].sel(layer=layer, block="attention", head=head + 1)
            expected.append((f"direct {layer} head {head + 1}", float(given), missing(without)))
    for k, position in enumerate(real):
        lost = value - number(frozen.run(("state", 1, position), outputs=full))
        expected.append((f"direct_entrance {k}", float(arrays["direct_entrance"].sel(key=k)), lost))
    nothing = {name: torch.zeros_like(output) for name, output in full.items()} | constant
    rest = number(frozen.run(*(("state", 1, k) for k in range(frozen.entering.shape[1])), outputs=nothing))
    expected.append(("direct_biases", float(arrays["direct_biases"]), rest))
    return expected
