"""The steps that a vector may take between the output projection and the residual stream.

The anatomy fills these descriptions with the model's own parameters; `to` makes a working copy in the dtype of the
computation. A normalization divides by a number that depends on the whole sum; once that number is known it is linear, so
it can be applied to each part alone: `part -> gamma * (part - mean(part)) / s`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)  # compared by identity: tensors have no cheap equality
class Normalization:
    """`gamma * (y - mean(y) if centred) / s(y) + beta`, with `s(y) = sqrt(mean square of the numerator + eps)`."""

    weight: Float[Tensor, " model"] | None
    beta: Float[Tensor, " model"] | None
    centred: bool
    eps: float
    offset: float = 0.0  # gamma = offset + weight: some families scale by 1 + weight
    path: str = ""  # where it stands in the model, for people

    @property
    def gamma(self) -> Float[Tensor, " model"] | None:
        """The scale by coordinate, or None where there is none."""
        if self.weight is None or self.offset == 0:
            return self.weight
        # `1 + weight` has more digits than a half-precision weight, and families add in float32.
        return self.weight.detach().to(torch.promote_types(self.weight.dtype, torch.float32)) + self.offset

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> Normalization:
        """A working copy, with the offset inside of its weight."""
        gamma = self.gamma
        return Normalization(
            weight=None if gamma is None else _copy(gamma, dtype, device),
            beta=None if self.beta is None else _copy(self.beta, dtype, device),
            centred=self.centred,
            eps=self.eps,
            path=self.path,
        )


@dataclass(frozen=True, eq=False)
class Scaling:
    """Multiplication by a constant: one number, or one per coordinate (layer scale)."""

    factor: float | Tensor

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> Scaling:
        """A working copy."""
        return Scaling(self.factor if isinstance(self.factor, float) else _copy(self.factor, dtype, device))


@dataclass(frozen=True, eq=False)
class Shift:
    """Addition of a constant vector: a bias, which belongs to no input."""

    vector: Float[Tensor, " model"]

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> Shift:
        """A working copy."""
        return Shift(_copy(self.vector, dtype, device))


def host_copy(step: Step) -> Step:
    """The step in float64 on the host, where every machine has it; copied once for each working copy."""
    kept: Step | None = step.__dict__.get("_on_host")
    if kept is None:
        kept = step.to(torch.float64, torch.device("cpu"))
        step.__dict__["_on_host"] = kept
    return kept


def _copy(tensor: Tensor, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    # The device first: not every one has every dtype.
    return tensor.detach().to(tensor.device if device is None else device).to(dtype)


Step = Normalization | Scaling | Shift


def linear(steps: Sequence[Step], vectors: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
    """The linear part of these steps: centring and constant factors. No bias, no denominator."""
    for step in steps:
        if isinstance(step, Scaling):
            vectors = vectors * step.factor
        elif isinstance(step, Normalization):
            centred = vectors - vectors.mean(-1, keepdim=True) if step.centred else None
            if step.weight is None:
                vectors = vectors if centred is None else centred
            else:  # in place where it can be: new memory is what costs in a large block
                vectors = vectors * step.weight if centred is None else centred.mul_(step.weight)
    return vectors


def inverse_scale(norm: Normalization, y: Float[Tensor, "*any model"]) -> Float[Tensor, "*any 1"]:
    """`1 / s(y)`, one number per vector."""
    return numerator_and_scale(norm, y)[1]


def numerator_and_scale(
    norm: Normalization, y: Float[Tensor, "*any model"]
) -> tuple[Float[Tensor, "*any model"], Float[Tensor, "*any 1"]]:
    """`y - mean(y)`, where the norm centres, and `1 / s(y)`."""
    if norm.centred:
        y = y - y.mean(-1, keepdim=True)
    return y, (y.square().mean(-1, keepdim=True) + norm.eps).rsqrt()


def applied(step: Step, vectors: Float[Tensor, "*any model"], y: Tensor | None = None) -> Float[Tensor, "*any model"]:
    """The step as the model does it, with the denominator that it has for `y` (None: for the vectors themselves)."""
    if isinstance(step, Shift):
        return vectors + step.vector
    if isinstance(step, Scaling):
        return vectors * step.factor
    result = linear((step,), vectors) * inverse_scale(step, vectors if y is None else y)
    return result if step.beta is None else result + step.beta


def scale_through(steps: Sequence[Step], y: Float[Tensor, "*any model"]) -> Float[Tensor, "*any 1"] | None:
    """The product of all denominators' inverses that `y` meets on its way through the steps; None: it meets none."""
    scale: Tensor | None = None
    for step, entering in with_vectors(steps, y):
        if isinstance(step, Normalization):
            inverse = inverse_scale(step, entering)
            scale = inverse if scale is None else scale * inverse
    return scale


def with_vectors(steps: Sequence[Step], y: Float[Tensor, "*any model"]) -> Iterator[tuple[Step, Tensor]]:
    """Yield each step with the vector that enters it."""
    for n, step in enumerate(steps):
        yield step, y
        if n + 1 < len(steps):
            y = applied(step, y)
