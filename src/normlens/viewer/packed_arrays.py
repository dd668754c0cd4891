"""Arrays as short text: 16-bit floats or 8-bit codes, deflated, one chunk per layer so that a page unpacks at need."""

from __future__ import annotations

import base64
import zlib
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.types import Json

Encoding = Literal["f16", "q8"]

#: Half of float16's largest power of two: scaling a layer's largest value to it keeps 11 bits over nine decades.
_F16_TOP = 32768.0


def pack_layers(
    values: Float[NDArray[Any], "layer ..."], encoding: Encoding = "f16", *, own_apart: bool = False
) -> Json:
    """One chunk of text per layer, with what is needed to read it back (`unpack.ts` in the page).

    `f16`: `value = scale[layer] * float16`, relative error at most 2^-11; the bytes are stored low plane first.
    `q8`: `value = top[row] * (code / 255)^2`, so a value of 1 % of its row's top is right to 4 %; never negative.
    With `own_apart`, 8-bit codes leave the diagonal of `[layer, query, key]` out, which would take most of each row's
    range, and keep it as float32.

    >>> packed = pack_layers(np.array([[0.25, 0.5]]))
    >>> packed["encoding"], packed["shape"], packed["scale"]
    ('f16', [1, 2], [1.52587890625e-05])
    """
    bad = sum(int(layer.size - np.isfinite(layer).sum()) for layer in values)
    if bad:
        raise InputError(
            f"{bad} of {values.size} values are NaN or infinite; find the layer that produced them before drawing"
        )
    apart = own_apart and encoding == "q8"
    chunks = []
    for layer in values:  # one at a time: maps are large
        numbers = np.asarray(layer, dtype=np.float64)
        chunks.append(_f16_chunk(numbers) if encoding == "f16" else _q8_chunk(numbers, apart))
    return {
        "encoding": encoding,
        "shape": list(values.shape),
        "scale": [scale for scale, _ in chunks],
        "data": [base64.b64encode(zlib.compress(data, 6)).decode("ascii") for _, data in chunks],
    } | ({"own_apart": True} if apart else {})


def _f16_chunk(layer: NDArray[np.float64]) -> tuple[float, bytes]:
    top = float(np.abs(layer).max(initial=0.0))
    scale = top / _F16_TOP if top > 0 else 1.0
    halves = np.ascontiguousarray((layer / scale).astype("<f2"))
    # Sign and exponent bytes repeat and mantissa bytes do not: apart, they deflate better.
    return scale, np.ascontiguousarray(halves.view(np.uint8).reshape(-1, 2).T).tobytes()


def _q8_chunk(layer: NDArray[np.float64], own_apart: bool) -> tuple[float, bytes]:
    rows = layer.reshape(-1, layer.shape[-1])
    if rows.min(initial=0.0) < 0:
        raise InputError("8-bit codes hold no negative values; pack an array with signs as float16")
    own = b""
    if own_apart:
        own = np.diagonal(rows).astype("<f4").tobytes()
        rows = np.where(np.eye(len(rows), dtype=bool), 0.0, rows)
    top = rows.max(axis=1, initial=0.0).astype("<f4")
    ratio = rows / np.where(top > 0, top, 1.0)[:, None]
    codes = np.rint(255.0 * np.sqrt(np.clip(ratio, 0.0, 1.0))).astype(np.uint8)
    return 1.0, top.tobytes() + own + codes.tobytes()
