"""Other tools take what we hand them, and draw it."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from tests.viewer.synthetic import analysis


def test_bertviz_takes_the_arguments() -> None:
    bertviz = pytest.importorskip("bertviz", reason="bertviz draws them: pip install bertviz")
    one = analysis()
    arguments = one.to_bertviz("af_norm")
    assert [tuple(layer.shape) for layer in arguments["attention"]] == [(1, 4, 16, 16)] * 3
    values = one["af_norm"].values
    np.testing.assert_allclose(arguments["attention"][2][0], values[2] / values[2].sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(one.to_bertviz()["attention"][0][0], one["alpha"].values[0], rtol=1e-6)
    for view in (bertviz.head_view, bertviz.model_view):
        assert "the" in view(**arguments, html_action="return").data
        assert "chat" in view(**analysis(cross=True).to_bertviz(), html_action="return").data


def test_circuitsvis_takes_the_arguments() -> None:
    circuitsvis = pytest.importorskip("circuitsvis.attention", reason="circuitsvis draws them: pip install circuitsvis")
    one = analysis()
    arguments = one.to_circuitsvis(2, "af_norm")
    np.testing.assert_allclose(arguments["attention"], one["af_norm"].sel(layer=2).values, rtol=1e-6)
    assert "bought" in str(circuitsvis.attention_patterns(**arguments))
    assert one.to_circuitsvis(2, "attn_n")["attention"].shape == (1, 16, 16)
    with pytest.raises(InputError, match="self-attention only"):
        analysis(cross=True).to_circuitsvis(1, site="cross")
    with pytest.raises(InputError, match="layers of this run"):
        one.to_circuitsvis(7)
    with pytest.raises(InputError, match="maps of this run"):
        one.to_circuitsvis(1, "f_norm")
