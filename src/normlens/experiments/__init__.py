"""The papers' experiments by name: each `run`s a study of one model and gives an `Outcome`.

`kobayashi2020_bert` and `kobayashi2021` take an `EncoderStudy`, `kobayashi2020_nmt` a `TranslationStudy`, `kobayashi2024` a
`LayerStudy`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from normlens.errors import InputError


@dataclass(frozen=True)
class Experiment:
    """The module of an experiment, and its subject: an encoder, one stack of layers, or a translation model."""

    module: str
    kind: Literal["encoder", "layers", "translation"]

    def load(self) -> ModuleType:
        """The experiment's module, imported when it is asked for; its `run` takes the study."""
        return importlib.import_module(f"normlens.experiments.{self.module}")


#: The only place that lists them.
EXPERIMENTS = {
    "kobayashi2020-bert": Experiment("kobayashi2020_bert", "encoder"),
    "kobayashi2020-nmt": Experiment("kobayashi2020_nmt", "translation"),
    "kobayashi2021": Experiment("kobayashi2021", "encoder"),
    "kobayashi2024": Experiment("kobayashi2024", "layers"),
}


def find_experiment(name: str) -> Experiment:
    """An experiment by its name."""
    if name not in EXPERIMENTS:
        raise InputError(f"an experiment must be one of {', '.join(EXPERIMENTS)}, got {name!r}")
    return EXPERIMENTS[name]
