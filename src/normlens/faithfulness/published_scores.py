"""Published numbers of other methods, for the models and data that they are about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from normlens.types import JsonMapping

if TYPE_CHECKING:
    from normlens.faithfulness.studies import Study


@dataclass(frozen=True)
class Known:
    """One number as it was printed, and where."""

    value: float
    decimals: int
    paper: str
    place: str
    differs: str | None = None  # in what it is another quantity than the measured one

    def __str__(self) -> str:
        mark = "" if self.differs is None else "*"
        return f"{self.value:.{self.decimals}f}{mark}"


def beside(study: Study, method: str, column: str) -> tuple[Known, ...]:
    """The published numbers of one cell: none unless model, data and the way of taking tokens away are the paper's own."""
    model, data = model_of(str(study.record["model"]["name"])), data_of(study)
    removal = study.record["settings"].get("removal")
    known = []
    for block in _document()["blocks"]:
        if (block["model"], block["data"], block["removal"]) != (model, data, removal):
            continue
        value = block["numbers"].get(column, {}).get(method)
        if value is not None:
            differs = block["differs"].get(method)
            known.append(Known(float(value), block["decimals"], block["paper"], block["place"], differs))
    return tuple(known)


def model_of(name: str) -> str | None:
    """The papers' model that this name says: every part of the longest match stands in it.

    >>> model_of("textattack/roberta-base-SST-2"), model_of("bert-base-NER")
    ('roberta-base-sst2', None)
    """
    own = name.lower()
    fitting = [key for key, parts in _document()["models"].items() if all(part in own for part in parts)]
    return max(fitting, key=len, default=None)


def data_of(study: Study) -> str | None:
    """The papers' data that this is: one sample, from a file with that many texts."""
    if len(study.samples) != 1:
        return None
    asked = len(study.samples[0].items) + sum(study.samples[0].refused.values())
    return next((key for key, known in _document()["data"].items() if known["texts"] == asked), None)


def recipe() -> str:
    """The checkpoint and file of the papers' own experiment."""
    return str(_document()["recipe"])


@cache
def _document() -> JsonMapping:
    text = (files("normlens.faithfulness") / "data" / "published.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
