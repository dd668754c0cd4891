"""Open a pickle that may hold plain data only: containers, strings, numbers, and numpy arrays of numbers.

The attention data of Clark et al. 2019 (`unlabeled_attn.pkl`) is a pickle, and a pickle can name any function to be
called on load. This one can name a handful, none of which does anything but build an array of numbers.
"""

from __future__ import annotations

import codecs
import pickle
from typing import IO, Any

import numpy as np

from normlens.errors import InputError


class _Kind:
    """Stands for a numpy dtype until an array needs it: a real one could be given fields of objects by the pickle."""

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        self.dtype = np.dtype(code)
        if self.dtype.kind not in "biufc":
            raise pickle.UnpicklingError(f"arrays of numbers are admitted, not of {code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if any(part is not None for part in state[2:5]):  # parts of a structured type
            raise pickle.UnpicklingError("structured arrays are not admitted")
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """An array whose content arrives after it was made, as numpy pickles them, checked on the way."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, by_column, raw = state
        if not isinstance(kind, _Kind) or not isinstance(raw, bytes | str):
            raise pickle.UnpicklingError("an array must consist of numbers")
        content = raw.encode("latin1") if isinstance(raw, str) else raw
        super().__setstate__((version, shape, kind.dtype, by_column, content))


def _reconstruct(*arguments: Any) -> np.ndarray:
    return _Array.__new__(_Array, (0,), np.int8)


def _from_buffer(content: Any, kind: _Kind, shape: Any, order: str, axes: Any = None) -> np.ndarray:
    if axes is not None:
        raise pickle.UnpicklingError("arrays in rows or columns are admitted, not in other orders")
    return np.frombuffer(content, dtype=kind.dtype).reshape(shape, order=order)  # type: ignore[call-overload,no-any-return]


def _scalar(kind: _Kind, content: bytes | str) -> Any:
    raw = content.encode("latin1") if isinstance(content, str) else content
    return np.frombuffer(raw, dtype=kind.dtype)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # How Python 2's byte strings travel in protocol 2; no other codec has any business here.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the codec {encoding!r} is not admitted")
    return codecs.encode(text, "latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is neither plain data nor a numpy array")
        return _ADMITTED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def load_plain_pickle(stream: IO[bytes], name: str) -> Any:
    """The content of a pickle of plain data; anything else in it is an error, and none of it has been run."""
    try:
        return _PlainUnpickler(stream, encoding="latin1").load()
    except Exception as error:  # a hostile or broken pickle may raise anything
        raise InputError(
            f"a pickle is read only if it holds plain data and numpy arrays: {name} does not ({error}); convert it to "
            "JSON Lines with a tool that you trust"
        ) from error
