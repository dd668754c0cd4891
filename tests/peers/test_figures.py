"""normlens agrees with the figures that the original authors' code computed."""

from __future__ import annotations

import numpy as np

from tests.peers.figures import FIGURES, QUANTITIES, SOURCES, differences


def test_every_figure_of_the_authors_agrees() -> None:
    compared = set()
    for text, source, quantity, difference in differences():
        assert difference <= SOURCES[source].allowed, f"text {text}: {source}, {quantity}"
        compared.add((source, quantity))
    assert compared == set(QUANTITIES)


def test_dividing_rows_by_their_sums_is_another_recipe() -> None:
    """GlobEnc's released code multiplies raw norms; a rollout of row shares ranks tokens differently."""
    with np.load(FIGURES) as figures:
        maps, raw = figures["1/globenc/enc_n"].astype(np.float64), figures["1/globenc/rollout_raw_last_layer"]
    joint = np.eye(maps.shape[-1])
    for layer in maps:
        joint = layer / layer.sum(-1, keepdims=True) @ joint
    assert np.argsort(joint[0]).tolist() != np.argsort(raw[0]).tolist()
