"""Open a pickle that may hold plain data only: containers, strings, numbers, and numpy arrays of numbers.

The attention data of Clark et al. 2019 (`unlabeled_attn.pkl`) is a pickle, and a pickle can name any function to be
called on load. This one can name six, which are written here and build arrays from bytes, a numeric type and a shape that
fit each other; numpy's own constructors, which follow what they are told, are never reached. The names stand for objects
that a pickle can neither change nor look into. The file is read twice: first only its instructions, since a few bytes can
also ask for gigabytes.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from normlens.errors import InputError

_KIND = re.compile(r"[<>=|]?[biufc](1|2|4|8|16)")
_MOST_AXES = 32
_SLACK = 1 << 20  # bytes that may be made beyond those that the file has


class _Refused(pickle.UnpicklingError):
    pass


class _Name:
    """What a name in the pickle stands for; `BUILD`, which sets attributes, is refused."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise _Refused("it changes what it names")


class _ArrayType(_Name):
    """`numpy.ndarray`, as an argument and nothing else."""

    __slots__ = ()


class _Function(_Name):
    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class _Kind:
    """Stands for a numpy dtype: a real one could be given fields of objects by the pickle."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        if not isinstance(code, str) or not _KIND.fullmatch(code):
            raise _Refused(f"arrays of numbers are admitted, not of {str(code)[:20]!r}")
        try:
            self.dtype = np.dtype(code)
        except TypeError as error:
            raise _Refused(f"there is no number of kind {code!r}") from error

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _Refused("structured arrays are not admitted")
        if state[1] not in ("<", ">", "=", "|"):
            raise _Refused("a number's bytes stand in one of two orders")
        self.dtype = self.dtype.newbyteorder(state[1])


class PlainArray:
    """An array of numbers from a pickle; `numpy.asarray` gives the array."""

    __slots__ = ("_array",)

    def __init__(self) -> None:
        self._array: np.ndarray | None = None  # its content arrives after it was made, as numpy pickles arrays

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._array is None:
            raise InputError("an array of a pickle must have content: this one has none")
        return np.array(self._array, dtype=dtype, copy=copy)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("an array has a version, a shape, a kind, an order and its bytes")
        _, shape, kind, by_column, raw = state
        self._array = _array(raw, kind, shape, "F" if by_column else "C")


def _array(raw: Any, kind: Any, shape: Any, order: str) -> np.ndarray:
    if not isinstance(kind, _Kind) or not isinstance(raw, bytes | bytearray | str):
        raise _Refused("an array must consist of numbers")
    if not isinstance(shape, tuple) or len(shape) > _MOST_AXES or not all(type(n) is int and n >= 0 for n in shape):
        raise _Refused("a shape is a tuple of whole numbers")
    content = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
    if math.prod(shape) * kind.dtype.itemsize != len(content):
        raise _Refused(f"an array of shape {shape} has not {len(content)} bytes")
    return np.frombuffer(content, dtype=kind.dtype).reshape(shape, order="F" if order == "F" else "C")


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BufferedIOBase, size: int) -> None:
        super().__init__(stream, encoding="latin1")
        self._room = size + _SLACK  # what is made of strings must not exceed what the file could hold
        cores = ("core", "_core")
        self._admitted: dict[tuple[str, str], _Name] = {
            ("numpy", "ndarray"): _ArrayType(),
            ("numpy", "dtype"): _Function(_Kind),
            ("_codecs", "encode"): _Function(self._encode),
            **{(f"numpy.{core}.multiarray", "_reconstruct"): _Function(self._reconstruct) for core in cores},
            **{(f"numpy.{core}.multiarray", "scalar"): _Function(self._scalar) for core in cores},
            **{(f"numpy.{core}.numeric", "_frombuffer"): _Function(self._from_buffer) for core in cores},
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._admitted:
            raise _Refused(f"it names {module}.{name}, which is neither plain data nor a numpy array")
        return self._admitted[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("it refers to objects outside the file")

    def _reconstruct(self, kind: Any = None, *rest: Any) -> PlainArray:
        if not isinstance(kind, _ArrayType):
            raise _Refused("an array must consist of numbers")
        return PlainArray()

    def _from_buffer(self, content: Any, kind: Any, shape: Any, order: Any, axes: Any = None) -> PlainArray:
        if axes is not None or order not in ("C", "F"):
            raise _Refused("arrays in rows or columns are admitted, not in other orders")
        self._take(content)
        made = PlainArray()
        made.__setstate__((1, shape, kind, order == "F", content))
        return made

    def _scalar(self, kind: Any, content: Any) -> Any:
        return _array(content, kind, (1,), "C")[0]

    def _encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        # How Python 2's byte strings travel in protocol 2; no other codec has any business here.
        if not isinstance(text, str) or encoding != "latin1":
            raise _Refused("the codec of byte strings is latin1")
        self._take(text)
        return text.encode("latin1")

    def _take(self, content: Any) -> None:
        self._room -= len(content)
        if self._room < 0:
            raise _Refused("it makes more of its strings than it has")


def load_plain_pickle(opened: Callable[[], io.BufferedIOBase], name: str) -> Any:
    """The content of a pickle of plain data; anything else in it is an error, and none of it has been run.

    `opened` opens the file from its beginning.
    """
    try:
        with opened() as stream:
            size = _surveyed(stream)
        with opened() as stream:
            return _PlainUnpickler(stream, size).load()
    except Exception as error:  # a hostile or broken pickle may raise anything
        reason = str(error)[:200] or type(error).__name__
        raise InputError(
            f"a pickle is read only if it holds plain data and numpy arrays: {name} does not ({reason}); convert it to "
            "JSON Lines with a tool that you trust"
        ) from error


def _surveyed(stream: io.BufferedIOBase) -> int:
    """The bytes of a pickle whose instructions ask for no more memory than they fill."""
    end = 0
    for count, (opcode, argument, position) in enumerate(pickletools.genops(stream), 1):  # type: ignore[arg-type]
        end = position or 0
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise _Refused(f"it numbers {argument} objects and has at most {count}")
    return end
