"""What happens to a vector between the output projection and the residual stream.

A normalization divides by a number that depends on the whole sum; once that number is known it is linear, so it can be
given to each part alone: `part -> gamma * (part - mean(part)) / s`, with `s` from what the model really normalized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)  # compared by identity: tensors have no cheap equality
class Normalizing:
    """`gamma * (y - mean(y) if centred) / s(y) + beta`, `s(y) = sqrt(mean square of the numerator + eps)`."""

    gamma: Float[Tensor, " model"] | None
    beta: Float[Tensor, " model"] | None
    centred: bool
    eps: float

    def linear(self, vectors: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
        """The numerator, which is linear."""
        if self.centred:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors if self.gamma is None else vectors * self.gamma

    def inverse_scale(self, y: Float[Tensor, "*any model"]) -> Float[Tensor, "*any 1"]:
        """`1 / s(y)`, one number per vector."""
        centred = y - y.mean(-1, keepdim=True) if self.centred else y
        return (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()


@dataclass(frozen=True, eq=False)  # compared by identity: tensors have no cheap equality
class Scaling:
    """Multiplication by a constant, one number or one per coordinate."""

    factor: float | Tensor

    def linear(self, vectors: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
        """The multiplied vectors."""
        return vectors * self.factor


@dataclass(frozen=True, eq=False)  # compared by identity: tensors have no cheap equality
class Shifting:
    """Addition of a constant vector: a bias, which belongs to no input."""

    vector: Float[Tensor, " model"]

    def linear(self, vectors: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
        """The vectors as they are."""
        return vectors


Step = Normalizing | Scaling | Shifting


@dataclass(frozen=True)
class Passage:
    """A chain of steps with the numbers that this input gave them: `vector -> scale * linear(vector) + shift`."""

    steps: tuple[Step, ...] = ()
    scale: Float[Tensor, "batch query 1"] | None = None
    shift: Float[Tensor, "batch query model"] | Float[Tensor, " model"] | None = None

    def linear(self, vectors: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
        """The part of the passage that no input changes; it may be given to the weights instead of the vectors."""
        for step in self.steps:
            vectors = step.linear(vectors)
        return vectors

    def carry(self, vectors: Float[Tensor, "batch query model"]) -> Float[Tensor, "batch query model"]:
        """What becomes of one contribution per query: no shift, since a bias belongs to no input."""
        vectors = self.linear(vectors)
        return vectors if self.scale is None else vectors * self.scale

    def after(self, step: Step, y: Float[Tensor, "batch query model"]) -> Passage:
        """This passage followed by one more step, which the model applied to `y`."""
        shift = None if self.shift is None else step.linear(self.shift)
        if isinstance(step, Scaling):
            return Passage((*self.steps, step), self.scale, shift)
        if isinstance(step, Shifting):
            return Passage(self.steps, self.scale, step.vector if shift is None else shift + step.vector)
        inverse = step.inverse_scale(y)
        scale = inverse if self.scale is None else self.scale * inverse
        shift = None if shift is None else shift * inverse
        if step.beta is not None:
            shift = step.beta if shift is None else shift + step.beta
        return Passage((*self.steps, step), scale, shift)


def apply(step: Step, y: Float[Tensor, "batch query model"]) -> Float[Tensor, "batch query model"]:
    """The step as the model does it."""
    if isinstance(step, Scaling):
        return step.linear(y)
    if isinstance(step, Shifting):
        return y + step.vector
    out = step.linear(y) * step.inverse_scale(y)
    return out if step.beta is None else out + step.beta


def through(steps: Sequence[Step], y: Float[Tensor, "batch query model"], start: Passage) -> Passage:
    """The passage of `y` through several steps, one after the other."""
    for step in steps:
        start = start.after(step, y)
        y = apply(step, y)
    return start
