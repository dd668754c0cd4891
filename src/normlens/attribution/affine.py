"""The frozen operations as autograd functions: forward what the model computed, backward the affine map of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from normlens.decompose.activations import ActivationFunction, gate_factors, slope_of


class Sloped(Function):
    """`g(z)` by its slope `(g(z) - g(0)) / z`, and `g'(0)` at `z = 0`."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, compute: Callable[[], Tensor], zero: Tensor | None, slope_at_zero: Any) -> Tensor:
        value = compute()
        ctx.save_for_backward(z, value)
        ctx.zero, ctx.slope_at_zero = zero, slope_at_zero
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        z, value = ctx.saved_tensors
        slope = slope_of(z, value, ctx.zero, ctx.slope_at_zero)
        return slope.mul_(gradient).to(z.dtype), None, None, None


class GatedUnit(Function):
    """`act(a) · b` by the integrated gradient from zero: `b (act(a) - c)/a` to `a`, `c = ∫ act(t a) dt` to `b`."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, act: ActivationFunction, key: Any, active: Tensor, slope_at_zero: Any
    ) -> Tensor:
        ctx.save_for_backward(a, b, active)
        ctx.act, ctx.key, ctx.slope_at_zero = act, key, slope_at_zero
        return active * b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        a, b, active = ctx.saved_tensors
        to_a, c = gate_factors(a, b, active, ctx.act, ctx.key, ctx.slope_at_zero)
        return (
            _reduced(to_a.mul_(gradient), a),
            _reduced(c.mul_(gradient), b),
            None,
            None,
            None,
            None,
        )


class Normalized(Function):
    """Layer normalization with its denominator held: `gamma (x - mean) / s + beta`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: list[int], gamma: Tensor | None, beta: Tensor | None, eps: float, keep: Any
    ) -> Tensor:
        value, _, scale = torch.native_layer_norm(x, shape, gamma, beta, eps)
        keep(scale)
        ctx.save_for_backward(scale, gamma)
        ctx.axes, ctx.dtype = tuple(range(-len(shape), 0)), x.dtype
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        scale, gamma = ctx.saved_tensors
        back = gradient * scale if gamma is None else (gradient * gamma).mul_(scale)
        back -= back.mean(ctx.axes, keepdim=True)
        return back.to(ctx.dtype), None, None, None, None, None


def _reduced(gradient: Tensor, like: Tensor) -> Tensor:
    """Sum a gradient over the axes along which its tensor was repeated."""
    return gradient.sum_to_size(like.shape).to(like.dtype)
