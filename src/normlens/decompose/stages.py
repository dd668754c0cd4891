"""The stages of an attention block, and what measures may request of its pairs. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The attention output, the residual sum, the normalized sum; and the normalization at the end of the layer, for parts
#: that go there past the feed-forward block.
Stage = Literal["attn", "res", "ln", "enc"]
#: The stages of the attention block itself.
STAGES: tuple[Stage, ...] = ("attn", "res", "ln")
ALL_STAGES: tuple[Stage, ...] = (*STAGES, "enc")
#: The stages of the feed-forward block: its output, the sum with the stream, the normalized sum.
FeedForwardStage = Literal["ff", "ffres", "ffln"]
FEED_FORWARD_STAGES: tuple[FeedForwardStage, ...] = ("ff", "ffres", "ffln")


@dataclass(frozen=True)
class PairRequest:
    """The quantities of (query, key) pairs that measures need of one site."""

    alpha: bool = False  # the weights themselves, by head
    mean_alpha: bool = False  # their mean over heads
    row_sums: bool = False  # the sums of the rows of that mean
    own: bool = False  # self parts
    f_norm: bool = False  # norms of the transformed vectors
    stages: frozenset[Stage] = frozenset()  # where norms of parts are taken

    @property
    def maps(self) -> bool:
        """Return True if anything with one number per pair is requested."""
        return self.alpha or self.mean_alpha or bool(self.stages)

    def __or__(self, other: PairRequest) -> PairRequest:
        return PairRequest(
            alpha=self.alpha or other.alpha,
            mean_alpha=self.mean_alpha or other.mean_alpha,
            row_sums=self.row_sums or other.row_sums,
            own=self.own or other.own,
            f_norm=self.f_norm or other.f_norm,
            stages=self.stages | other.stages,
        )
