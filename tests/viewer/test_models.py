"""From real models to the page: the numbers that a browser shows are those of the Analysis."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normlens
from normlens.cli.main import main
from normlens.errors import InputError, NormlensError
from normlens.viewer.page_data import analysis_page

ROOT = Path(__file__).parents[2]


def models() -> Path:
    return Path(os.environ.get("NORMLENS_REAL_MODELS", ROOT.parent / "models"))


def real(name: str, **options: Any) -> normlens.Lens:
    if not (models() / name).is_dir():
        pytest.skip(f"no real model {name} in {models()} (NORMLENS_REAL_MODELS)")
    return normlens.load(models() / name, **options)


@pytest.fixture(scope="module")
def analysis() -> normlens.Analysis:
    try:
        lens = normlens.load()
    except NormlensError as error:
        pytest.skip(f"no embedded model: {error}")
    return lens.analyze("The quick unfolding café, near 東京!", layers=[2, 5])


def check_page(page: Any, dataset: Any, layer: int, measures: tuple[str, str] = ("attn_w", "attnresln_n")) -> None:
    with page.expect_download() as waiting:
        page.locator("[data-export=csv]").click()
    rows = list(csv.DictReader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))
    assert [row["key_token"] for row in rows[: dataset.sizes["key"]]] == list(dataset["key_token"].values)
    for measure in measures:
        values = dataset[measure].sel(layer=layer).values
        got = np.array([float(row[measure]) for row in rows]).reshape(values.shape)
        np.testing.assert_allclose(got, values, rtol=2**-10, atol=1e-8 * values.max())


@pytest.mark.browser
def test_the_page_shows_the_embedded_models_numbers(opened, analysis) -> None:
    page = opened(analysis_page(analysis), "layer=5")
    check_page(page, analysis.site("encoder").dataset, 5)
    assert page.locator("[data-control=layer]").get_attribute("max") == "1"
    page.locator(".about summary").click()
    text = page.locator(".about").inner_text()
    assert (
        "all-MiniLM-L6-v2" in text
        and "largest proof error" in text
        and analysis.provenance["versions"]["torch"] in text
    )


def test_the_title_is_the_text_as_it_was_written(analysis, tmp_path) -> None:
    assert analysis_page(analysis)["title"] == "The quick unfolding café, near 東京!"
    again = normlens.open(analysis.save(tmp_path / "run.zarr"))
    assert analysis_page(again)["title"] == "The quick unfolding café, near 東京!"
    assert "text" not in analysis_page(analysis)["provenance"]


def test_without_the_text_the_title_is_made_from_the_tokens(analysis) -> None:
    bare = normlens.Analysis(analysis.sites, {k: v for k, v in analysis.provenance.items() if k != "text"})
    assert analysis_page(bare)["title"].replace(" ", "") == "thequickunfoldingcafe,near東京!"


@pytest.mark.browser
def test_a_difference_of_two_runs_has_two_sides(opened, analysis) -> None:
    other = normlens.Analysis(
        {"encoder": analysis.sites["encoder"].copy(deep=True) * 0.9 + 0.02}, dict(analysis.provenance)
    )
    page = opened(analysis_page(analysis - other), "draw=matrix&scale=absolute&layer=2")
    ticks = page.locator("[data-measure=attnresln_n] .legend text").all_text_contents()
    assert ticks[0].startswith("−") and ticks[2] == "0"
    page.keyboard.press("4")
    assert "a difference of two runs has none" in page.locator(".message").inner_text()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command as the shell would, in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["normlens", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_the_folder_of_an_analysis_on_the_shell_is_a_run(tmp_path, shell, monkeypatch) -> None:
    """Its name may be any word; a text of that name would be analysed otherwise."""
    monkeypatch.chdir(tmp_path)
    assert shell("analyze", "A short text.", "--out", "results")[0] == 0
    code, out, _ = shell("view", "results", "--out", "page.html", "--json")
    assert code == 0 and json.loads(out)["sites"]["encoder"]["query"] == 6


def test_the_shell_writes_a_page_for_a_text_and_for_a_run(tmp_path, analysis, shell) -> None:
    run = analysis.save(tmp_path / "run.zarr")
    page = tmp_path / "page.html"
    code, out, _ = shell("view", str(run), "--out", str(page), "--json")
    report = json.loads(out)
    assert code == 0 and report["file"] == str(page) and report["bytes"] == page.stat().st_size
    data = re.search(r'id="normlens-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert json.loads(data[1]) == json.loads(json.dumps(analysis_page(analysis)))
    code, out, _ = shell("view", "A short text.", "--out", str(page), "--overwrite", "--span", "1:4")
    assert code == 0 and out.startswith(f"wrote {page}")
    assert '"total":6' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["view", "x", "--span", "4"], "a span must be START:STOP"),
        (["view", "x", "--out", "/nowhere/at/all.html"], "existing folder"),
        (["view", "x", "--out", "{foreign}"], "exists; choose another path"),
        (["view", "{run}", "--target", "y"], "is a saved run"),
    ],
)
def test_a_mistake_on_the_shell_is_one_sentence_and_exit_code_2(tmp_path, analysis, shell, arguments, message) -> None:
    foreign = tmp_path / "notes.html"
    foreign.write_text("my notes")
    run = analysis.save(tmp_path / "run.zarr")
    code, _, err = shell(*[argument.format(foreign=foreign, run=run) for argument in arguments])
    assert code == 2 and message in err and err.count("\n") == 1
    assert foreign.read_text() == "my notes"


def test_a_span_beyond_the_text_is_refused(analysis) -> None:
    with pytest.raises(InputError, match="positions, got 90 to 95"):
        analysis_page(analysis, span=(90, 95))


@pytest.mark.real
@pytest.mark.browser
def test_translation_shows_all_three_sites(opened) -> None:
    analysis = real("opus-mt-fr-en").analyze("Le chat dort sur la chaise.", target="The cat sleeps on the chair.")
    for kind in ("encoder", "decoder", "cross"):
        page = opened(analysis_page(analysis), f"site={kind}&layer=4")
        check_page(page, analysis.site(kind).dataset, 4)
    page = opened(analysis_page(analysis), "site=cross&view=alignment&by=layer&layer=4&b=attn_n")
    best = analysis.site("cross")["attn_n"].sel(layer=4).values.argmax(axis=1)
    got = page.locator("rect.mark").evaluate_all("l => l.map(e => +e.dataset.column)")
    assert got == best.tolist()


@pytest.mark.real
@pytest.mark.browser
def test_a_language_model_shows_readable_text_and_an_empty_future(opened) -> None:
    analysis = real("smollm2", gguf_file="model.gguf").analyze("The café near 東京 is closed.")
    page = opened(analysis_page(analysis), "draw=matrix&layer=30&own=shown")
    check_page(page, analysis.site("decoder").dataset, 30)
    labels = page.locator("[data-measure=attn_w] .row-label").evaluate_all("l => l.map(e => e.firstChild.textContent)")
    assert "near" in labels and not any("Ġ" in label for label in labels)
    n = analysis.site("decoder").dataset.sizes["query"]
    assert page.locator("[data-measure=attn_w] rect.cell").count() == n * (n + 1) // 2
