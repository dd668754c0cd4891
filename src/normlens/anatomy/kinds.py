"""The kinds of attention site. Needs no torch."""

from __future__ import annotations

from typing import Literal

#: The kinds of attention block that results distinguish, in the order in which they are listed.
Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
KIND_TITLES: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
