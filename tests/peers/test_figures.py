"""normlens agrees with the figures that the original authors' code computed."""

from __future__ import annotations

import numpy as np

import normlens
from tests.peers.figures import FIGURES, QUANTITIES, SOURCES, TEXTS, differences


def test_every_figure_of_the_authors_agrees() -> None:
    compared = set()
    for text, source, quantity, difference in differences():
        assert difference <= SOURCES[source].allowed, f"text {text}: {source}, {quantity}"
        compared.add((source, quantity))
    assert compared == set(QUANTITIES)


def test_dividing_rows_by_their_sums_is_another_recipe() -> None:
    """GlobEnc's released code multiplies raw norms; a rollout of row shares ranks tokens differently."""
    with np.load(FIGURES) as figures:
        raw = figures["1/globenc/rollout_raw_last_layer"]
    shares = normlens.load().analyze(TEXTS[1], measures=["enc_n"]).rollout("enc_n").isel(layer=-1).values
    assert np.argsort(shares[0]).tolist() != np.argsort(raw[0]).tolist()
