"""What a run leaves behind: one page that needs nothing else, every figure twice, every table, every number."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from normlens.cli.commands.reproduce import print_table
from normlens.cli.main import build
from normlens.errors import InputError
from normlens.experiments import EXPERIMENTS, claims, comparison, find_experiment, kobayashi2020_bert, kobayashi2021
from normlens.experiments.encoder_study import EncoderStudy
from normlens.experiments.outcome import Number, Outcome, Table
from normlens.experiments.published import Published, PublishedNumbers
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
    assert words.index("claims hold") < words.index("Findings") < words.index("Tables") < words.index("Figures")
    for finding in outcome.findings:
        assert finding.claim in words and finding.measured in words


@pytest.mark.parametrize("which", ["2020", "2021"])
def test_numbers_are_the_same_everywhere(which: str, request: pytest.FixtureRequest) -> None:
    outcome: Outcome = request.getfixturevalue(f"outcome_{which}")
    folder: Path = request.getfixturevalue(f"written_{which}")
    results = json.loads((folder / "results.json").read_text())
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
    outcome_2020: Outcome, outcome_2021: Outcome, study_2020: EncoderStudy, study_2021: EncoderStudy
) -> None:
    assert {path.name for path in (study_2020.out / "passes").iterdir()} == {"unmasked"}
    assert {path.name for path in (study_2021.out / "passes").iterdir()} == {"masked", "unmasked"}


def test_a_finished_pass_is_not_run_again(
    study_2020: EncoderStudy, outcome_2020: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model ran again")

    monkeypatch.setattr(Lens, "run", refuse)
    again = kobayashi2020_bert.run(study_2020)
    assert again.to_dict() == outcome_2020.to_dict()


def test_definition_changes_what_findings_use(study_2020: EncoderStudy, outcome_2020: Outcome) -> None:
    other = kobayashi2020_bert.run(dataclasses.replace(study_2020, definition="paper"))
    ranks = {o.record["definition"]: o.findings[-1].values["rho"] for o in (outcome_2020, other)}
    table = outcome_2020.table("section-4-3")
    assert ranks == {name: table.value("alpha", name) for name in ("code", "paper")}
    assert ranks["code"] != ranks["paper"]


def test_published_columns_only_where_model_and_data_match(
    study_2021: EncoderStudy, outcome_2021: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(number.published for table in outcome_2021.tables for number in table.numbers)
    monkeypatch.setattr(PublishedNumbers, "matching", lambda name, *_: PublishedNumbers(name, "bert-tiny", "clark2019"))
    beside = kobayashi2021.run(study_2021)
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


def test_a_verdict_follows_the_number_that_is_printed(study_2020: EncoderStudy, outcome_2020: Outcome) -> None:
    """Rounded to the digits in its sentence, a number decides its own verdict."""
    tables = {table.name: table for table in outcome_2020.tables}
    for rho, text, verdict in ((-0.4996, "−0.500", "holds"), (-0.4994, "−0.499", "weaker"), (0.0004, "0.000", "fails")):
        numbers = tuple(
            dataclasses.replace(n, measured=rho) if (n.row, n.column) == ("sep", "rho") else n
            for n in tables["table-2"].numbers
        )
        changed = {**tables, "table-2": dataclasses.replace(tables["table-2"], numbers=numbers)}
        found = {f.name: f for f in kobayashi2020_bert.findings_of(study_2020, changed)}["rho_sep"]
        assert found.verdict == verdict and text in found.measured


def test_another_model_is_told_from_a_claim_that_fails(outcome_2020: Outcome) -> None:
    failing = dataclasses.replace(outcome_2020.findings[0], holds=False, tends=False)
    weaker = dataclasses.replace(failing, tends=True)
    other = dataclasses.replace(outcome_2020, findings=(failing, weaker), papers_own=False)
    own = dataclasses.replace(other, papers_own=True)
    assert [other.verdict_of(f) for f in other.findings] == ["not in this model", "weaker here"]
    assert own.verdict_of(failing) == "not reproduced"
    assert other.findings_line == "0 of 2 claims hold, 1 in a weaker form, 1 not in this model"


def test_what_a_model_is_called_is_text_and_not_markup(outcome_2021: Outcome, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    record = {**outcome_2021.record, "model": {**outcome_2021.record["model"], "name": name}}
    evil = dataclasses.replace(
        outcome_2021, record=record, ran_on=f"Model {name}.", pictures=(), notes=(f"{name} & 'co'",), facts={name: name}
    )
    text = evil.write(tmp_path).read_text(encoding="utf-8")
    assert "<script" not in text and text.count("&lt;script&gt;") == 5
    assert name in "".join(Page(text).words)


def test_comparison(tiny_lens: Lens, tiny_text: Path, tmp_path: Path, outcome_2021: Outcome) -> None:
    def study_of(model: str) -> EncoderStudy:
        return EncoderStudy(tiny_lens, tmp_path / model, (tiny_text,), max_length=24)

    outcome = comparison.compare(["one/tiny", "two/tiny"], lambda model: study_of(model.split("/")[0]))
    table = outcome.table("models")
    assert list(table.rows) == ["tiny (1)", "tiny (2)"]
    for name in ("attn_w", "attnresln_n"):
        assert table.value("tiny (1)", name) == pytest.approx(outcome_2021.table("mixing").value(name, "mean"))
    assert table.value("tiny (2)", "expansion") == pytest.approx(outcome_2021.table("expansion").value("mean", "code"))
    assert outcome.record["tokens"] == dict.fromkeys(table.rows, outcome_2021.record["tokens"])
    text = outcome.write(tmp_path / "out").read_text(encoding="utf-8")
    assert "normlens compare" in text and "Models tiny (1), tiny (2) on" in text


# ---- the shell ----------------------------------------------------------------------------------------------------


def test_every_experiment_has_a_run() -> None:
    for name in EXPERIMENTS:
        assert callable(find_experiment(name).load().run)
    with pytest.raises(InputError, match="kobayashi2021"):
        find_experiment("kobayashi2019")


def test_shell(tiny_lens: Lens, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normlens.cli.commands.reproduce.open_lens", lambda model: tiny_lens)
    # What is written is tested above, and drawing is what takes time.
    monkeypatch.setattr(Outcome, "write", lambda self, folder: folder / "report.html")
    arguments = ["reproduce", "kobayashi2021", "--data", str(tiny_text), "--max-length", "24", "--out", str(tmp_path)]
    shown = CliRunner().invoke(build(), arguments, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "claims hold" in shown.output and "[MASK]" in shown.output and "report.html" in shown.output
    again = CliRunner().invoke(build(), [*arguments, "--json"])
    assert json.loads(again.stdout)["experiment"] == "kobayashi2021"


def test_shell_refuses(tiny_lens: Lens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normlens.cli.commands.reproduce.open_lens", lambda model: tiny_lens)
    for arguments, words in (
        (["kobayashi2019"], "an experiment must be one of"),
        (["kobayashi2021", "--data", str(tmp_path / "none.txt")], "does not exist"),
        (["kobayashi2020-nmt"], "needs a model and gold alignments"),
    ):
        found = CliRunner().invoke(build(), ["reproduce", *arguments, "--out", str(tmp_path / "out")])
        assert isinstance(found.exception, InputError) and words in str(found.exception)
    wrong = CliRunner().invoke(build(), ["reproduce", "kobayashi2021", "--definition", "mine"])
    assert wrong.exit_code == 2 and "'mine' is not one of" in wrong.output


def test_a_claim_without_its_numbers_is_listed_as_not_judged() -> None:
    findings = claims.evaluate("kobayashi2024", ())
    assert len(findings) == len(claims.claims_of("kobayashi2024"))
    assert {finding.verdict for finding in findings} == {"unjudged"}
    assert all(finding.paper and not finding.values for finding in findings)


def test_the_first_lines_say_what_stands_in_for_what(outcome_2020) -> None:
    unjudged = dataclasses.replace(outcome_2020.findings[0], holds=None)
    other = dataclasses.replace(outcome_2020, findings=(unjudged,), papers_own=False)
    assert other.findings_line == "0 of 1 claims hold, 1 cannot be judged"
    assert other.verdict_of(unjudged) == "not judged"
    assert other.setting.startswith(other.ran_on) and "BERT-base on 992 Wikipedia sequences" in other.setting
    own = dataclasses.replace(outcome_2020, papers_own=True)
    assert own.setting.endswith("Model and data are the paper's own.")


def test_a_table_that_is_too_wide_keeps_every_digit() -> None:
    known = (Published(29.77, 2, "2020 run", "Table 3"), Published(-31.5, 2, "2020", "Table 3"))
    columns = {f"c{n}": f"a long heading {n}" for n in range(6)}
    numbers = tuple(Number("row", column, 12.345, 2, known) for column in columns)
    table = Table("wide", "A wide table", "Table 3", numbers, {"row": "the row"}, columns)
    screen = Console(width=80, record=True, file=io.StringIO())
    print_table(screen, table)
    text = screen.export_text()
    assert text.count("12.35") + text.count("12.34") == text.count("29.77") == text.count("−31.50") == 6
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
