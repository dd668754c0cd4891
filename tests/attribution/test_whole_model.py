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
from tests.reference.whole_model.frozen import Terms
from tests.reference.whole_model.models import CONFUSABLE, build, inputs_of

#: Names of options and blocks in the public interface.
ATTENTION = {"fixed": "fixed", "integrated": "integrated"}
BASELINE = "baseline"
BLOCKS = {"baseline": "baseline"}

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


def explained(family: str, inputs: dict[str, torch.Tensor], position: int, attention: str, baseline: str) -> list[Any]:
    """Explanations by normlens, with all parts that it has."""
    parts = [part for part in PARTS if part not in REFUSED.get(family, [])]
    options = {"attention": ATTENTION[attention], BASELINE: baseline, "parts": parts}
    return Lens(model_of(family)).explain_inputs(inputs, output=TOKEN, position=position, **options)


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


def largest_of(terms: Terms) -> float:
    return max(abs(term) for cells in terms.values() for term in cells.values())


def disagreements(family: str, explanation: Any, terms: Terms) -> list[str]:
    """The furthest cell of each part that is not as in the reference, and parts that are not there."""
    wrong = []
    for site, arrays in explanation.sites.items():
        for part, array in arrays.items():
            actual, expected = cells_of(array), terms.get((site, part), {})
            if (family, part) in ADDED_UP:
                axis = array.dims.index(ADDED_UP[family, part])
                actual, expected = added_up(actual, axis), added_up(expected, axis)
            difference, text = furthest(actual, expected)
            if not difference <= TOLERANCE * largest_of(terms):
                wrong.append(f"{site} {part} {text}")
    for site, part in terms:
        if part not in explanation.sites[site] and part not in REFUSED.get(family, []):
            wrong.append(f"{site} {part} is missing")
    return wrong


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("case", [*FAMILIES, *CONFUSABLE])
def test_every_part(case: str, attention: str, baseline: str) -> None:
    family, inputs = case.split()[0], inputs_of(case)
    model, integrated, mean = model_of(family), attention == "integrated", baseline == "mean"
    value, terms = explain(family, model, inputs, POSITION, TOKEN, integrated, mean)
    with torch.no_grad():
        own = float(model(**inputs).logits[0, POSITION, TOKEN])
    tolerance = TOLERANCE * largest_of(terms)
    assert value == pytest.approx(own, abs=tolerance)
    complete = [cells for (_, part), cells in terms.items() if part in ("tokens", "biases")]
    assert sum(sum(cells.values()) for cells in complete) == pytest.approx(value, abs=tolerance)
    (explanation,) = explained(family, inputs, POSITION, attention, baseline)
    wrong = disagreements(family, explanation, terms)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "mixtral", "gemma3"])
def test_padded_row(family: str, side: str, attention: str) -> None:
    """A padded row has the terms of its real positions alone; rotary positions count from anywhere."""
    ids = torch.tensor([[8, 4, 12]])
    padding = {"left": (2, 0), "right": (0, 2)}[side]
    row = torch.nn.functional.pad(ids, padding, value=1)
    mask = torch.nn.functional.pad(torch.ones_like(ids), padding)
    full = inputs_of(family)["input_ids"]
    batch = {
        "input_ids": torch.cat([full, row]),
        "attention_mask": torch.cat([torch.ones_like(full), mask]),
    }
    _, terms = explain(family, model_of(family), {"input_ids": ids}, 2, TOKEN, attention == "integrated", True)
    explanation = explained(family, batch, 2, attention, "mean")[1]
    wrong = disagreements(family, explanation, terms)
    assert not wrong, "\n".join(wrong)
