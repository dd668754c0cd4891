"""The report of a study: one HTML file that opens offline, with the picture, the tables and the signature."""

from __future__ import annotations

import base64
from pathlib import Path

from matplotlib.figure import Figure

from normlens.experiments.outcome import REPORT, RESULTS
from normlens.experiments.report import template
from normlens.faithfulness.published_scores import beside, recipe
from normlens.faithfulness.studies import Study
from normlens.faithfulness.verdicts import OURS, ranking, verdict
from normlens.io.writing import writable_folder, write_json, write_table, write_text
from normlens.plots import save_figure
from normlens.plots.estimates import Panel, plot_estimates

PICTURE, TABLE = "methods", "table.csv"
#: Every file of a report.
FILES = (RESULTS, REPORT, f"{PICTURE}.png", f"{PICTURE}.svg", TABLE)


def write_report(study: Study, folder: Path) -> Path:
    """Report, picture, table and results into a folder; the report's path."""
    writable_folder(folder)
    write_json(folder / RESULTS, study.to_dict())  # first: by it the same command knows the folder for its own
    save_figure(picture(study), folder / PICTURE)
    write_table(folder / TABLE, study.to_frame())
    return write_text(folder / REPORT, page(study, (folder / f"{PICTURE}.png").read_bytes()))


def picture(study: Study) -> Figure:
    """One picture: every method by every column, with intervals; the dashed line is what chance has."""
    panels = []
    for column in study.columns:
        cells = {method.name: study.cell(method.name, column.name) for method in study.methods}
        note = {"high": "more is better", "low": "less is better", "neither": ""}[column.better]
        panels.append(Panel(column.title, note, {m: (c.mean, c.low, c.high) for m, c in cells.items() if c}))
    rows = {method.name: method.title for method in study.methods}
    return plot_estimates(panels, rows, marked=[OURS], floor="random", provenance=study.signature.replace("|", " · "))


def page(study: Study, image: bytes) -> str:
    """The whole page."""
    return template("faithful.html.jinja", "normlens.faithfulness").render(
        study=study,
        verdict=verdict(study),
        cell=study.cell,
        best=lambda column: ranking(study, column)[:1] if column.better != "neither" else [],
        known=lambda method, column: beside(study, method, column),
        recipe=recipe(),
        image=base64.b64encode(image).decode(),
    )
