"""Other tools take what we hand them, and draw it."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.results.explanation import Explanation, Proof
from tests.viewer.explained import explanation, translation
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
    with pytest.raises(InputError, match="layer must be one of"):
        one.to_circuitsvis(7)
    with pytest.raises(InputError, match="measure must be one of"):
        one.to_circuitsvis(1, "f_norm")


@pytest.fixture
def explanations() -> tuple[Explanation, Explanation, Explanation]:
    """Of a language model, one token and two; of a translation model, one token."""
    return explanation(), explanation(steps=2, against=None), translation()


def test_polars_has_the_rows_of_pandas(explanations) -> None:
    polars = pytest.importorskip("polars")
    one = analysis()
    frame = one.to_polars(["attn_n"])
    assert isinstance(frame, polars.DataFrame) and frame.columns == list(one.to_frame(["attn_n"]).columns)
    np.testing.assert_allclose(frame["value"].to_numpy(), one.to_frame(["attn_n"])["value"].to_numpy())
    assert explanations[0].to_polars().shape == explanations[0].to_frame().shape


def test_captum_draws_the_terms(explanations) -> None:
    visualization = pytest.importorskip("captum.attr", reason="captum draws them: pip install captum").visualization
    one, two, translated = explanations
    for one_of, steps in ((one, 1), (two, 2), (translated, 1)):
        records = one_of.to_captum()
        assert len(records) == steps
        arrays = [arrays["tokens"].values.reshape(steps, -1) for arrays in one_of.sites.values() if "tokens" in arrays]
        terms = np.concatenate(arrays, axis=-1)
        values = np.atleast_1d(one_of.value)
        for step, record in enumerate(records):
            largest = np.abs(terms[step]).max()
            np.testing.assert_allclose(record.word_attributions * largest, terms[step], rtol=1e-6)
            assert record.attr_score == pytest.approx(float(values[step]))
            assert len(record.raw_input_ids) == len(record.word_attributions)
        assert records[0].raw_input_ids[0] in visualization.visualize_text(records).data


def test_inseq_takes_the_terms_as_they_are(explanations) -> None:
    pytest.importorskip("inseq", reason="inseq draws them: pip install inseq")
    one, two, translated = explanations
    for one_of, steps in ((one, 1), (two, 2), (translated, 1)):
        out = one_of.to_inseq()
        (sequence,) = out.sequence_attributions
        terms = one_of.sites["decoder"]["tokens"].values.reshape(steps, -1)
        first = int(one_of.provenance["position"]) + 1
        drawn = sequence.target_attributions.numpy()
        assert drawn.shape == (first + steps, steps) and sequence.attr_pos_start == first
        for step in range(steps):
            np.testing.assert_allclose(drawn[: first + step, step], terms[step, : first + step], rtol=1e-5)
            assert np.isnan(drawn[first + step :, step]).all()
        assert out.show(display=False, return_html=True)
    source = translated.to_inseq().sequence_attributions[0]
    np.testing.assert_allclose(
        source.source_attributions[:, 0], translated.sites["encoder"]["tokens"].values, rtol=1e-5
    )


def test_a_classifier_has_no_generated_text_for_inseq() -> None:
    pytest.importorskip("inseq", reason="inseq draws them: pip install inseq")
    with pytest.raises(InputError, match="text that a model writes"):
        Explanation(
            {"encoder": dict(explanation().sites["decoder"])}, 1.0, Proof(0, 0, 0, 0), {"output": "x"}
        ).to_inseq()
