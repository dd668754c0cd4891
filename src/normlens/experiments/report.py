"""The report: one HTML file that opens offline, findings first, then tables and figures."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path

from normlens.experiments.outcome import Finding, Number, Outcome, Picture, Table, formatted, holding
from normlens.references import references


def page(outcome: Outcome, folder: Path) -> str:
    """The whole page; figures are taken from `folder/figures`, where they have been written."""
    parts = [
        _head(f"{outcome.experiment}: {outcome.model}"),
        f"<header><p class='kind'>normlens reproduce {escape(outcome.experiment)}</p>",
        f"<h1>{escape(outcome.title)}</h1>",
        f"<p class='run'>{_run_line(outcome)}</p></header>",
        f"<p class='summary'>{escape(outcome.summary)}</p>",
        _findings(outcome.findings),
        f"<p class='beside'>{_beside(outcome)}</p>",
        "<h2>Tables</h2>",
        *(_table(table) for table in outcome.tables),
        "<h2>Figures</h2>",
        *(_picture(picture, folder) for picture in outcome.pictures),
        "<h2>How it was measured</h2>",
        _method(outcome),
        f"<h2>The paper</h2><pre>{escape(references([outcome.paper]))}</pre>",
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _head(title: str) -> str:
    style = (files("normlens.experiments") / "data" / "report.css").read_text(encoding="utf-8")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
    )


def _run_line(outcome: Outcome) -> str:
    record = outcome.record
    masked = f", {record['masked_share']:.0%} masked for the ratios" if "masked_share" in record else ""
    return (
        f"Model <b>{escape(outcome.model)}</b> on <b>{escape(str(record['data']))}</b>: {record['sequences']:,} "
        f"sequences, {record['tokens']:,} tokens{masked}."
    )


def _findings(found: Iterable[Finding]) -> str:
    found = list(found)
    if not found:
        return ""
    rows = "".join(
        f"<tr class='{'yes' if f.holds else 'no'}'><td class='mark'>{'holds' if f.holds else 'does not hold'}</td>"
        f"<td><p class='claim'>{escape(f.claim)}</p><p>{escape(f.measured)}</p>"
        f"<p class='rule'>{escape(f.place)}; {escape(f.rule)}. In the paper, BERT-base: {escape(f.paper)}.</p></td>"
        "</tr>"
        for f in found
    )
    return f"<h2>Findings: {holding(found)} for this model</h2><table class='findings'>{rows}</table>"


def _beside(outcome: Outcome) -> str:
    if outcome.beside:
        return f"Published numbers stand beside the measured ones: {escape('; '.join(outcome.beside))}."
    return (
        "Published numbers stand beside measured ones only where model and data are the paper’s; here they are not. "
        "The paper’s own experiment is <code>--model bert-base-uncased --data unlabeled_attn.pkl</code>."
    )


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(title)}</th>" for title in table.columns.values())
    body = ""
    for row, title in table.rows.items():
        cells = "".join(f"<td>{_cell(table.at(row, column))}</td>" for column in table.columns)
        body += f"<tr><th>{escape(title)}</th>{cells}</tr>"
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    title = f"{escape(table.title)} <span>{escape(table.place)}</span>"
    whole = (
        f"<div class='wide'><table class='numbers'><thead><tr><th></th>{heads}</tr></thead><tbody>{body}</tbody>"
        f"</table></div>{note}<p class='file'>tables/{table.name}.csv</p>"
    )
    if table.folded:
        return f"<details id='table-{table.name}'><summary><h3>{title}</h3></summary>{whole}</details>"
    return f"<section id='table-{table.name}'><h3>{title}</h3>{whole}</section>"


def _cell(number: Number | None) -> str:
    if number is None:
        return ""
    known = "".join(
        f"<span class='known {p.verdict(number.measured)}' title='{escape(p.source)}, {escape(p.place)}'>"
        f"{escape(p.short)} {formatted(p.value, p.decimals)}</span>"
        for p in number.published
    )
    return f"{number.text()}{known}"


def _picture(picture: Picture, folder: Path) -> str:
    content = (folder / "figures" / f"{picture.name}.png").read_bytes()
    across = picture.figure.get_size_inches()[0]
    return (
        f"<figure><h3>{escape(picture.title)} <span>{escape(picture.place)}</span></h3>"
        f"<img alt='{escape(picture.title, quote=True)}' style='width:{across * 1.25:.2f}in' "
        f"src='data:image/png;base64,{base64.b64encode(content).decode()}'>"
        f"<figcaption>{escape(picture.caption)}</figcaption>"
        f"<p class='file'>figures/{picture.name}.png, figures/{picture.name}.svg</p></figure>"
    )


def _method(outcome: Outcome) -> str:
    record = outcome.record
    model = record["model"]
    facts = {
        "model": f"{model['name']} ({model['class']}, {model['dtype']}), weights {model['content']}",
        "data": ", ".join(f"{Path(item['path']).name} (sha256 {item['sha256'][:16]}…)" for item in record["inputs"]),
        "sequences": f"{record['sequences']:,}, at most {record['max_length']} tokens"
        + (", pairs of consecutive paragraphs" if record["paragraph_pairs"] else ""),
        "definition": record["definition"],
        "frequency ranks": record["frequency_ranks"],
        "seed": record["seed"],
        "proof": f"the parts rebuild what the model computed; worst relative error {record['worst_proof']:.1e}",
        "versions": ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
    }
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    notes = "".join(f"<li>{escape(note)}</li>" for note in outcome.notes)
    return f"<table class='facts'>{rows}</table><ul>{notes}</ul>"
