"""Token categories in pictures: one name, colour and marker each, the same in every figure.

Colours are those of Okabe and Ito, which stay apart under every common kind of colour blindness; markers differ too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """How a category, a model or a measure is drawn."""

    label: str
    colour: str
    marker: str = "o"
    dashed: bool = False


CATEGORY_LOOKS: dict[str, Look] = {
    "cls": Look("[CLS]", "#0072b2", "o"),
    "sep": Look("[SEP]", "#d55e00", "s"),
    "mask": Look("[MASK]", "#cc79a7", "D"),
    "special": Look("other special tokens", "#f0c000", "p"),
    "comma_period": Look("comma and period", "#009e73", "^"),
    "other": Look("others", "#7a7a7a", "v"),
    "normal": Look("other tokens", "#7a7a7a", "v"),
    "all": Look("all tokens", "#1f1f1f", "x", dashed=True),
}

#: Colours and markers for things without a meaning of their own, such as models side by side.
CYCLE = (
    ("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#cc79a7", "D"), ("#e69f00", "v"), ("#56b4e9", "p"),
    ("#1f1f1f", "X"), ("#7a7a7a", "*"),
)  # fmt: skip


def category_look(name: str) -> Look:
    """The look of a category; one of the caller's own is grey."""
    return CATEGORY_LOOKS.get(name, Look(name, "#7a7a7a", "v"))


def cycled(label: str, number: int) -> Look:
    """The look of the n-th of several equals."""
    colour, marker = CYCLE[number % len(CYCLE)]
    return Look(label, colour, marker, dashed=number >= len(CYCLE))
