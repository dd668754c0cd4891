"""The published numbers as data, and the rule for when a measured number may stand beside one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from normlens.types import JsonMapping

if TYPE_CHECKING:
    from normlens.experiments.encoder_study import EncoderStudy

#: How many sequences the corpus of Clark et al. 2019 has.
CLARK = 992

#: A difference of so many units of the last printed digit, or of this share of the number, still counts as close.
CLOSE_UNITS, CLOSE_SHARE = 3, 0.02


@dataclass(frozen=True)
class Published:
    """One number as it was printed, and where."""

    value: float
    decimals: int
    source: str  # a key of the document's sources
    place: str
    own: bool = True  # of the model and data at hand; else of the paper's, shown for its shape

    @property
    def short(self) -> str:
        """`paper` or `authors' run`."""
        return str(document()["short"][self.source])

    def verdict(self, measured: float) -> str:
        """`equal` to the printed digits, `close`, or `differs`; `another model` where the two cannot be compared."""
        if not self.own:
            return "another model"
        if f"{measured:.{self.decimals}f}" == f"{self.value:.{self.decimals}f}":
            return "equal"
        close = max(CLOSE_UNITS * 10.0**-self.decimals, CLOSE_SHARE * abs(self.value))
        return "close" if abs(measured - self.value) <= close else "differs"


class PublishedNumbers:
    """The published numbers of one experiment that may stand beside those of one model on one corpus.

    Without a model of the paper's there are none; without its data there are those that need no data.
    """

    def __init__(self, experiment: str, model: str | None = None, data: str | None = None, *, own: bool = True) -> None:
        self.model, self.data = model, data
        self._found: dict[tuple[str, str, str], list[Published]] = {}
        for block in document()["blocks"]:
            if block["experiment"] != experiment or block["model"] != model or block["data"] not in (data, "weights"):
                continue
            for row, values in block["rows"].items():
                for column, value in zip(block["columns"], values, strict=True):
                    if value is not None:
                        number = Published(float(value), block["decimals"], block["source"], block["place"], own)
                        self._found.setdefault((block["table"], row, column), []).append(number)
        #: Whether model and data are both the paper's, so that a claim that fails was not reproduced.
        self.own = own and model is not None and data is not None

    def __call__(self, table: str, row: str, column: str) -> tuple[Published, ...]:
        """Every published value of a number; the paper and the authors' run may give different ones."""
        return tuple(self._found.get((table, row, column), ()))

    @classmethod
    def matching(cls, experiment: str, study: EncoderStudy, record: JsonMapping) -> PublishedNumbers:
        """The numbers that belong to what was run."""
        model = model_key(record["model"]["name"], study.shape)
        return cls(experiment, model, data_key(study, record["sequences"]))

    def titles(self) -> tuple[str, ...]:
        """The models and data that these numbers belong to, in words."""
        if not self._found or self.model is None:
            return ()
        data = document()["data"][self.data or "weights"]
        return (f"{document()['models'][self.model]['title']}, {data}",)


@cache
def document() -> JsonMapping:
    """The file of published numbers."""
    text = (files("normlens.experiments") / "data" / "published.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def papers_model(experiment: str) -> str:
    """The model, or the models, on which the paper itself made the claims, in words."""
    known = document()["experiments"][experiment]
    return str(known.get("models") or document()["models"][known["model"]]["title"])


def papers_setting(experiment: str) -> str:
    """The models and data of the paper, in words."""
    data = document()["experiments"][experiment].get("data")
    return papers_model(experiment) if data is None else f"{papers_model(experiment)} on {document()['data'][data]}"


def published_text(experiment: str, table: str, row: str, column: str) -> str:
    """The published number for the paper's own model, for a sentence: `−0.69`."""
    model = document()["experiments"][experiment]["model"]
    for data in document()["data"]:
        if numbers := PublishedNumbers(experiment, model, data)(table, row, column):
            return " or ".join(f"{n.value:.{n.decimals}f}".replace("-", "−") for n in numbers)
    raise KeyError(f"nothing is published for {experiment}, {table}, {row}, {column}")


def model_key(name: str, shape: tuple[int, int, int]) -> str | None:
    """The paper's model that this is: the name must be one of its names, and layers, heads and width must agree."""
    last = name.rstrip("/").rsplit("/", 1)[-1]
    for key, model in document()["models"].items():
        if last in model["names"] and shape == (model["layers"], model["heads"], model["width"]):
            return str(key)
    return None


def data_key(study: EncoderStudy, sequences: int) -> str | None:
    """The papers' own corpus: all sequences of Clark et al., uncut."""
    whole = study.is_tokenized and sequences == CLARK and study.max_length >= 128
    return "clark2019" if whole else None
