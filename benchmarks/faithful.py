"""Which explanation to believe, on three real models: the tables of docs/faithfulness.md.

`python -m benchmarks.faithful MODELS EVIDENCE [OUT]`: a folder with `smollm2`, `bert-base-ner`, `deberta`, one with evidence
files, and one for reports (default: faithful-tables). What OUT holds already is not measured again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import normlens
from normlens.attribution.methods import METHODS
from normlens.faithfulness.report import cell, write_report
from normlens.faithfulness.samples import Sample, read_evidence, read_texts
from normlens.faithfulness.studies import Study, study
from normlens.faithfulness.verdicts import ranking, verdict
from normlens.lens import Lens

PAGE = Path(__file__).parent.parent / "docs" / "faithfulness.md"
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Plan:
    """What is run on a model."""

    model: str
    protocols: tuple[str, ...]
    limit: int
    skip: int = 0
    texts: str | None = None  # a file of ours; without it, the evidence files
    left_out: tuple[str, ...] = ()

    def samples(self, lens: Lens, evidence: Path) -> list[Sample]:
        """The items: those that no choice was made by."""
        if self.texts is not None:
            return [read_texts(lens, DATA / self.texts, limit=self.limit, skip=self.skip)]
        return [read_evidence(lens, path, limit=self.limit, skip=self.skip) for path in sorted(evidence.glob("*.csv"))]


PLANS = (
    Plan("smollm2", ("evidence",), 16, 40, left_out=("smoothgrad",)),
    Plan("deberta", ("deletion", "agreement"), 24, texts="prompts.txt"),
    Plan("bert-base-ner", ("deletion", "agreement"), 12, texts="names.txt", left_out=("smoothgrad",)),
)


def table(found: Study) -> str:
    """Markdown: a row for each method, best in bold, then the verdict and the signature."""
    head = ["method", *(column.title for column in found.columns)]
    best = {c.name: ranking(found, c)[0] if c.better != "neither" else None for c in found.columns}
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for method in found.methods:
        cells = []
        for column in found.columns:
            given = cell(found, method.name, column.name)
            text = "" if given is None else f"{given.mean:.3f} ({given.low:.2f} to {given.high:.2f})"
            cells.append(f"**{text}**" if method.name == best[column.name] else text)
        lines.append(f"| `{method.name}` | {' | '.join(cells)} |")
    items = "; ".join(_counted(sample) for sample in found.samples)
    return "\n".join(
        [*lines, "", f"Items: {items}.", "", *(f"- {s}" for s in verdict(found)), "", f"`{found.signature}`"]
    )


def by_file(found: Study) -> str:
    """Markdown: the mean reciprocal rank in each file of evidence."""
    frame = found.to_frame()
    wide = frame[frame["column"] == "evidence"].pivot(index="method", columns="sample", values="mean")
    names = [sample.name for sample in found.samples]
    rows = [f"| `{m.name}` | {' | '.join(f'{wide.loc[m.name, name]:.2f}' for name in names)} |" for m in found.methods]
    return "\n".join([f"| method | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}", *rows])


def _counted(sample: Sample) -> str:
    prefers = "" if sample.prefers is None else f", right word preferred in {sample.prefers:.0%}"
    refused = "".join(f", {count} refused ({why})" for why, count in sample.refused.items())
    return f"{sample.name} {len(sample.items)}{prefers}{refused}"


def main(arguments: Sequence[str]) -> None:
    """Run what is not there yet, and put the tables into the page."""
    torch.set_num_threads(1)
    models, evidence = map(Path, arguments[:2])
    out = Path(arguments[2] if len(arguments) > 2 else "faithful-tables")
    text = PAGE.read_text(encoding="utf-8")
    for plan in PLANS:
        lens = normlens.load(models / plan.model)
        methods = [name for name in METHODS if name not in plan.left_out]
        folder = out / plan.model
        found = study(
            lens,
            plan.samples(lens, evidence),
            methods=methods,
            protocols=plan.protocols,
            folder=folder,
            progress=lambda label, done, total: print(f"{label} {done}/{total}", file=sys.stderr, flush=True),
        )
        write_report(found, folder)
        text = _put(text, plan.model, table(found))
        if "evidence" in plan.protocols:
            text = _put(text, f"{plan.model} by file", by_file(found))
        PAGE.write_text(text, encoding="utf-8")
        print(f"{plan.model}: {folder / 'report.html'}")


def _put(text: str, name: str, block: str) -> str:
    """The text with a block between its two marks."""
    marks = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    return marks.sub(lambda found: f"{found[1]}{block}\n{found[2]}", text)


if __name__ == "__main__":
    main(sys.argv[1:])
