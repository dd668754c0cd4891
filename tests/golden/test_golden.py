"""Numbers stay what they were: every case is compared with the digests that were recorded before.

Another processor rounds differently, so the digests may differ by rounding here; `make golden` compares full arrays with
those of another commit on one machine, to the bit.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.golden.cases import CASES
from tests.golden.record import Digest, digest, digest_difference, read_digests, results_of

#: Of the size of an array; single precision and sums of many terms on any processor.
ALLOWED = 2e-5


@cache
def digests() -> dict[str, dict[str, Digest]]:
    return read_digests()


#: Half a minute by itself; `make golden` has it.
SLOW = {"family pegasus_x"}


@pytest.mark.parametrize("name", sorted(set(CASES) - SLOW))
def test_results_are_those_that_were_recorded(name: str) -> None:
    results = results_of(CASES[name])
    recorded = digests()[name]
    assert set(results) == set(recorded)
    for key, array in results.items():
        assert digest_difference(recorded[key], digest(key, array)) < ALLOWED, f"{name}: {key}"
