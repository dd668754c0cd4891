"""What a run leaves behind: one page that needs nothing else, every figure twice, every table, every number."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from normlens.cli.main import build
from normlens.errors import InputError
from normlens.experiments import comparison, kobayashi2020_bert, kobayashi2021
from normlens.experiments.outcome import Number, Outcome, read_results
from normlens.experiments.published import Published, Shelf
from normlens.experiments.registry import EXPERIMENTS, experiment
from normlens.experiments.setup import Setup
from normlens.lens import Lens

FIGURES_2020 = {"figure-03", "figure-04-sep", "figure-05", "figure-06", "figure-09", "figure-10-cls",
                "figure-11-comma_period", "figure-12-other"}  # fmt: skip
FIGURES_2021 = {"figure-01", "figure-03", "figure-03-methods", "figure-04", "expansion"}


class Page(HTMLParser):
    """Addresses and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        assert tag not in ("script", "link", "iframe")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("which", ["2020", "2021"])
def test_files(which: str, request: pytest.FixtureRequest) -> None:
    outcome: Outcome = request.getfixturevalue(f"outcome_{which}")
    report = request.getfixturevalue(f"written_{which}") / "report.html"
    folder = report.parent
    figures = FIGURES_2020 if which == "2020" else FIGURES_2021
    assert {path.stem for path in (folder / "figures").glob("*.png")} == figures
    assert {path.stem for path in (folder / "figures").glob("*.svg")} == figures
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.addresses) == len(figures), "one picture each, and nothing else is fetched"
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not re.search(r"url\(|@import", text)
    words = " ".join(page.words)
    # The findings stand before the first table and the first figure.
    assert words.index("Findings: ") < words.index("Tables") < words.index("Figures")
    for finding in outcome.findings:
        assert finding.claim in words and finding.measured in words


@pytest.mark.parametrize("which", ["2020", "2021"])
def test_numbers_are_the_same_everywhere(which: str, request: pytest.FixtureRequest) -> None:
    outcome: Outcome = request.getfixturevalue(f"outcome_{which}")
    folder: Path = request.getfixturevalue(f"written_{which}")
    results = read_results(folder)
    assert {finding["name"]: finding["holds"] for finding in results["findings"]} == {
        finding.name: finding.holds for finding in outcome.findings
    }
    for table in outcome.tables:
        frame = pd.read_csv(folder / "tables" / f"{table.name}.csv").set_index("row")
        listed = {(n["row"], n["column"]): n["measured"] for n in results["tables"][table.name]["numbers"]}
        assert listed, f"{table.name} is empty"
        for (row, column), measured in listed.items():
            assert frame.loc[table.rows[row], table.columns[column]] == pytest.approx(measured, rel=1e-12)


def test_one_pass_per_condition(
    outcome_2020: Outcome, outcome_2021: Outcome, setup_2020: Setup, setup_2021: Setup
) -> None:
    assert {path.name for path in (setup_2020.out / "passes").iterdir()} == {"unmasked"}
    assert {path.name for path in (setup_2021.out / "passes").iterdir()} == {"masked", "unmasked"}


def test_a_finished_pass_is_not_run_again(
    setup_2020: Setup, outcome_2020: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model ran again")

    monkeypatch.setattr(Lens, "run", refuse)
    again = kobayashi2020_bert.run(setup_2020)
    assert again.to_dict() == outcome_2020.to_dict()


def test_definition_changes_what_findings_use(setup_2020: Setup, outcome_2020: Outcome) -> None:
    other = kobayashi2020_bert.run(dataclasses.replace(setup_2020, definition="paper"))
    ranks = {o.record["definition"]: o.findings[-1].values["rho"] for o in (outcome_2020, other)}
    table = outcome_2020.table("section-4-3")
    assert ranks == {name: table.value("alpha", name) for name in ("code", "paper")}
    assert ranks["code"] != ranks["paper"]


def test_published_columns_only_where_model_and_data_match(
    setup_2021: Setup, outcome_2021: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(number.published for table in outcome_2021.tables for number in table.numbers)
    monkeypatch.setattr(Shelf, "of", lambda name, *_: Shelf(name, "bert-tiny", "clark2019"))
    beside = kobayashi2021.run(setup_2021)
    known = beside.table("mixing").at("attn_w", "mean")
    assert known is not None and [(p.value, p.source) for p in known.published] == [(94.1, "2021")]
    entry = known.to_dict()["published"][0]
    assert entry["difference"] == pytest.approx(known.measured - 94.1) and entry["verdict"] in ("close", "differs")
    assert beside.table("expansion").at("layer 1", "paper").published == ()  # type: ignore[union-attr]
    assert [p.value for p in beside.table("expansion").at("layer 1", "code").published] == [1.626]  # type: ignore[union-attr]
    text = beside.write(tmp_path).read_text(encoding="utf-8")
    assert "paper 94.1" in text and "BERT-tiny" in text
    assert "mean [paper]" in (tmp_path / "tables" / "mixing.csv").read_text()


def test_verdicts() -> None:
    known = Published(0.75, 2, "2020", "Section 4.3")
    assert [known.verdict(value) for value in (0.754, 0.746, 0.77, 0.80)] == ["equal", "equal", "close", "differs"]
    assert Number("a", "b", -0.001, 2).text() == "0.00"
    assert Number("a", "b", -1234.5, 1).text() == "−1,234.5"


def test_comparison(tiny_lens: Lens, tiny_text: Path, tmp_path: Path, outcome_2021: Outcome) -> None:
    def setup_of(model: str) -> Setup:
        return Setup(tiny_lens, tmp_path / model, (tiny_text,), max_length=24)

    outcome = comparison.compare(["one/tiny", "two/tiny"], lambda model: setup_of(model.split("/")[0]))
    table = outcome.table("models")
    assert list(table.rows) == ["tiny (1)", "tiny (2)"]
    for name in ("attn_w", "attnresln_n"):
        assert table.value("tiny (1)", name) == pytest.approx(outcome_2021.table("mixing").value(name, "mean"))
    assert table.value("tiny (2)", "expansion") == pytest.approx(outcome_2021.table("expansion").value("mean", "code"))
    assert outcome.write(tmp_path / "out").exists()


# ---- the shell ----------------------------------------------------------------------------------------------------


def test_every_experiment_has_a_run() -> None:
    for name in EXPERIMENTS:
        assert callable(experiment(name).load().run)
    with pytest.raises(InputError, match="kobayashi2021"):
        experiment("kobayashi2019")


def test_shell(tiny_lens: Lens, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normlens.cli.reproduce.open_lens", lambda model: tiny_lens)
    # What is written is tested above, and drawing is what takes time.
    monkeypatch.setattr(Outcome, "write", lambda self, folder: folder / "report.html")
    arguments = ["reproduce", "kobayashi2021", "--data", str(tiny_text), "--max-length", "24", "--out", str(tmp_path)]
    shown = CliRunner().invoke(build(), arguments, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "claims hold" in shown.output and "[MASK]" in shown.output and "report.html" in shown.output
    again = CliRunner().invoke(build(), [*arguments, "--json"])
    assert json.loads(again.stdout)["experiment"] == "kobayashi2021"


def test_shell_refuses(tiny_lens: Lens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normlens.cli.reproduce.open_lens", lambda model: tiny_lens)
    for arguments, words in (
        (["kobayashi2019"], "an experiment is one of"),
        (["kobayashi2021", "--definition", "mine"], "paper or code"),
        (["kobayashi2021", "--data", str(tmp_path / "none.txt")], "files that exist"),
        (["kobayashi2020-nmt"], "needs a model and gold alignments"),
    ):
        found = CliRunner().invoke(build(), ["reproduce", *arguments, "--out", str(tmp_path / "out")])
        assert isinstance(found.exception, InputError) and words in str(found.exception)
