"""The outcome of an experiment: findings, tables of numbers, pictures; as plain data and as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from normlens.experiments.published import Published, papers_setting
from normlens.io.writing import writable_folder, write_json, write_table, write_text
from normlens.plots import save_figure
from normlens.types import Json, JsonMapping

RESULTS, REPORT, FIGURES, TABLES = "results.json", "report.html", "figures", "tables"


@dataclass(frozen=True)
class Number:
    """One measured number, beside what was published for the same model and data (often nothing)."""

    row: str
    column: str
    measured: float
    decimals: int = 2
    published: tuple[Published, ...] = ()
    bound: float = 0.0  # a certain bound on the error of the measured number, where it is not exact

    def text(self) -> str:
        """The measured number for people."""
        return formatted(self.measured, self.decimals)

    def to_dict(self) -> Json:
        """As JSON: one comparison per published value; where there is none, the verdict says so."""
        return {
            "row": self.row,
            "column": self.column,
            "measured": self.measured,
            **({"bound": self.bound} if self.bound else {}),
            "published": [
                {
                    "value": known.value,
                    "source": known.source,
                    "place": known.place,
                    "difference": self.measured - known.value,
                    "verdict": known.verdict(self.measured),
                }
                for known in self.published
            ],
            "verdict": "; ".join(f"{known.short}: {known.verdict(self.measured)}" for known in self.published)
            or "nothing published for this model and data",
        }


def formatted(value: float, decimals: int) -> str:
    """A number with a real minus sign; whole numbers with thin thousands."""
    if value != value:
        return "–"
    text = f"{value:,.{decimals}f}"
    return (text[1:] if float(text.replace(",", "")) == 0 and text.startswith("-") else text).replace("-", "−")


def _hash_of(item: Mapping[str, str]) -> str:
    """The start of the hash of a file, or of the records that were read of it."""
    if "sha256" in item:
        return f"sha256 {item['sha256'][:16]}"
    return f"sha256 of its records {item['records_sha256'][:16]}"


def facts_of(record: JsonMapping, more: Mapping[str, str]) -> dict[str, str]:
    """The settings of a measurement, for the end of a report: model and data, `more`, proof and versions."""
    model = record["model"]
    return {
        "model": f"{model['name']} ({model['class']}, {model['dtype']}), weights {model['content']}",
        "data": ", ".join(f"{Path(item['path']).name} ({_hash_of(item)}…)" for item in record["inputs"]),
        **more,
        "proof": f"the parts rebuild what the model computed; worst relative error {record['max_proof_error']:.1e}",
        "versions": ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
    }


def printed(value: float, decimals: int) -> float:
    """The number that people read: a claim is decided by it, so that its verdict cannot contradict its sentence.

    >>> printed(-0.4996, 3)
    -0.5
    """
    return float(f"{value:.{decimals}f}")


@dataclass(frozen=True)
class Table:
    """A table of the paper: rows and columns of numbers, and words beside the rows."""

    name: str  # of its file
    title: str
    place: str  # in the paper
    numbers: tuple[Number, ...]
    rows: Mapping[str, str]  # key -> how the row is called
    columns: Mapping[str, str]
    note: str = ""
    folded: bool = False  # the numbers behind a figure: there for those who open it

    def at(self, row: str, column: str) -> Number | None:
        """The number in a cell, where there is one."""
        return next((n for n in self.numbers if (n.row, n.column) == (row, column)), None)

    def value(self, row: str, column: str) -> float:
        """The measured number in a cell that exists."""
        found = self.at(row, column)
        if found is None:
            raise KeyError(f"{self.name} has no number in {row}, {column}")
        return found.measured

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of published numbers, in order."""
        return tuple(dict.fromkeys(known.short for number in self.numbers for known in number.published))

    def frame(self) -> pd.DataFrame:
        """A wide table, published columns beside measured ones where there are any."""
        records = []
        for row, title in self.rows.items():
            record: Json = {"row": title}
            for column, heading in self.columns.items():
                number = self.at(row, column)
                record[heading] = None if number is None else number.measured
                for source in self.sources:
                    known = [] if number is None else [p for p in number.published if p.short == source]
                    record[f"{heading} [{source}]"] = known[0].value if known else None
            records.append(record)
        frame = pd.DataFrame(records)
        empty = [name for name in frame.columns if name.endswith("]") and frame[name].isna().all()]
        return frame.drop(columns=empty)


@dataclass(frozen=True)
class Picture:
    """A figure of the paper, drawn."""

    name: str
    title: str
    place: str
    caption: str
    figure: Figure = field(repr=False)


#: A claim holds by its rule, points the paper's way without reaching it, fails, or was not measured in this run.
Verdict = Literal["holds", "weaker", "fails", "unjudged"]


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, evaluated on the model at hand, by the numbers as they are printed here."""

    name: str
    claim: str
    place: str
    holds: bool | None  # None: this run has not measured what the claim is about
    measured: str  # one plain sentence with its numbers
    rule: str  # when the claim counts as holding
    paper: str  # what the paper found on its own model
    values: Mapping[str, float]
    tends: bool | None = None  # whether the numbers point the paper's way at least; None: as `holds` says

    @property
    def verdict(self) -> Verdict:
        """`holds`, `weaker`, `fails` or `unjudged`."""
        if self.holds is None:
            return "unjudged"
        if self.holds:
            return "holds"
        return "weaker" if self.tends else "fails"

    def to_dict(self) -> Json:
        """As JSON."""
        return {
            "name": self.name, "claim": self.claim, "place": self.place, "holds": self.holds, "verdict": self.verdict,
            "rule": self.rule, "measured": self.measured, "paper": self.paper, "values": dict(self.values),
        }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Everything that one experiment found on one model and its text."""

    experiment: str
    title: str
    record: JsonMapping
    ran_on: str  # the model and the text, in a sentence
    summary: str  # what it comes to, in a sentence or two
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    facts: Mapping[str, str]  # how it was measured
    notes: tuple[str, ...]
    beside: tuple[str, ...] = ()  # models and data that the published numbers on show belong to
    papers_own: bool = False  # whether model and data are the paper's

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.record["model"]["name"])

    @property
    def findings_line(self) -> str:
        """The number of claims that hold, that do not, and that cannot be judged, in words."""
        counts = Counter(finding.verdict for finding in self.findings)
        parts = [f"{counts['holds']} of {len(self.findings)} claims hold"]
        if counts["weaker"]:
            parts.append(f"{counts['weaker']} in a weaker form")
        if counts["fails"]:
            parts.append(f"{counts['fails']} not" if self.papers_own else f"{counts['fails']} not in this model")
        if counts["unjudged"]:
            parts.append(f"{counts['unjudged']} cannot be judged")
        return ", ".join(parts)

    @property
    def setting(self) -> str:
        """The model and data of this run, and those of the paper where they are others."""
        if self.papers_own:
            return f"{self.ran_on} Model and data are the paper's own."
        return f"{self.ran_on} This stands in for the paper's own: {papers_setting(self.experiment)}."

    def verdict_of(self, finding: Finding) -> str:
        """A verdict in words: a claim that fails on the paper's own model fails; on another, the model is another."""
        fails = "not reproduced" if self.papers_own else "not in this model"
        words = {"holds": "holds", "weaker": "weaker here", "fails": fails, "unjudged": "not judged"}
        return words[finding.verdict]

    def table(self, name: str) -> Table:
        """A table by its name."""
        return next(table for table in self.tables if table.name == name)

    def to_dict(self) -> Json:
        """Everything as plain JSON values."""
        return {
            "experiment": self.experiment,
            **dict(self.record),
            "published_for": list(self.beside),
            "papers_own": self.papers_own,
            "summary": self.summary,
            "findings": [finding.to_dict() for finding in self.findings],
            "tables": {
                table.name: {
                    "title": table.title,
                    "place": table.place,
                    "numbers": [number.to_dict() for number in table.numbers],
                }
                for table in self.tables
            },
            "notes": list(self.notes),
        }

    def write(self, folder: Path) -> Path:
        """Results, figures, tables and report into a folder; the report's path.

        The results come first: by them the same command knows the folder for its own, should it be interrupted here.
        """
        from normlens.experiments.report import page

        write_json(folder / RESULTS, self.to_dict())
        writable_folder(folder / FIGURES)
        for picture in self.pictures:
            save_figure(picture.figure, folder / FIGURES / picture.name)
        for table in self.tables:
            write_table(folder / TABLES / f"{table.name}.csv", table.frame())
        return write_text(folder / REPORT, page(self, folder / FIGURES))
