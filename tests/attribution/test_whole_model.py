"""Every term of an explanation is what is missing when its vector is taken out of the frozen model, to 1e-6."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from normlens import Lens
from tests.reference.whole_model.families import FAMILIES, explain
from tests.reference.whole_model.models import CONFUSABLE, build, inputs_of

#: Names of options and blocks in the public interface.
ATTENTION = {"fixed": "carried", "integrated": "chosen"}
BASELINE = "reference"
BLOCKS = {"baseline": "reference"}

PARTS = ["tokens", "states", "edges", "heads", "blocks", "direct", "biases"]
#: Parts that normlens refuses.
REFUSED = {"xlnet": ["edges", "heads"], "gemma3n": ["blocks", "direct"]}
#: Axes along which terms are added up first: the design names no block for the constants of AltUp.
ADDED_UP = {("xlnet", "direct"): "head", ("gemma3n", "biases"): "block"}
POSITION, TOKEN = 3, 17
TOLERANCE = 1e-6

#: Terms by coordinates.
Cells = dict[tuple[Any, ...], float]


@cache
def model_of(family: str) -> Any:
    return build(family)


def cells_of(array: xr.DataArray) -> Cells:
    """Values by coordinates, in the names of the reference."""
    names = {public: name for name, public in BLOCKS.items()}
    cells = {}
    for place, value in np.ndenumerate(array.values):
        where = [array[axis].values.tolist()[index] for axis, index in zip(array.dims, place, strict=True)]
        cells[tuple(names.get(name, name) for name in where)] = float(value)
    return cells


def added_up(cells: Cells, axis: int) -> Cells:
    """Terms summed along an axis."""
    totals: Cells = {}
    for where, term in cells.items():
        left = where[:axis] + where[axis + 1 :]
        totals[left] = totals.get(left, 0.0) + term
    return totals


def furthest(actual: Cells, expected: Cells) -> tuple[float, str]:
    """The largest difference and its cell; a cell that one side does not have is zero there."""
    differences = {}
    for where in actual.keys() | expected.keys():
        one, other = actual.get(where, 0.0), expected.get(where, 0.0)
        differences[where] = (abs(one - other), f"{where} is {one:.9g}, not {other:.9g}")
    return max(differences.values())


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("case", [*FAMILIES, *CONFUSABLE])
def test_every_part(case: str, attention: str, baseline: str) -> None:
    family = case.split()[0]
    model, inputs, refused = model_of(family), inputs_of(case), REFUSED.get(family, [])
    value, terms = explain(family, model, inputs, POSITION, TOKEN, attention == "integrated", baseline == "mean")
    largest = max(abs(term) for cells in terms.values() for term in cells.values())
    with torch.no_grad():
        own = float(model(**inputs).logits[0, POSITION, TOKEN])
    assert value == pytest.approx(own, abs=TOLERANCE * largest)
    parts = [part for part in PARTS if part not in refused]
    options = {"attention": ATTENTION[attention], BASELINE: baseline, "parts": parts}
    explanation = Lens(model).explain_inputs(inputs, output=TOKEN, position=POSITION, **options)[0]
    wrong = []
    for site, arrays in explanation.sites.items():
        for part, array in arrays.items():
            actual, expected = cells_of(array), terms.pop((site, part), {})
            if (family, part) in ADDED_UP:
                axis = array.dims.index(ADDED_UP[family, part])
                actual, expected = added_up(actual, axis), added_up(expected, axis)
            difference, text = furthest(actual, expected)
            if not difference <= TOLERANCE * largest:
                wrong.append(f"{site} {part} {text}")
    assert not wrong, "\n".join(wrong)
    missing = {part for _, part in terms} - set(refused)
    assert not missing
