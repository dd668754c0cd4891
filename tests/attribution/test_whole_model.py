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
from tests.reference.whole_model.models import build, inputs_of

#: Names of options and blocks in the public interface.
ATTENTION = {"fixed": "carried", "integrated": "chosen"}
BASELINE = "reference"
BLOCKS = {"baseline": "reference"}

PARTS = ["tokens", "states", "edges", "heads", "blocks", "direct", "biases"]
POSITION, TOKEN = 3, 17
TOLERANCE = 1e-6


@cache
def model_of(family: str) -> Any:
    return build(family)


def array_of(terms: dict[tuple[Any, ...], float], like: xr.DataArray) -> np.ndarray:
    """Terms in the shape of an array; cells without a term are zero."""
    expected = xr.zeros_like(like, dtype=float)
    for where, term in terms.items():
        coordinates = [BLOCKS.get(coordinate, coordinate) for coordinate in where]
        places = dict(zip(like.dims, coordinates, strict=True))
        expected.loc[places] = term
    return expected.values


def explained(family: str, attention: str, baseline: str) -> Any:
    options = {"attention": ATTENTION[attention], BASELINE: baseline, "parts": PARTS}
    lens = Lens(model_of(family))
    return lens.explain_inputs(inputs_of(family), output=TOKEN, position=POSITION, **options)[0]


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_part(family: str, attention: str, baseline: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    value, terms = explain(family, model, inputs, POSITION, TOKEN, attention == "integrated", baseline == "mean")
    with torch.no_grad():
        own = float(model(**inputs).logits[0, POSITION, TOKEN])
    assert value == pytest.approx(own, rel=TOLERANCE)
    explanation = explained(family, attention, baseline)
    largest = max(abs(term) for cells in terms.values() for term in cells.values())
    wrong = []
    for (site, part), cells in terms.items():
        array = explanation.site(site)[part]
        difference = np.abs(array.values - array_of(cells, array)).max()
        if not difference <= TOLERANCE * largest:
            wrong.append(f"{site} {part}: off by {difference / largest:.1e} of the largest term")
    parts = {(site, part) for site, arrays in explanation.sites.items() for part in arrays}
    assert parts == set(terms)
    assert not wrong, "\n".join(wrong)
