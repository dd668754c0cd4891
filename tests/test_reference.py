"""Every measure of every family against the slow reference, and the reference against the model itself."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from normlens import Analysis, Lens
from normlens.errors import InputError
from tests import tiny
from tests.reference import measures as slow
from tests.reference.blocks import Attention, blocks

DTYPES = {"float32": (torch.float32, 1e-5), "float64": (torch.float64, 1e-10)}


@cache
def case(family: str, precision: str) -> tuple[Lens, dict[str, torch.Tensor], list[Analysis], list[Attention]]:
    model = tiny.make(family, DTYPES[precision][0])
    # Eager attention makes NaN of a float64 position that sees nothing, so padding stays inside Gemma's window there.
    inputs = tiny.batch(family, lengths=(9, 7, 8) if (family, precision) == ("gemma2", "float64") else (9, 5, 7))
    lens = Lens(model)
    return lens, inputs, lens.analyze_inputs(inputs, precision=precision), blocks(family, model, inputs)


def real(inputs: dict[str, torch.Tensor], block: Attention, row: int) -> tuple[np.ndarray, np.ndarray]:
    source = inputs["attention_mask"][row].nonzero().flatten().numpy()
    if "decoder_input_ids" not in inputs:
        return source, source
    target = inputs["decoder_attention_mask"][row].nonzero().flatten().numpy()
    return {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}[block.kind]


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: {found.shape} instead of {expected.shape}"
    scale = np.abs(expected).max()
    error = np.abs(found - expected).max() / scale
    assert error <= tolerance, f"{what}: off by {error:.2g} of the largest entry"


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_reference_rebuilds_the_model(family: str, precision: str) -> None:
    _, inputs, _, found = case(family, precision)
    for block in found:
        for row in range(3):
            queries, keys = real(inputs, block, row)
            total = slow.rebuilt(slow.parts_of(block, row, queries, keys), "attnresln_n")
            # Gemma takes the normalization on its branch in float32, whatever the model's dtype.
            loose = family == "gemma2"
            assert_close(total, block.after[row][queries], 1e-6 if precision == "float32" or loose else 1e-12, family)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_measure(family: str, precision: str) -> None:
    _, inputs, analyses, found = case(family, precision)
    tolerance = DTYPES[precision][1]
    assert tuple(analyses[0].sites) == tiny.KINDS.get(family, ("encoder",))
    assert sum(len(d.layer) for d in analyses[0].sites.values()) == len(found)
    for block in found:
        for row, analysis in enumerate(analyses):
            parts = slow.parts_of(block, row, *real(inputs, block, row))
            site = analysis.site(block.kind)
            where = f"{family} {block.kind} layer {block.layer} row {row}"
            for name, expected in slow.measures(parts).items():
                assert_close(site[name].sel(layer=block.layer).values, expected, tolerance, f"{where}: {name}")
            for name, expected in slow.mixing_ratios(parts).items():
                ratio = site.mixing_ratio(name).sel(layer=block.layer).values
                assert_close(ratio, expected, tolerance, f"{where}: mixing ratio of {name}")
                assert (ratio >= 0).all() and (ratio <= 1).all()
            if block.kind == "cross":
                for name, expected in slow.residual_norms(parts).items():
                    norm = site.residual_norm(name).sel(layer=block.layer).values
                    assert_close(norm, expected, tolerance, f"{where}: residual of {name}")
            rounded = precision == "float32" or family == "gemma2"  # Gemma normalizes its branch in float32 always
            assert float(site.proof.sel(layer=block.layer)) < (1e-6 if rounded else 1e-13)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_singular_values_and_expansion_rates(family: str) -> None:
    lens, _, _, found = case(family, "float32")
    values = lens.singular_values()
    rates = {"paper": lens.expansion_rate("paper"), "code": None}
    if family == "llama_bias":
        with pytest.raises(InputError, match=r"heads of width 48 in a model of width 24.*pass variant='paper'"):
            lens.expansion_rate("code")
    else:
        rates["code"] = lens.expansion_rate("code")
    order = {(site.kind, site.layer): n for n, site in enumerate(lens.anatomy.sites)}
    for block in found:
        n = order[block.kind, block.layer]
        width = block.output_weight.shape[1] + 1
        for head in range(block.output_weight.shape[0]):
            expected = slow.singular_values(block, head)
            assert_close(values.values[n, head, :width], expected[:width], 1e-6, f"{family}, head {head + 1}")
            assert np.isnan(values.values[n, head, width:]).all()
            assert (expected[width:] < 1e-6 * expected[0]).all(), (
                "a head has one singular value per value dimension, and one"
            )
        for variant, rate in rates.items():
            if rate is None:
                continue
            assert_close(rate.values[n], np.float64(slow.expansion_rate(block, variant)), 1e-6, f"{family}, {variant}")
