"""Open a pickle that may hold plain data only: containers, strings, numbers, and numpy arrays of numbers.

The attention data of Clark et al. 2019 (`unlabeled_attn.pkl`) is a pickle, and a pickle can name any function to be
called on load. This one can name three, none of which does anything but build an array.
"""

from __future__ import annotations

import codecs
import pickle
from typing import IO, Any

import numpy as np

from normlens.errors import InputError


def _array(*arguments: Any) -> np.ndarray:
    kind, shape, code = arguments
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("only plain arrays are admitted")
    return np.ndarray.__new__(np.ndarray, shape, np.dtype(code))


def _dtype(code: str, align: bool = False, copy: bool = False) -> np.dtype[Any]:
    found = np.dtype(code, align=align, copy=copy)
    if found.hasobject:
        raise pickle.UnpicklingError("arrays of objects are not admitted")
    return found


def _scalar(dtype: np.dtype[Any], content: bytes | str) -> Any:
    raw = content.encode("latin1") if isinstance(content, str) else content
    return np.frombuffer(raw, dtype=dtype)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # How Python 2's byte strings travel in protocol 2; no other codec has any business here.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the codec {encoding!r} is not admitted")
    return codecs.encode(text, "latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
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
