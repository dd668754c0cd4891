"""Activations taken apart by the integrated gradient from zero, in closed form.

`g(z)` has the slope `(g(z) - g(0)) / z`; a gated unit `act(a) · b` gives a part `a_k b (act(a) - c)/a + b_k c`, with
`c(a) = ∫₀¹ act(t a) dt` the share that belongs to `b`. For half and single precision `c` is read off a table with its
slope, to about 4e-8; in double precision, and where an activation has weights of its own, it is integrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

ActivationFunction = Callable[[Tensor], Tensor]

#: The table reaches from -32 to 32 in steps of 1/1024: a power of two, so that the distance to a knot is exact.
_REACH, _PER_UNIT = 32, 1024
#: Panels of [0, 1] that grow geometrically, since an activation bends near zero, each with Gauss points.
_PANELS = (0.0, 2**-8, 2**-7, 2**-6, 2**-5, 2**-4, 2**-3, 2**-2, 2**-1, 1.0)
_POINTS = 12

_tables: dict[tuple[Hashable, torch.device], tuple[Tensor, Tensor]] = {}
_integrals: dict[Hashable, Tensor] = {}


@lru_cache
def panels() -> tuple[tuple[float, float], ...]:
    """Nodes and weights on [0, 1]."""
    found = []
    for start, end in pairwise(_PANELS):
        found += [(start + (end - start) * x, (end - start) * w) for x, w in _gauss()]
    return tuple(found)


@lru_cache
def _gauss() -> tuple[tuple[float, float], ...]:
    """Gauss nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    return tuple((float(x + 1) / 2, float(w) / 2) for x, w in zip(nodes, weights, strict=True))


def mean_activation(act: ActivationFunction, key: Hashable | None, a: Tensor) -> Tensor:
    """`∫₀¹ act(t a) dt` for every entry; `key` names an activation that has no weights of its own."""
    if key is None:
        return _integrated(act, a)
    if a.dtype == torch.float64:
        return _from_knots(act, key, a)
    value, slope = _table(act, key, a.device)
    z = a.float()
    # Rows that no token uses hold whatever was in memory: what is not a number needs a knot too.
    knot = _nearest_knot(z)
    index = (knot + _REACH * _PER_UNIT).to(torch.int32).reshape(-1)
    distance = z - knot / _PER_UNIT
    found = torch.addcmul(value.index_select(0, index).view_as(z), distance, slope.index_select(0, index).view_as(z))
    far = distance.abs() > 1 / _PER_UNIT
    if bool(far.any()):
        found[far] = _from_knots(act, key, z[far].cpu().double()).float().to(found)  # not every device has float64
    near = knot == 0  # an activation may bend at zero, and nowhere else does a bend of it bend `c`
    if bool(near.any()):
        found[near] = (act(z[near]) + act(torch.zeros_like(z[near]))) / 2
    return found.to(a.dtype)


def _nearest_knot(z: Tensor) -> Tensor:
    """The number of the nearest knot, counted from zero."""
    return torch.round(z * _PER_UNIT).nan_to_num_(0.0).clamp_(-_REACH * _PER_UNIT, _REACH * _PER_UNIT)


def _integrated(act: ActivationFunction, a: Tensor) -> Tensor:
    total = torch.zeros_like(a)
    for node, weight in panels():
        total += weight * act(a * node)
    return total


def _from_knots(act: ActivationFunction, key: Hashable, a: Tensor) -> Tensor:
    """`(1/a) ∫₀ᵃ act`, in double precision: the integral up to the nearest knot, and from there to `a`.

    Activations that bend elsewhere than at zero (`relu6`, `hardswish`) bend at a knot, which no panel crosses.
    """
    number = _nearest_knot(a)
    knot = number / _PER_UNIT
    far = bool(((a - knot).abs() > 1 / _PER_UNIT).any())
    count = len(_PANELS) if far else 1  # several panels, for what lies beyond the last knot
    step = (a - knot) / count
    rest = torch.zeros_like(a)
    for panel in range(count):
        for node, weight in _gauss():
            rest += weight * act(knot + (panel + node) * step)
    whole = _integral(act, key)[(number.long() + _REACH * _PER_UNIT).cpu()].to(a.device) + rest * step
    at_zero = act(torch.zeros_like(a))
    return torch.where(a == 0, at_zero, whole / torch.where(a == 0, 1.0, a))


def _integral(act: ActivationFunction, key: Hashable) -> Tensor:
    """`∫₀ act` up to every knot, in double precision."""
    if key not in _integrals:
        knots = _knots()
        between = torch.zeros(len(knots) - 1, dtype=torch.float64)
        for node, weight in _gauss():
            between += weight / _PER_UNIT * act(knots[:-1] + node / _PER_UNIT)
        middle = len(knots) // 2
        upwards, downwards = between[middle:].cumsum(0), -between[:middle].flip(0).cumsum(0).flip(0)
        _integrals[key] = torch.cat([downwards, torch.zeros(1, dtype=torch.float64), upwards])
    return _integrals[key]


def _knots() -> Tensor:
    return torch.arange(-_REACH * _PER_UNIT, _REACH * _PER_UNIT + 1, dtype=torch.float64) / _PER_UNIT


def _table(act: ActivationFunction, key: Hashable, device: torch.device) -> tuple[Tensor, Tensor]:
    """`c` and `c'` at every knot, in single precision: `c' = (act(a) - c)/a`, at zero `act'(0)/2`."""
    if (key, device) not in _tables:
        knots = _knots()
        middle = len(knots) // 2
        c = _integral(act, key) / knots
        c[middle] = act(knots[middle])
        slope = (act(knots) - c) / knots
        slope[middle] = (slope[middle - 1] + slope[middle + 1]) / 2
        _tables[key, device] = c.float().to(device), slope.float().to(device)
    return _tables[key, device]


def slope_of(z: Tensor, value: Tensor, zero: Tensor | None, slope_at_zero: Any) -> Tensor:
    """`(value - zero) / z`, where `z` is zero the derivative there (a number, or a function that finds it)."""
    slope = (value if zero is None else value - zero) / z
    # A sum is cheaper than a look at each number, and none with 0 / 0 in it is finite. Elsewhere asking costs more than it.
    if z.device.type != "cpu" or not math.isfinite(float(slope.sum())):
        derivative = slope_at_zero() if callable(slope_at_zero) else slope_at_zero
        slope = torch.where(z == 0, torch.as_tensor(derivative, dtype=slope.dtype, device=slope.device), slope)
    return slope


def gate_factors(
    a: Tensor, b: Tensor, active: Tensor, act: ActivationFunction, key: Any, slope_at_zero: Any
) -> tuple[Tensor, Tensor]:
    """The factors of a part of `a` and of a part of `b`."""
    c = mean_activation(act, key, a)
    factor = slope_of(a, active, c, lambda: 0.5 * (slope_at_zero() if callable(slope_at_zero) else slope_at_zero))
    return factor * b, c


def derivative_at_zero(act: ActivationFunction) -> float:
    """`act'(0)`, as PyTorch has it where the activation bends there."""
    with torch.enable_grad():
        zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
        return float(torch.autograd.grad(act(zero), zero)[0])
