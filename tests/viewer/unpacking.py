"""What a page reads from a packed array, as `unpack.ts` does: written here again, so that packing is not its own witness."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray


def unpack_layers(packed: dict[str, Any]) -> Float[NDArray[Any], "layer ..."]:
    """The numbers that a page will read from a packed array."""
    shape = tuple(packed["shape"])
    layers = []
    for scale, text in zip(packed["scale"], packed["data"], strict=True):
        data = zlib.decompress(base64.b64decode(text))
        if packed["encoding"] == "f16":
            planes = np.frombuffer(data, np.uint8).reshape(2, -1)
            layers.append(np.ascontiguousarray(planes.T).view("<f2").astype(np.float64).reshape(shape[1:]) * scale)
        else:
            rows = int(np.prod(shape[1:-1]))
            heads = 2 if packed.get("own_apart") else 1
            top, *own = np.frombuffer(data[: 4 * heads * rows], "<f4").astype(np.float64).reshape(heads, rows)
            codes = np.frombuffer(data[4 * heads * rows :], np.uint8).reshape(rows, shape[-1])
            layer = top[:, None] * (codes / 255.0) ** 2
            if own:
                np.fill_diagonal(layer, own[0])
            layers.append(layer.reshape(shape[1:]))
    return np.stack(layers) if layers else np.zeros(shape)
