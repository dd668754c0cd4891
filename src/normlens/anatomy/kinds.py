"""The names of attention sites: encoder, decoder and cross, or towers where a model also sees or hears. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

#: The name of a kind of site. Models that read text alone have `encoder`, `decoder` and `cross`; where images or sound
#: and text meet, self-attention over one of them has the name of its tower, and its pooling attention `<tower>_cross`.
Kind = str
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
TOWERS: tuple[Kind, ...] = ("vision", "audio", "text")
_TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
    "vision": "self-attention over the image",
    "audio": "self-attention over the sound",
    "text": "self-attention over the text",
}


def is_cross(kind: Kind) -> bool:
    """Return True for cross-attention, whose keys are not its queries.

    >>> is_cross("cross"), is_cross("vision_cross"), is_cross("vision")
    (True, True, False)
    """
    return "cross" in kind.split("_")


def is_kind(name: str) -> bool:
    """Return True for the name of a kind of site."""
    return name.split("_")[0] in (*TOWERS, *KINDS)


def in_order(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return kinds of site in the order in which they are listed: towers first, cross-attention after its tower.

    >>> in_order(["cross", "decoder", "vision_cross", "vision"])
    ('vision', 'vision_cross', 'decoder', 'cross')
    """
    order = (*TOWERS, *KINDS)
    return tuple(sorted(set(kinds), key=lambda kind: (order.index(kind.split("_")[0]), kind)))


def of_image(kind: Kind, number: int) -> Kind:
    """Return the name of a tower's site for one of several images of a row, numbered from 0.

    >>> of_image("vision", 0), of_image("vision_cross", 1)
    ('vision', 'vision_cross_image2')
    """
    return with_part(kind, f"image{number + 1}") if number else kind


def with_part(kind: Kind, part: str) -> Kind:
    """Return the name of a part of a kind of site.

    >>> with_part("vision_cross", "stack2")
    'vision_cross_stack2'
    """
    return f"{kind}_{part}"


def item_of(kind: Kind) -> int:
    """Return the number of the image in a name that `of_image` gave, from 0.

    >>> item_of("vision"), item_of("vision_cross_image2")
    (0, 1)
    """
    numbers = [part.removeprefix("image") for part in kind.split("_") if part.startswith("image")]
    return int(numbers[0]) - 1 if numbers else 0


def kind_title(kind: Kind) -> str:
    """Return a kind of site as people read it.

    >>> kind_title("cross"), kind_title("vision_cross")
    ('cross-attention', 'pooling attention over the image')
    """
    if kind in _TITLES:
        return _TITLES[kind]
    tower, _, rest = kind.partition("_")
    title = _TITLES[tower]
    if is_cross(kind):
        title = title.replace("self-attention", "pooling attention")
    parts = [part.replace("image", "image ").replace("stack", "stack ") for part in rest.split("_") if part != "cross"]
    return ", ".join([title, *parts])
