"""The published numbers as data, and the rule for when a measured number may stand beside one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normlens.experiments.setup import Setup

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

    @property
    def short(self) -> str:
        """`paper` or `authors' run`."""
        return str(document()["short"][self.source])

    def verdict(self, measured: float) -> str:
        """`equal` to the printed digits, `close`, or `differs`."""
        gap = abs(measured - self.value)
        unit = 10.0**-self.decimals
        if gap <= unit / 2 + 1e-9:
            return "equal"
        return "close" if gap <= max(CLOSE_UNITS * unit, CLOSE_SHARE * abs(self.value)) else "differs"


class Shelf:
    """The published numbers of one experiment that hold for one model and corpus; empty where they match no paper's."""

    def __init__(self, experiment: str, model: str | None, data: str | None) -> None:
        self.model, self.data = model, data
        self._found: dict[tuple[str, str, str], list[Published]] = {}
        for block in document()["blocks"]:
            if block["experiment"] != experiment or block["model"] != model or block["data"] not in (data, "weights"):
                continue
            for row, values in block["rows"].items():
                for column, value in zip(block["columns"], values, strict=True):
                    if value is not None:
                        number = Published(float(value), block["decimals"], block["source"], block["place"])
                        self._found.setdefault((block["table"], row, column), []).append(number)

    def __call__(self, table: str, row: str, column: str) -> tuple[Published, ...]:
        """Every published value of a number; the paper and the authors' run may give different ones."""
        return tuple(self._found.get((table, row, column), ()))

    def __len__(self) -> int:
        return len(self._found)

    @classmethod
    def of(cls, experiment: str, setup: Setup, record: Mapping[str, Any]) -> Shelf:
        """The shelf for what was run."""
        model = model_key(record["model"]["name"], shape_of(setup))
        return cls(experiment, model, data_key(setup, record["sequences"]))

    def titles(self) -> tuple[str, ...]:
        """The models and data that the numbers on this shelf belong to, in words."""
        if not self._found or self.model is None:
            return ()
        data = document()["data"][self.data or "weights"]
        return (f"{document()['models'][self.model]['title']}, {data}",)


@cache
def document() -> Mapping[str, Any]:
    """The file of published numbers."""
    text = (files("normlens.experiments") / "data" / "published.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def reference(experiment: str, table: str, row: str, column: str, model: str = "bert-base") -> str:
    """What the paper printed for its own model, for a sentence: `−0.69`."""
    data = "weights" if table == "expansion" else "clark2019"
    numbers = Shelf(experiment, model, data)(table, row, column)
    if not numbers:
        raise KeyError(f"nothing is published for {experiment}, {table}, {row}, {column}")
    return " or ".join(f"{n.value:.{n.decimals}f}".replace("-", "−") for n in numbers)


def model_key(name: str, shape: tuple[int, int, int]) -> str | None:
    """The paper's model that this is: the name must be one of its names, and layers, heads and width must agree."""
    last = name.rstrip("/").rsplit("/", 1)[-1]
    for key, model in document()["models"].items():
        if last in model["names"] and shape == (model["layers"], model["heads"], model["width"]):
            return str(key)
    return None


def shape_of(setup: Setup) -> tuple[int, int, int]:
    """Layers, heads and width of a model."""
    sites = setup.lens.anatomy.sites
    return len(sites), sites[0].heads, int(sites[0].projection.matrix().shape[1])


def data_key(setup: Setup, sequences: int) -> str | None:
    """The papers' own corpus: the whole pickle of Clark et al., uncut."""
    whole = setup.from_pickle and sequences == CLARK and setup.max_length >= 128
    return "clark2019" if whole else None
