"""The alignment view opens on what `align` takes, and shows an aligner's links beside gold ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from normlens.alignment.aligner import Aligner
from normlens.alignment.links import Annotation
from normlens.alignment.scoring import Counts
from normlens.errors import InputError
from normlens.viewer.alignment_page import aligner_page, suggested_alignment
from normlens.viewer.page_data import analysis_page
from tests.alignment.models_for_tests import SENTENCES, lens
from tests.viewer.synthetic import analysis, dataset
from tests.viewer.unpacking import unpack_layers


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))


def cross(layers: int = 2) -> xr.Dataset:
    """Three words against three: `un ##fold` reads `dé ##plie`, and layer 2 is read with what it puts out."""
    source, target = ["▁le", "▁dé", "plie", "▁chat", "</s>"], ["<pad>", "▁the", "▁un", "fold", "▁cat"]
    data = dataset(target, source, layers=layers, heads=1)
    read = np.full((5, 5), 0.01)
    for row, column in ((1, 0), (2, 1), (3, 2), (4, 3), (0, 4)):
        read[row, column] = 1.0
    written = np.vstack([read[1:], np.full((1, 5), 0.01)])
    data["attn_n"].values[:] = np.stack([read, written][:layers])
    return data


def test_the_suggestion_joins_words_drops_special_tokens_and_chooses_layers() -> None:
    found = suggested_alignment(cross())
    assert found is not None
    assert found["source"] == ["le", "déplie", "chat"] and found["target"] == ["the", "unfold", "cat"]
    assert [link[:2] for link in found["links"]] == [[0, 0], [1, 1], [2, 2]]
    assert "layer 1," in found["how"] and "ATTN-N" in found["how"]
    scores = unpack_layers(found["scores"])[0]
    for source, target, score in found["links"]:
        assert score == pytest.approx(scores[target, source], rel=1e-3)


def test_the_suggestion_is_what_align_gives() -> None:
    model = lens("marian")
    for source, target in SENTENCES[:2]:
        found = analysis_page(model.analyze(source, target=target))["alignment"]
        aligned = Aligner(model, layer=[int(n) for n in _layers_said(found["how"])]).align_pair(source, target)
        assert {(s, t) for s, t, _ in found["links"]} == set(aligned.links)
        assert found["source"] == list(aligned.source) and found["target"] == list(aligned.target)
        for s, t, score in found["links"]:
            assert score == pytest.approx(aligned.scores[s, t], rel=1e-4)


def _layers_said(how: str) -> list[str]:
    return how.split("layer", 1)[1].removeprefix("s").split(", subwords")[0].replace(" ", "").split(",")


def test_nothing_is_suggested_where_there_is_nothing_to_suggest() -> None:
    assert suggested_alignment(cross().drop_vars(list(cross().data_vars))) is None
    assert suggested_alignment(-cross()) is None
    assert "alignment" not in analysis_page(analysis())
    assert "alignment" not in analysis_page(analysis(cross=True), span=(0, 2))
    assert "alignment" in analysis_page(analysis(cross=True))


def pairs_of(page: Any, selector: str) -> set[tuple[int, int]]:
    """(source, target) of drawn elements."""
    found = page.locator(selector).evaluate_all("l => l.map(e => [+e.dataset.column, +e.dataset.row])")
    return {tuple(pair) for pair in found}


@pytest.mark.browser
def test_the_view_opens_on_the_suggestion_and_still_has_every_layer(opened) -> None:
    document = analysis_page(analysis(cross=True))
    page = opened(document, "view=alignment")
    links = {(s, t) for s, t, _ in document["alignment"]["links"]}
    assert pairs_of(page, "path.link") == links == pairs_of(page, "circle.dot")
    assert page.locator(".row-label").first.text_content().startswith("The")
    assert page.locator("[data-control=layer]").is_hidden() and page.locator("[data-control=level]").is_hidden()
    page.get_by_role("button", name="One layer").click()
    page.wait_for_url(lambda url: "by=layer" in url)
    assert page.locator("rect.mark").count() == 4 and page.locator("[data-control=layer]").is_visible()


@pytest.mark.browser
def test_an_aligners_links_are_shown_beside_gold(opened, tmp_path) -> None:
    aligner = Aligner(lens("marian"), reverse=lens("marian", 1), extract="mutual")
    source, target = SENTENCES[0]
    aligned = aligner.align_pair(source, target)
    right = sorted(aligned.links)[0]
    missing = next(
        (s, t) for s in range(len(aligned.source)) for t in range(len(aligned.target)) if (s, t) not in aligned.links
    )
    gold = Annotation.of({missing}, {right})
    document = aligner_page(aligner, source, target, gold)
    page = opened(document, "view=alignment")
    assert pairs_of(page, "circle.dot") == set(aligned.links)
    assert pairs_of(page, "rect.frame[data-gold=sure]") == {missing}
    assert pairs_of(page, "rect.frame[data-gold=possible]") == {right}
    assert pairs_of(page, "path.link") == set(aligned.links) | {missing}
    assert pairs_of(page, "path.link[stroke-dasharray]") == {missing}
    aer = Counts.of(aligned.links, gold).aer
    assert f"AER {100 * aer:.1f} %" in page.locator("[data-part=score]").inner_text()
    how = page.locator("[data-part=how]")
    assert how.get_attribute("title") == aligner.signature()
    assert "measure: attn_n · layer: auto (forward=" in how.inner_text()
    for s, t, score in document["alignment"]["links"]:
        assert score == pytest.approx(aligned.scores[s, t], rel=1e-6)
    path = aligner.save_html(tmp_path / "pair.html", source, target, gold={right})
    assert "normlens-data" in path.read_text(encoding="utf-8")


def test_gold_links_outside_the_pair_and_empty_sides_are_refused() -> None:
    aligner = Aligner(lens("marian"))
    with pytest.raises(InputError, match="is outside of the"):
        aligner_page(aligner, *SENTENCES[0], gold={(99, 0)})
    with pytest.raises(InputError, match="empty side"):
        aligner_page(aligner, "", "une maison")


def test_an_aligner_shows_its_pair_in_the_alignment_view(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    Aligner(lens("marian")).show(*SENTENCES[0])
    assert len(opened) == 1 and opened[0].endswith("#view=alignment")
