"""The report: one HTML file that opens offline, findings first, then tables and figures."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template

from normlens.experiments.outcome import Outcome, Picture, formatted
from normlens.experiments.published import document, papers_model
from normlens.provenance import references


def page(outcome: Outcome, figures: Path) -> str:
    """The whole page; pictures are taken from the folder `figures`, where they have been written."""
    about = document()["experiments"][outcome.experiment]

    def image(picture: Picture) -> str:
        return base64.b64encode((figures / f"{picture.name}.png").read_bytes()).decode()

    return template("report.html.jinja").render(
        outcome=outcome,
        command=f"normlens {about['command']}",
        papers_model=papers_model(outcome.experiment),
        own_experiment=about["own"],
        reference=references([about["paper"]]),
        image=image,
    )


@cache
def template(name: str, package: str = "normlens.experiments") -> Template:
    """A template of a package's own, which may include those of the experiments, such as their style sheet."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "data"), PackageLoader("normlens.experiments", "data")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["formatted"] = formatted
    return environment.get_template(name)
