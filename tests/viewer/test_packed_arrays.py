"""Packed numbers: read back, they are off by no more than their form allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from normlens.errors import InputError
from normlens.viewer.packed_arrays import pack_layers
from tests.viewer.unpacking import unpack_layers

SIZES = st.floats(min_value=0, max_value=2**100, allow_subnormal=False, width=32)


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=4, max_side=5), elements=SIZES))
@settings(max_examples=60, deadline=None)
def test_float16_keeps_eleven_bits_over_nine_decades(values: np.ndarray) -> None:
    back = unpack_layers(pack_layers(values))
    top = np.abs(values).reshape(len(values), -1).max(axis=1).reshape(-1, *[1] * (values.ndim - 1))
    seen = values >= 2e-9 * top
    assert (np.abs(back - values)[seen] <= 2**-11 * values[seen] * 1.001).all()
    assert (np.abs(back - values) <= 2e-9 * top + 2**-11 * values * 1.001).all()


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=4, max_side=5), elements=SIZES))
@settings(max_examples=60, deadline=None)
def test_eight_bits_err_by_the_square_root_code_only(values: np.ndarray) -> None:
    back = unpack_layers(pack_layers(values, "q8"))
    top = values.max(axis=-1, keepdims=True)
    # Half a step of the code at q: |d(q/255)^2| <= (q + 1/4) / 255^2.
    bound = top * (np.sqrt(np.divide(values, top, out=np.zeros_like(values), where=top > 0)) / 255 + 1 / 255**2)
    assert (np.abs(back - values) <= bound * (1 + 1e-5) + 1e-44).all()


def test_signs_survive_and_what_is_not_a_number_is_refused() -> None:
    assert unpack_layers(pack_layers(np.array([[-0.5, 0.25]]))).tolist() == [[-0.5, 0.25]]
    with pytest.raises(InputError, match="negative"):
        pack_layers(np.array([[-0.5, 0.25]]), "q8")
    with pytest.raises(InputError, match="1 of 2 values are NaN"):
        pack_layers(np.array([[np.nan, 0.25]]))
