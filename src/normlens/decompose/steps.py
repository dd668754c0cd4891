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
    """A chain of steps with the numbers that this input gave them: a part becomes `scale * linear(part)`.

    There is no bias in it, since a bias belongs to no input.
    """

    steps: tuple[Step, ...] = ()
    scale: Float[Tensor, "batch query 1"] | None = None

    def linear(self, vectors: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
        """The part of the passage that no input changes; it may be given to the weights instead of the vectors."""
        for step in self.steps:
            vectors = step.linear(vectors)
        return vectors

    def carry(self, vectors: Float[Tensor, "batch query model"]) -> Float[Tensor, "batch query model"]:
        """What becomes of one contribution per query."""
        vectors = self.linear(vectors)
        return vectors if self.scale is None else vectors * self.scale

    def after(self, step: Step, y: Float[Tensor, "batch query model"]) -> Passage:
        """This passage followed by one more step, which the model applied to `y`."""
        if not isinstance(step, Normalizing):
            return Passage((*self.steps, step), self.scale)
        inverse = step.inverse_scale(y)
        return Passage((*self.steps, step), inverse if self.scale is None else self.scale * inverse)


def apply(step: Step, vectors: Float[Tensor, "batch query model"], y: Tensor | None = None) -> Tensor:
    """The step as the model does it, with the scale that it gave to `y` (None: the vectors themselves)."""
    if isinstance(step, Scaling):
        return step.linear(vectors)
    if isinstance(step, Shifting):
        return vectors + step.vector
    out = step.linear(vectors) * step.inverse_scale(vectors if y is None else y)
    return out if step.beta is None else out + step.beta


def through(steps: Sequence[Step], y: Float[Tensor, "batch query model"]) -> Passage:
    """The passage of `y` through several steps, one after the other."""
    passage = Passage()
    for step in steps:
        passage, y = passage.after(step, y), apply(step, y)
    return passage
