"""The stages of an attention block at which one can look, and what can be asked for there. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The attention output, the residual sum, the normalized sum; and the normalization at the end of the layer, for what
#: goes there past the feed-forward block.
Stage = Literal["attn", "res", "ln", "enc"]
#: The stages of the attention block itself.
STAGES: tuple[Stage, ...] = ("attn", "res", "ln")
ALL_STAGES: tuple[Stage, ...] = (*STAGES, "enc")


@dataclass(frozen=True)
class PairRequest:
    """What a caller's measures need of the (query, key) pairs of one site."""

    alpha: bool = False  # the weights themselves, by head
    weights: bool = False  # their mean over heads
    totals: bool = False  # the sums of their rows
    own: bool = False  # what each position gives itself
    f_norm: bool = False  # norms of the transformed vectors
    stages: frozenset[Stage] = frozenset()  # where norms of parts are taken

    @property
    def maps(self) -> bool:
        """Whether anything with one number per pair is wanted."""
        return self.alpha or self.weights or bool(self.stages)
