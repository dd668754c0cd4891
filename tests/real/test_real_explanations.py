"""Explanations of the real pretrained models: complete, by both rules of attention, and true where the answer is known."""

from __future__ import annotations

from functools import cache
from typing import Literal

import pytest
from benchmarks.explain_real import CASES, worst

import normlens
from normlens import Lens
from tests.real.test_real_models import MODELS

pytestmark = pytest.mark.real


@cache
def lens_of(name: str) -> Lens:
    case = next(case for case in CASES if case.folder == name)
    if not (MODELS / name).is_dir():
        pytest.skip(f"the real model {name} is not in {MODELS} (set NORMLENS_REAL_MODELS)")
    return normlens.load(MODELS / name, **case.load)


@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("name", [case.folder for case in CASES])
def test_terms_add_up(name: str, attention: Literal["fixed", "integrated"]) -> None:
    case = next(case for case in CASES if case.folder == name)
    found = worst(case, lens_of(name), attention)
    assert found.gap < 1e-5 and found.replay < 1e-5 and found.output < 1e-6


def test_the_capital_is_read_from_the_country() -> None:
    found = lens_of("smollm2").explain("The capital of France is", output=" Paris", against=" London")
    strongest = found["tokens"].isel(key=slice(1, None))  # the first token is where language models park attention
    assert str(strongest["key_token"].values[int(strongest.argmax())]) == "ĠFrance"


def test_a_translated_noun_comes_from_its_source() -> None:
    found = lens_of("opus-mt-en-fr").explain("The house is old.", target="La maison est vieille.", position=1)
    source = found.site("encoder")["tokens"]
    assert str(source["key_token"].values[int(source.argmax())]) == "▁house"
