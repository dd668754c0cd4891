"""Read a normalization by asking it.

Families spell their normalizations in many ways (LayerNorm, RMSNorm, scaling by `1 + weight`), but each is
`gamma * (y - mean(y)) / s(y) + beta` or the same without the mean. Which one it is shows in what the module does to
a few vectors; the reconstruction proof then confirms it on the user's own data.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from normlens.anatomy.graph import Graph
from normlens.anatomy.trace import Call
from normlens.decompose.steps import Normalization, applied

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps")
#: How far a reading may be from what the module does, in units of the dtype's resolution.
_RESOLUTIONS = 64.0


def read_norm(module: nn.Module, path: str, width: int) -> Normalization | None:
    """The normalization of vectors of this width by a module, or None where it is no normalization."""
    own = dict(module.named_parameters())
    if any(parameter.ndim != 1 or parameter.shape[0] != width for parameter in own.values()) or len(own) > 2:
        return None
    like = next(iter(own.values()), None)
    dtype = like.dtype if like is not None else torch.get_default_dtype()
    device = like.device if like is not None else torch.device("cpu")
    probe = module
    if torch.finfo(dtype).bits < 32:  # too coarse to tell one normalization from another: ask a copy that is not
        dtype, probe = torch.float32, copy.deepcopy(module).float()
    generator = torch.Generator().manual_seed(0)
    samples = (torch.randn(1, 4, width, generator=generator) * 3 + 1).to(device, dtype)
    with torch.no_grad():
        try:
            observed, shift = _first(probe(samples)), _first(probe(torch.zeros_like(samples)))[0, 0]
        except Exception:
            return None  # it takes something else than one tensor of vectors: no normalization
    if observed.shape != samples.shape:
        return None
    eps = _eps(module)
    # A float64 model may still normalize in float32 (Gemma 2 does).
    resolution = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    tolerance = _RESOLUTIONS * resolution * float(observed.abs().max())
    samples, observed = samples.cpu().double(), observed.cpu().double()  # not every device has float64
    for candidate in _candidates(path, own, shift, eps):
        predicted = applied(candidate.to(torch.float64, samples.device), samples)
        if float((predicted - observed).abs().max()) <= tolerance:
            return candidate
    return None


def _first(output: object) -> Tensor:
    """The output of a module, or the first of several (a quantizing one gives a scale beside it)."""
    found = output[0] if isinstance(output, tuple) else output
    if not isinstance(found, Tensor):
        raise TypeError("a normalization gives a tensor")
    return found


def norm_of(graph: Graph, call: Call, width: int) -> Normalization | None:
    """The normalization of vectors of this width by a called module; each module is probed once."""
    known = graph.trace.norms
    if (call.module, width) not in known:
        known[call.module, width] = read_norm(call.module, call.path, width)
    found: Normalization | None = known[call.module, width]
    return found


def norm_taking(graph: Graph, value: int, widths: Collection[int]) -> list[tuple[Call, Normalization]]:
    """The normalizations that take this value after the attention ended, outermost calls first."""
    found: list[tuple[Call, Normalization]] = []
    for index in graph.trace.taken_by[value]:
        call = graph.trace.calls[index]
        alone = len(call.inputs) == 1 and len(call.outputs) == 1 and call.start >= graph.event.end
        if not alone or call.outputs[0][1] == value or any(outer.index in call.parents for outer, _ in found):
            continue
        width = graph.trace.tensors[value].shape[-1]
        norm = norm_of(graph, call, width) if width in widths else None
        if norm is not None:
            found.append((call, norm))
    return found


def _eps(module: nn.Module) -> float:
    for name in _EPS_NAMES:
        value = getattr(module, name, None)
        if isinstance(value, int | float):
            return float(value)
    return 0.0


def _candidates(path: str, parameters: dict[str, nn.Parameter], shift: Tensor, eps: float) -> Iterator[Normalization]:
    # Zero comes out as the shift. The parameter that equals it is the bias, any other one the scale.
    bias = next(
        (p for p in parameters.values() if bool(shift.any()) and torch.equal(p.detach().to(shift), shift)), None
    )
    scales = [parameter for parameter in parameters.values() if parameter is not bias]
    named_bias = parameters.get("bias")
    if bias is None and named_bias is not None and len(parameters) == 2:
        bias, scales = named_bias, [parameter for parameter in scales if parameter is not named_bias]
    for centred in (True, False):
        for weight in (*scales,) if scales else (None,):
            for offset in (0.0, 1.0) if weight is not None else (0.0,):
                yield Normalization(weight, bias, centred, eps, offset, path)
