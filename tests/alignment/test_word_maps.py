from __future__ import annotations

import numpy as np
import pytest

from normlens.alignment.word_maps import WordMapper
from tests.alignment.models_for_tests import FAMILIES, SENTENCES, lens
from tests.reference import alignment as reference


@pytest.mark.parametrize("setting", ["awi", "awo"])
@pytest.mark.parametrize("family", FAMILIES)
def test_maps_of_a_batch_are_what_the_definition_gives_one_by_one(family: str, setting: str) -> None:
    mapper = WordMapper(lens(family))
    pairs = [mapper.encoder(source, target) for source, target in SENTENCES[1:4]]
    found = mapper.maps(pairs, [1, 3], setting)
    for pair, batched in zip(pairs, found, strict=True):
        (analysis,) = lens(family).analyze_inputs(mapper.encoder.batch([pair], mapper.device), measures=["attn_n"])
        site = analysis.site("cross")["attn_n"]
        rows = [[place - (setting == "awo") for place in places] for places in pair.rows]
        owned = {place for places in pair.columns for place in places}
        special = [place for place in range(len(pair.source_ids)) if place not in owned]
        expected = 0
        for layer in (1, 3):
            one = reference.word_map(site.sel(layer=layer).values, rows, [list(c) for c in pair.columns], special)
            expected = expected + one / one.sum(-1, keepdims=True) / 2
        assert batched is not None
        np.testing.assert_allclose(batched, expected, rtol=2e-4, atol=1e-6)
