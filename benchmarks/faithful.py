"""Which explanation to believe, on three real models: the tables of docs/faithfulness.md.

`python -m benchmarks.faithful MODELS EVIDENCE [OUT [MODEL ...]]`: a folder with `smollm2`, `bert-base-ner`, `deberta`, one
with evidence files, and one for reports (default: faithful-tables). What OUT holds already is not measured again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import normlens
from normlens.faithfulness.gradients import MOST_STEPS
from normlens.faithfulness.methods import METHODS, Method
from normlens.faithfulness.protocols import PROTOCOLS
from normlens.faithfulness.report import RESULTS, write_report
from normlens.faithfulness.samples import Sample, read_evidence, read_texts
from normlens.faithfulness.studies import study
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
    most_steps: int = MOST_STEPS  # of integrated gradients

    def methods(self) -> list[Method]:
        """The methods, integrated gradients with this plan's budget of steps."""
        methods = []
        for method in METHODS.values():
            if method.name.startswith("integrated_gradients") and self.most_steps != MOST_STEPS:
                method = replace(method, settings={**method.settings, "most": self.most_steps})
            if method.name not in self.left_out:
                methods.append(method)
        return methods

    def samples(self, lens: Lens, evidence: Path) -> list[Sample]:
        """The items: those that no choice was made by."""
        if self.texts is not None:
            return [read_texts(lens, DATA / self.texts, limit=self.limit, skip=self.skip)]
        return [read_evidence(lens, path, limit=self.limit, skip=self.skip) for path in sorted(evidence.glob("*.csv"))]


PLANS = (
    # In this model the first layer takes the word vectors themselves, so that methods at words and at states are the same.
    Plan(
        "smollm2",
        ("evidence",),
        40,
        40,
        left_out=("smoothgrad", "gradient_x_state", "integrated_gradients_state"),
        most_steps=30,
    ),
    Plan("deberta", ("deletion", "agreement"), 48, texts="prompts.txt", left_out=("smoothgrad",)),
    Plan("bert-base-ner", ("deletion", "agreement"), 46, texts="names.txt", left_out=("smoothgrad",)),
)


def measure(plan: Plan, models: Path, evidence: Path, folder: Path) -> None:
    """Run a plan, and leave its report and results in the folder."""
    lens = normlens.load(models / plan.model)
    found = study(
        lens,
        plan.samples(lens, evidence),
        methods=plan.methods(),
        protocols=plan.protocols,
        folder=folder,
        progress=lambda label, done, total: print(f"{label} {done}/{total}", file=sys.stderr, flush=True),
    )
    write_report(found, folder)


def table(results: Mapping[str, Any]) -> str:
    """Markdown: a row for each method, best in bold, then items, verdict and signature."""
    frame = pd.DataFrame(results["table"])
    whole = frame[frame["sample"] == "all"].set_index(["method", "column"])
    columns = [c for protocol in PROTOCOLS.values() for c in protocol.columns if c.name in set(frame["column"])]
    head = ["method", *(column.title for column in columns)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    best = {}
    for column in columns:
        means = whole.xs(column.name, level="column")["mean"]
        best[column.name] = {"high": means.idxmax, "low": means.idxmin, "neither": lambda: None}[column.better]()
    for method in [row["name"] for row in results["methods"]]:
        cells = []
        for column in columns:
            text = ""
            if (method, column.name) in whole.index:
                found = whole.loc[method, column.name]
                text = f"{found['mean']:.3f} ({found['low']:.2f} to {found['high']:.2f})"
            cells.append(f"**{text}**" if method == best[column.name] else text)
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    items = "; ".join(_counted(sample) for sample in results["samples"])
    said = (f"- {sentence}" for sentence in (*results["notes"], *results["verdict"]))
    return "\n".join([*lines, "", f"Items: {items}.", "", *said, "", f"`{results['signature']}`"])


def by_file(results: Mapping[str, Any]) -> str:
    """Markdown: the mean reciprocal rank in each file of evidence."""
    frame = pd.DataFrame(results["table"])
    wide = frame[frame["column"] == "evidence"].pivot(index="method", columns="sample", values="mean")
    names = [sample["name"] for sample in results["samples"]]
    methods = [row["name"] for row in results["methods"]]
    rows = [f"| `{m}` | {' | '.join(f'{wide.loc[m, name]:.2f}' for name in names)} |" for m in methods]
    return "\n".join([f"| method | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}", *rows])


def _counted(sample: Mapping[str, Any]) -> str:
    prefers = sample["model_prefers_right"]
    preferred = "" if prefers is None else f", right word preferred in {prefers:.0%}"
    refused = "".join(f", {count} refused ({why})" for why, count in sample["refused"].items())
    return f"{sample['name']} {sample['items']}{preferred}{refused}"


def main(arguments: Sequence[str]) -> None:
    """Run what is not there yet, and put the tables into the page."""
    torch.set_num_threads(1)
    models, evidence = map(Path, arguments[:2])
    out = Path(arguments[2] if len(arguments) > 2 else "faithful-tables")
    text = PAGE.read_text(encoding="utf-8")
    chosen = arguments[3:]
    for plan in PLANS:
        if chosen and plan.model not in chosen:
            continue
        folder = out / plan.model
        if not (folder / RESULTS).exists():
            measure(plan, models, evidence, folder)
        results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        text = put_block(text, plan.model, table(results))
        if "evidence" in plan.protocols:
            text = put_block(text, f"{plan.model} by file", by_file(results))
        PAGE.write_text(text, encoding="utf-8")
        print(f"{plan.model}: {folder / 'report.html'}")


def put_block(text: str, name: str, block: str) -> str:
    """Return the text with a block between its two marks."""
    marks = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    return marks.sub(lambda found: f"{found[1]}{block}\n{found[2]}", text)


if __name__ == "__main__":
    main(sys.argv[1:])
