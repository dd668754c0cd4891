"""The proof of terms: they add up at every layer, the number is the model's own, the frozen map is affine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.anatomy.layers import LayerCall
from normlens.attribution.layers import Layers
from normlens.attribution.terms import Run, Select, Terms
from normlens.errors import AnatomyError, DecompositionError, InputError
from normlens.options import AttentionRule

#: What the gap may be over the sum of absolute terms, by the type that the model computes in. Many families normalize and
#: weigh in single precision whatever their type, so that double precision is not ten digits better.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
#: `attention="integrated"` is integrated by quadrature, whose error is stated with the result.
_INTEGRATED_TOLERANCE = 1e-3
#: In the replay every vector is multiplied by a number of its own, and what cancelled before does no longer.
_REPLAY_TOLERANCE = 10


@dataclass(frozen=True)
class ProofSettings:
    """The settings of a proof, for the tolerance and for the message."""

    family: str
    dtype: torch.dtype
    attention: AttentionRule

    @property
    def tolerance(self) -> float:
        """The largest gap that is allowed."""
        if self.dtype not in TOLERANCE:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in TOLERANCE)
            raise InputError(f"the model computes in {self.dtype}, explain() supports {known}")
        return max(TOLERANCE[self.dtype], _INTEGRATED_TOLERANCE if self.attention == "integrated" else 0.0)


def check_layers(layers: Layers, traced: Callable[[bool], Sequence[LayerCall]], settings: ProofSettings) -> None:
    """The pass must have followed the layers and attentions that a trace of the model has.

    Terms of a pass that missed layers add up too. `traced(False)` is the trace on a few tokens, `traced(True)` on the inputs
    themselves, for models whose layers depend on them.
    """
    for on_inputs in (False, True):
        expected = [call for call in traced(on_inputs) if call.module not in layers.followed.skipped]
        attending = {number for number, call in enumerate(expected, 1) if call.attends}
        if layers.followed.calls == [call.module for call in expected] and attending <= layers.attending:
            return
    raise AnatomyError(
        f"explain() followed {len(layers.followed.calls)} layers of {settings.family!r}, {len(layers.attending)} with "
        f"attention, and a trace of the model has {len(expected)} and {len(attending)}; please report it"
    )


def check_finite(numbers: Tensor, family: str) -> None:
    """A number that is none has no terms."""
    if not bool(torch.isfinite(numbers).all()):
        raise InputError(
            f"{family!r} puts out {float(numbers[~numbers.isfinite()][0])} there, which cannot be explained; "
            "check the model's weights and inputs, or choose another output"
        )


def _largest(absolute: Tensor, sizes: Tensor | None) -> Tensor:
    """Row: what a gap is measured by, the sum of absolute terms or the size of what is explained; never 0."""
    largest = absolute if sizes is None else torch.maximum(absolute, sizes)
    return largest.clamp_min(torch.finfo(torch.float64).tiny)


def check_sums(terms: Terms, settings: ProofSettings, sizes: Tensor | None = None) -> None:
    """The terms must add up to the number at the entrance of every layer.

    A difference of two logits, and a sum along a direction, is rounded as its parts are, however small it is itself:
    `sizes` says how large they are.
    """
    gaps = terms.distances / _largest(terms.absolute, sizes).unsqueeze(1)
    worst = float(gaps.max()) if bool(torch.isfinite(gaps).all()) else float("nan")
    if not worst <= settings.tolerance:
        cut = terms.cuts[int(gaps.nan_to_num(torch.inf).max(0).values.argmax())]
        raise DecompositionError(
            f"the terms miss the number by {worst:.1e} of their absolute sum at the entrance of layer "
            f"{cut.number} of {settings.family!r} (allowed: {settings.tolerance:.0e}); this model cannot be "
            "explained, please report it"
        )


def check_edges(terms: Terms, settings: ProofSettings, sizes: Tensor | None = None) -> None:
    """Check that the edges of an attention add up to the terms of its heads.

    Heads are read off the attention's output, edges are made of weights and values: weights of another attention, or of
    other keys, would show here and in no other sum.
    """
    largest = _largest(terms.absolute, sizes)
    # They are found one product after another, and rounded more often than what passes the model itself.
    allowed = 10 * TOLERANCE[settings.dtype]
    for _, layer, distances in terms.edge_distances:
        worst = float((distances / largest).nan_to_num(torch.inf).max())
        if not worst <= allowed:
            raise DecompositionError(
                f"the edges of layer {layer} of {settings.family!r} miss the terms of their heads by {worst:.1e} "
                f"of the sum of absolute terms (allowed: {allowed:.0e}); leave edges out of parts=[…], and please "
                "report it"
            )


def check_number(terms: Terms, own: Tensor, largest: float, settings: ProofSettings) -> float:
    """The number must be what the model puts out when nobody looks; gives the distance over its largest logit."""
    size = max(largest, float(own.abs().max()), torch.finfo(settings.dtype).tiny)
    distance = float((terms.value - own).abs().max()) / size
    if not distance <= TOLERANCE[settings.dtype]:
        raise DecompositionError(
            f"the number under the frozen rules differs from the model's own by {distance:.1e} of the largest "
            f"logit of {settings.family!r} (allowed: {TOLERANCE[settings.dtype]:.0e}); please report it"
        )
    return distance


def check_replay(
    run: Run, terms: Terms, select: Select, sizes: Tensor | None, settings: ProofSettings, *, through: bool = False
) -> float:
    """The frozen map, run forwards on input vectors times random numbers, must give the terms times the same numbers."""
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(t.shape, generator=generator) for t in terms.tokens]
    found = run.replayed(factors, select, through=through)
    expected, scale = torch.zeros_like(terms.value), torch.zeros_like(terms.value)
    for tokens, factor in zip(terms.tokens, factors, strict=True):
        each = tokens * factor.double()
        expected, scale = expected + each.sum(1), scale + each.abs().sum(1)
    for given in terms.constants.values():
        expected, scale = expected + given, scale + given.abs()
    gap = float(((found - expected).abs() / _largest(torch.maximum(scale, terms.absolute), sizes)).max())
    allowed = _REPLAY_TOLERANCE * TOLERANCE[settings.dtype]
    if not gap <= allowed:
        raise DecompositionError(
            f"the frozen map of {settings.family!r} is not affine: with input vectors multiplied by random "
            f"numbers it misses the sum of the terms by {gap:.1e} of their absolute sum (allowed: {allowed:.0e}); "
            "please report it"
        )
    return gap
