"""Write docs/reproduction.md: every number of both papers, with the authors' run and what was measured here.

    python docs/build_reproduction.py [RESULTS.json …]

Published numbers come from the package's own file. `results.json` files of `normlens reproduce` add measured ones, which are
kept in docs/reproduction.json, so that the page can be built again without them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from normlens.experiments.published import document
from normlens.measures.table import MEASURES

PAGE = Path(__file__).parent / "reproduction.md"
KEPT = Path(__file__).parent / "reproduction.json"

#: A table of the published file, as the report of an experiment calls it, and its columns where they differ.
TABLES: dict[tuple[str, str], tuple[str, dict[str, str]]] = {
    ("kobayashi2020-bert", "dispersion_f"): ("table-1", {}),
    ("kobayashi2020-bert", "dispersion_x"): ("table-4", {}),
    ("kobayashi2020-bert", "rho_alpha_f"): ("table-2", {}),
    ("kobayashi2020-bert", "rho_rank"): ("section-4-3", {"rho": "paper"}),
    ("kobayashi2021", "mixing"): ("mixing", {}),
    ("kobayashi2021", "rho_rank"): ("table-3", {}),
    ("kobayashi2021", "mixing_by_layer"): ("figure-03", {}),
    ("kobayashi2021", "expansion"): ("expansion", {"rate": "code"}),
}

SECTIONS = {
    ("kobayashi2020-bert", "dispersion_f"): ("Table 1: how much ‖f(x)‖ varies within a head", "The head with the largest and the smallest coefficient of variation, and the average over all heads."),
    ("kobayashi2020-bert", "dispersion_x"): ("Table 4: how much ‖x‖ varies within a layer", ""),
    ("kobayashi2020-bert", "rho_alpha_f"): ("Table 2: Spearman's ρ between α and ‖f(x)‖", "Over all (query, key, head, layer) pairs of a category."),
    ("kobayashi2020-bert", "rho_rank"): ("Section 4.3: ρ with the frequency rank", "Ranks by the paper's words (`--definition paper`)."),
    ("kobayashi2020-nmt", "aer_by_layer"): ("Section 5: AER by layer, %", "AWI: the row whose input is the word; AWO: the row that puts it out. Mean of 5 seeds."),
    ("kobayashi2020-nmt", "norms_and_errors"): ("Section 5: heads with large norms", "AER of the head with the highest mean norm, %, and ρ between a head's AER and its mean norm."),
    ("kobayashi2020-nmt", "aligners"): ("Table 3 (v1): AER of methods, %", "fast_align and GIZA++ here: the published outputs for the same 508 pairs, scored by `normlens aer`; this checks the scorer, and needs no model."),
    ("kobayashi2021", "mixing"): ("Mixing ratio, %", "Mean, maximum and minimum over positions and layers; 12 % of the input masked."),
    ("kobayashi2021", "mixing_by_layer"): ("Figure 3: mean mixing ratio of ATTNRESLN-N by layer, %", ""),
    ("kobayashi2021", "rho_rank"): ("Table 3: ρ of frequency rank and mixing ratio", "Over all tokens, and without [CLS] and [SEP]. Input not masked."),
    ("kobayashi2021", "expansion"): ("Section 4.4: expansion rate of f", "From the weights alone; `code` definition."),
}  # fmt: skip

PAPERS = {
    "kobayashi2020-bert": "Kobayashi et al. 2020: BERT",
    "kobayashi2020-nmt": "Kobayashi et al. 2020: translation",
    "kobayashi2021": "Kobayashi et al. 2021",
}
ROWS = {
    "largest_cv": "largest CV", "smallest_cv": "smallest CV", "cls": "[CLS]", "sep": "[SEP]", "comma_period": "comma and period",
    "other": "others", "all": "all", "mask": "[MASK]", "normal": "other tokens", "f_norm": "‖f(x)‖", "alpha": "α",
    **{name: measure.title for name, measure in MEASURES.items() if measure.is_map},
}  # fmt: skip
HUB = {
    "bert-base": "bert-base-uncased", "bert-large": "bert-large-uncased", "bert-medium": "google/bert_uncased_L-8_H-512_A-8",
    "bert-small": "google/bert_uncased_L-4_H-512_A-8", "bert-mini": "google/bert_uncased_L-4_H-256_A-4",
    "bert-tiny": "google/bert_uncased_L-2_H-128_A-2", "roberta-base": "roberta-base", "roberta-large": "roberta-large",
}  # fmt: skip


def command(experiment: str, model: str, table: str) -> str:
    """What measures this on the hub's model and the papers' data."""
    if experiment == "kobayashi2020-nmt":
        if table == "aligners":
            return "normlens aer --gold alignment.talp --gold-one-based fastalign.talp"
        return f"normlens reproduce {experiment} --model MODEL --source test.de --target test.en --gold alignment.talp --gold-one-based"
    frequency = " --frequency bert_frequency_rank.txt" if table == "rho_rank" else ""
    data = "" if table == "expansion" else " --data clark2019.jsonl"
    return f"normlens reproduce {experiment} --model {HUB[model]}{data}{frequency}"


def measured_of(path: Path) -> dict[str, Any]:
    """What a report measured, by the published file's names; without anything that tells of the machine."""
    found = json.loads(path.read_text(encoding="utf-8"))
    tables: dict[str, Any] = {}
    for (experiment, table), (name, columns) in TABLES.items():
        if experiment != found["experiment"] or name not in found["tables"]:
            continue
        back = {theirs: ours for ours, theirs in columns.items()}
        for number in found["tables"][name]["numbers"]:
            column = back.get(number["column"], number["column"])
            tables.setdefault(table, {}).setdefault(number["row"], {})[column] = round(float(number["measured"]), 6)
    about = {"model": found["model"]["name"].rsplit("/", 1)[-1], "data": found["data"], "sequences": found["sequences"]}
    return {found["experiment"]: {**about, "own": found["papers_own"], "versions": found["versions"], "tables": tables}}


def _number(value: float | None, decimals: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{decimals}f}".replace("-", "−")


def _line(title: str, columns: list[str], values: dict[str, tuple[float, int]]) -> str:
    cells = [_number(*values[column]) if column in values else "" for column in columns]
    return f"| {title} | " + " | ".join(cells) + " |"


def page(kept: dict[str, Any]) -> str:
    """The page as it should be."""
    published = document()
    lines = HEAD.strip().splitlines()
    for experiment, title in PAPERS.items():
        lines += ["", f"## {title}", ""]
        here = kept.get(experiment)
        if here and "model" in here:
            lines += [
                f"*Here*: {here['model']}, another model than any of the paper's, on the {here['data']} ({here['sequences']} sequences), "
                f"normlens {here['versions']['normlens']}. It shows that the measurement runs and which findings carry over, nothing more.",
                "",
            ]
        for (of, table), (heading, note) in SECTIONS.items():
            if of != experiment:
                continue
            blocks = [block for block in published["blocks"] if (block["experiment"], block["table"]) == (of, table)]
            lines += [f"### {heading}", "", *([note, ""] if note else [])]
            for model in dict.fromkeys(block["model"] for block in blocks):
                lines += _table(
                    [block for block in blocks if block["model"] == model], experiment, table, model, here, published
                )
        if experiment == "kobayashi2021":
            lines += _beside(published["beside"])
    return "\n".join(lines).rstrip() + "\n"


def _table(blocks: list[Any], experiment: str, table: str, model: str, here: Any, published: Any) -> list[str]:
    columns = list(dict.fromkeys(column for block in blocks for column in block["columns"]))
    rows: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}
    for block in blocks:
        source = published["short"][block["source"]]
        for row, values in block["rows"].items():
            cells = {c: (v, block["decimals"]) for c, v in zip(block["columns"], values, strict=True) if v is not None}
            rows.setdefault((row, source), {}).update(cells)
    mine = here["tables"].get(table, {}) if here and model == published["experiments"][experiment]["model"] else {}
    if experiment == "kobayashi2020-nmt" and table == "aligners":
        mine = (here or {}).get("tables", {}).get(table, {})
    decimals = {column: block["decimals"] for block in blocks for column in block["columns"]}
    if table == "aligners":
        decimals |= {"aer": 2}  # what the paper printed with one decimal
    titles = published["models"][model]["title"]
    lines = [f"**{titles}** · `{command(experiment, model, table)}`", ""]
    lines += [
        "| | " + " | ".join(ROWS.get(column, column) for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in dict.fromkeys(row for row, _ in rows):
        name = ROWS.get(row, row)
        for (this, source), cells in rows.items():
            if this == row:
                lines.append(_line(f"{name}, {source}", columns, cells))
        got = {column: (value, decimals[column]) for column, value in mine.get(row, {}).items() if column in decimals}
        if got:
            lines.append(_line(f"*{name}, here*", columns, got))
    return [*lines, ""]


def _beside(beside: list[Any]) -> list[str]:
    lines = ["### Other data and seeds: mean mixing ratio, %", "", "`normlens reproduce kobayashi2021 --model bert-base-uncased --data FILE --single`, one sentence (or pair) per line; MultiBERTs: `google/multiberts-seed_0` to `_24`.", ""]  # fmt: skip
    names = list(beside[0]["mean"])
    lines += ["| | " + " | ".join(MEASURES[name].title for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    for block in beside:
        lines.append(
            f"| {block['what'].split(':')[0]}, paper | "
            + " | ".join(f"{block['mean'][name]:.1f}" for name in names)
            + " |"
        )
        if "sd" in block:
            lines.append(
                "| standard deviation over seeds | " + " | ".join(f"{block['sd'][name]:.1f}" for name in names) + " |"
            )
    return [*lines, ""]


HEAD = """
# Every number of both papers

Published, the authors' run where its output was released, and measured here where the model was available. Written by
`python docs/build_reproduction.py` from the package's own file of published numbers, which `normlens reproduce` uses too.

None of the papers' models was available where this page was made (no access to the hub; the translation models were never
released). So each table names the command that measures it, and *here* shows another model. With the hub, the command's report
sets every number beside the published one with a verdict, and writes `results.json`.

| data | what | where from |
|---|---|---|
| `clark2019.jsonl` | 992 Wikipedia sequences of at most 128 tokens | `unlabeled_attn.pkl`, released by Clark et al. 2019 with *What Does BERT Look At?*, converted by `examples/convert_clark2019.py` |
| `bert_frequency_rank.txt` | `rank count token_id` of BERT's training data | released with the 2020 paper; without it ranks are counted from the data |
| `test.de`, `test.en`, `alignment.talp` | 508 pairs with gold alignments | Vilar et al. 2006 (RWTH) |

What to expect with the papers' own model and data: mixing ratios, correlations and dispersions *equal* or *close* (within three
units of the last printed digit, or 2 %) to the authors' run; masks are drawn at random, so maxima and minima of masked input move
with the seed. The paper and the authors' code disagree on frequency ranks (2020) and on the expansion rate (2021): both are
measured, and `--definition` chooses which one the findings use. Expansion rates need no data and no seed: they must be equal.
Translation models must be trained (`examples/train_translation.py` has the paper's settings): expect the shape, norms below weights and
AWI best in early layers, and not the digits.
"""


def main() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for path in sys.argv[1:]:
        kept |= measured_of(Path(path))
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
