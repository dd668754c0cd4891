"""`attention="integrated"`: why a position was looked at, besides what was carried from it.

Integrated gradients of `softmax(S) V` along `(t S, t V)`: values get `∫₀¹ softmax(t S) dt`, scores the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

_MASKED = 1e30
#: A row whose scores differ by more is visited most densely near zero, where it changes fast.
_SHARP = 32.0
#: Numbers of a block of rows: what a processor's cache holds several times over.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Weights:
    """Attention weights as a function of their scores (None: held, as they are)."""

    scores: Tensor | None
    function: Callable[[Tensor], Tensor]
    plain: bool = False  # a softmax over the last axis and nothing else


@lru_cache
def nodes(points: int, power: int = 1) -> tuple[tuple[float, float], ...]:
    """Nodes and weights of the path on [0, 1]: Gauss points in `u`, `t = u^power`."""
    x, w = np.polynomial.legendre.leggauss(points)
    u, w = (x + 1) / 2, w / 2
    return tuple((float(a**power), float(b * power * a ** (power - 1))) for a, b in zip(u, w, strict=True))


def nodes_for(span: float) -> tuple[tuple[float, float], ...]:
    """As many points as rows need whose scores differ by up to `span`: they bend more the sharper they are.

    Measured on rows of 200 keys, flat, with a sink, and with few large scores, this leaves about 1e-7 of the weights up to a
    span of 16.
    """
    points = 5 + math.ceil(1.1 * span) if span < _SHARP else 0
    return nodes(points) if points else nodes(48, 3)


def _span(scores: Tensor) -> float:
    """The largest difference of two scores in one row, masked ones left out."""
    if scores.device.type != "cpu":  # no wait of the host off the CPU
        return _SHARP
    seen = scores > -_MASKED / 10
    low, high = (torch.where(seen, scores, fill) for fill in (torch.inf, -torch.inf))
    found = float((high.amax(-1) - low.amin(-1)).max())
    return found if 0 <= found < _SHARP else 0.0 if found < 0 else _SHARP


class IntegratedAttention(Function):
    """Attention weights times values, with both as parts."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, alpha: Tensor, weights: Weights, multiply: Any) -> Tensor:
        ctx.save_for_backward(scores, values)
        ctx.weigh, ctx.plain, ctx.multiply = weights.function, weights.plain, multiply
        product: Tensor = multiply(alpha, values)
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        scores, values = (x.detach() for x in ctx.saved_tensors)
        with torch.enable_grad():
            whole = ctx.weigh(scores).detach().requires_grad_()
            (outer,) = torch.autograd.grad(ctx.multiply(whole, values), whole, gradient)  # G Vᵀ
            mean, to_scores = _softmax_path(scores, outer) if ctx.plain else _path(ctx.weigh, scores, outer)
            inner = values.clone().requires_grad_()
            (to_values,) = torch.autograd.grad(ctx.multiply(mean, inner), inner, gradient)
        return to_scores, to_values, None, None, None


def _path(weigh: Callable[[Tensor], Tensor], scores: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """`∫ weigh(t S) dt`, and `∫ outer · ∂weigh(t S)/∂S dt`, of any function of the scores."""
    mean, to_scores = torch.zeros_like(outer), torch.zeros_like(scores)
    for t, weight in nodes_for(_span(scores)):
        at = (t * scores).requires_grad_()
        alpha = weigh(at)
        to_scores += weight * t * torch.autograd.grad(alpha, at, outer)[0]
        mean = mean + weight * alpha.detach()
    return mean, to_scores


@torch.no_grad()
def _softmax_path(scores: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """As `_path` for a softmax over keys: `α (G - Σ α G)` at every point, a few rows at a time, all in one cache."""
    exact = torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else scores.dtype
    keys = scores.shape[-1]
    mean, to_scores = torch.zeros_like(outer), torch.zeros_like(scores, memory_format=torch.contiguous_format)
    rows, gradients = scores.reshape(-1, keys), outer.reshape(-1, keys)
    means, results = mean.view(-1, keys), to_scores.view(-1, keys)
    step = max(1, _BLOCK // keys) if scores.device.type == "cpu" else len(rows)
    for start in range(0, len(rows), step):
        few = slice(start, start + step)
        last = _last_seen(rows[few])
        s, g = rows[few, :last].to(exact), gradients[few, :last].to(exact)
        alpha, given = torch.empty_like(s), torch.empty_like(s)
        of_values, of_scores = torch.zeros_like(s), torch.zeros_like(s)
        for t, weight in nodes_for(_span(s)):
            torch.mul(s, t, out=given)
            torch.softmax(given, -1, out=alpha)
            of_values.add_(alpha, alpha=weight)
            torch.mul(alpha, g, out=given)
            of_scores.add_(given, alpha=weight * t)
            of_scores.addcmul_(alpha, given.sum(-1, keepdim=True), value=-weight * t)
        means[few, :last], results[few, :last] = of_values.to(mean.dtype), of_scores.to(scores.dtype)
    return mean, to_scores


def _last_seen(rows: Tensor) -> int:
    """The number of leading keys that these rows look at; every one where a row looks at nothing."""
    seen = rows > -_MASKED / 10
    if rows.device.type != "cpu" or not bool(seen.any(1).all()):  # no wait of the host off the CPU
        return rows.shape[1]
    return int(seen.any(0).nonzero()[-1]) + 1


def replayed(recorded: Any, scores: Tensor, values: Tensor, multiply: Any) -> Tensor:
    """The same affine map, forwards."""
    first, fixed, weigh = recorded
    # A masked score moves nothing, however large a negative number stands for it.
    change = torch.where(first.abs() < _MASKED, scores.detach(), torch.zeros_like(scores))
    out = torch.zeros((), dtype=values.dtype)
    for t, weight in nodes_for(_span(first)):
        moved: Any = torch.func.jvp(weigh, (t * first,), (change,))
        out = out + weight * multiply(moved[0], values) + weight * t * multiply(moved[1], fixed)
    return out
