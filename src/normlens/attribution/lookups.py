"""Token ids followed through a pass, to the tables that they index.

An integer tensor is known to hold token ids because it was made from the model's own inputs by operations that keep each
token at its position; equal numbers prove nothing (position ids may be the same). What a table gives for token ids becomes a
leaf of the backward pass, which belongs to the positions of those ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlens.attribution.operands import is_live, tensors
from normlens.types import Options

_NAME = "_normlens_ids"
_MEDIA = "_normlens_media"
#: Operations after which every token of the first operand stands at its position, with its id or a function of it.
_IN_PLACE = frozenset(
    (
        *("view", "reshape", "view_as", "squeeze", "unsqueeze", "expand", "expand_as", "contiguous", "clone", "detach"),
        *("to", "type", "type_as", "long", "int", "cpu", "cuda", "data", "masked_fill", "clamp", "clip", "clamp_min"),
        *("clamp_max", "abs", "add", "sub", "mul", "remainder", "fmod", "floor_divide", "bitwise_and", "bitwise_or"),
        *("bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "requires_grad_"),
    )
)
#: Operations whose second operand lends its shape or type, not its numbers.
_LIKE = frozenset(("expand_as", "view_as", "reshape_as", "type_as", "to"))
#: Operations that exchange rows and positions.
_TURNING = frozenset(("transpose", "t", "T", "mT", "permute", "swapaxes", "swapdims", "movedim"))


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions that own terms: those of an input of the model, or of token ids that its code moved."""

    name: str  # the input
    moved: bool = False


@dataclass(frozen=True)
class _Ids:
    """Marks a tensor of token ids: the positions that it holds, and if they stand in front of the rows."""

    positions: Positions
    positions_first: bool = False


@dataclass
class Root:
    """Vectors with one entry for each position: what a table gave for token ids, or vectors that the user handed in."""

    layer: int  # in which it was looked up (0: before the first)
    positions: Positions
    leaf: Tensor
    axes: tuple[int, int]  # of rows and positions
    table: Tensor | None = None  # None: handed in
    ids: Tensor | None = None  # row position

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.leaf.shape[self.axes[1]]


def mark_media(tensor: Tensor, name: str) -> Tensor:
    """Return images or sound of the user as a tensor whose descendants are known; the user's own object stays unmarked."""
    marked = tensor.view_as(tensor)
    marked.__dict__[_MEDIA] = name
    return marked


def media_of(x: Tensor) -> str | None:
    """The input of images or sound from which a tensor was computed before the first layer."""
    found: str | None = x.__dict__.get(_MEDIA)
    return found


def carry_media(name: str, args: tuple[Any, ...], kwargs: Options, out: Any) -> None:
    """Mark the results of an operation on images or sound."""
    source = next((found for x in tensors(args, dict(kwargs)) if (found := media_of(x)) is not None), None)
    if source is not None:
        changed = name in ("setitem", "copy_")
        for x in tensors(args[0]) if changed else tensors(out):
            x.__dict__.setdefault(_MEDIA, source)


def mark_ids(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor of the user's token ids as one that is followed; the user's own object stays unmarked."""
    marked = tensor.view_as(tensor)
    marked.__dict__[_NAME] = _Ids(Positions(name))
    return marked


def _ids_in(x: Any) -> _Ids | None:
    found: _Ids | None = x.__dict__.get(_NAME) if isinstance(x, Tensor) else None
    return found


def follow(name: str, args: tuple[Any, ...], kwargs: Options, out: Any) -> None:
    """Mark the results of an operation on token ids; what is not known to keep tokens at their positions moves them."""
    written = name in ("setitem", "copy_")  # into a tensor that is there already; a constant moves no token
    given = [x for x in tensors(args[-1:] if written else args, dict(kwargs)) if _ids_in(x) is not None]
    if not given or (name in _LIKE and _ids_in(args[0]) is None):
        return
    first = _ids_in(given[0])
    assert first is not None
    for target in (args[0],) if written else tensors(out):
        if target.is_floating_point() or target.dtype == torch.bool or target.ndim == 0:
            continue
        if name in _TURNING and target.ndim == 2:
            found = _Ids(first.positions, not first.positions_first)
        elif not written and _keeps_positions(name, args, kwargs, out):
            found = first
        else:
            found = _Ids(Positions(first.positions.name, moved=True), first.positions_first)
        target.__dict__[_NAME] = found


def _keeps_positions(name: str, args: tuple[Any, ...], kwargs: Options, out: Any) -> bool:
    """Return True if every token stands in the result where it stood in its operand."""
    held = _ids_in(args[0]) if args else None
    if name == "where":
        values = [x for x in args[1:] if isinstance(x, Tensor) and bool((x != x.flatten()[0]).any())]
        return len({id(_ids_in(x)) for x in values}) <= 1
    if held is None:
        return False
    if name in ("pad", "constant_pad_nd"):
        widths = list(args[1] if len(args) > 1 else kwargs["pad"])
        return widths[0] == 0 and not any(widths[2:]) and widths[1] >= 0
    if name == "getitem":  # a slice whose first entry is the first one of the tensor, with the same steps
        return isinstance(out, Tensor) and (out.data_ptr(), out.stride()) == (args[0].data_ptr(), args[0].stride())
    if name.removesuffix("_") in (
        "add",
        "sub",
    ):  # with a number for each position, it is no longer a function of the token
        others = [x for x in args[1:2] if isinstance(x, Tensor) and x.numel() > 1]
        return all(_ids_in(x) is held for x in others)
    return name.removesuffix("_") in _IN_PLACE or name in _IN_PLACE


def look_up(layer: int, name: str, args: tuple[Any, ...], kwargs: Options, out: Any) -> Root | None:
    """Return what a table gave for token ids; None for any other operation."""
    if name == "embedding":
        ids = args[0] if args else kwargs["input"]
        table = args[1] if len(args) > 1 else kwargs["weight"]
    elif name == "getitem":
        table, ids = args[0], args[1]
    else:
        return None
    held = _ids_in(ids)
    if held is None or ids.ndim != 2 or is_live(table):
        return None
    if not isinstance(table, Tensor) or table.ndim != 2 or not table.is_floating_point():
        return None
    if held.positions_first:
        return Root(layer, held.positions, out, (1, 0), table, ids.T)
    return Root(layer, held.positions, out, (0, 1), table, ids)
