"""The choice of layers that align: a criterion over unlabelled text, with no layer number and no threshold in it.

A decoder's row can be read in two ways: with the token it takes in (`awi`) or with the token it puts out (`awo`).
Both are guesses at the same thing, the source word of that token, and come from different rows. Where a layer's links
in one reading agree with *some other* layer's links in the other reading, both are likely right: two wrong guesses have
no reason to meet. For layers l and k let

    agreement(l, k) = F1 of the arg-max links of layer l read as `awi` and of layer k read as `awo`
    awi(l) = max over k ≠ l of agreement(l, k)        awo(l) = max over k ≠ l of agreement(k, l)

The layer itself is left out: its two readings are neighbouring rows of one map, which agree wherever the map moves
slowly, most of all in a model that has not learned to align yet.

A layer belongs to the reading in which it agrees more. `auto` takes all layers that belong to the asked-for reading,
`best` the one that agrees most. The choice is a function of the model and of the first pairs of the text: what other
runs did has no part in it. `SavedChoice` takes a choice from one text to another.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from jaxtyping import Float, Int

from normlens.errors import InputError
from normlens.io.reading import read_text
from normlens.io.writing import write_json
from normlens.options import Setting
from normlens.types import Json

#: Alignment with the decoder's input, or with its output (2020, Section 5).
SETTINGS: tuple[Setting, ...] = get_args(Setting)


@dataclass(frozen=True)
class Agreement:
    """Counts of links that the two readings share; counts of any split of the text add up."""

    layers: tuple[int, ...]
    shared: Int[np.ndarray, "awi_layer awo_layer"]
    awi_links: Int[np.ndarray, " layer"]
    awo_links: Int[np.ndarray, " layer"]
    pairs: int = 0
    words: int = 0

    @classmethod
    def empty(cls, layers: tuple[int, ...]) -> Agreement:
        """No text seen yet."""
        count = len(layers)
        return cls(layers, np.zeros((count, count), int), np.zeros(count, int), np.zeros(count, int))

    @classmethod
    def of(
        cls,
        layers: tuple[int, ...],
        awi: Float[np.ndarray, "layer row column_and_null"],
        awo: Float[np.ndarray, "layer row column_and_null"],
    ) -> Agreement:
        """Count one sentence pair from its maps in both readings (see `extraction` for what a map is)."""
        one, other = _choices(awi), _choices(awo)
        same = (one[:, None] == other[None]) & (one[:, None] >= 0)
        return cls(layers, same.sum(-1), (one >= 0).sum(-1), (other >= 0).sum(-1), 1, one.shape[-1])

    def __add__(self, other: Agreement) -> Agreement:
        if self.layers != other.layers:
            raise InputError(f"agreements of different layers cannot be added: {self.layers} and {other.layers}")
        return Agreement(
            self.layers,
            self.shared + other.shared,
            self.awi_links + other.awi_links,
            self.awo_links + other.awo_links,
            self.pairs + other.pairs,
            self.words + other.words,
        )

    @property
    def matrix(self) -> Float[np.ndarray, "awi_layer awo_layer"]:
        """`agreement(l, k)`."""
        if not self.words:
            raise InputError("no words have been seen to choose layers on; is the input empty?")
        links = self.awi_links[:, None] + self.awo_links[None]
        matrix: Float[np.ndarray, "awi_layer awo_layer"] = np.zeros(links.shape)
        np.divide(2.0 * self.shared, links, out=matrix, where=links > 0)
        return matrix

    def scores(self, setting: Setting) -> dict[int, float]:
        """Each layer's agreement in that reading."""
        if setting not in SETTINGS:
            raise InputError(f"setting must be one of {', '.join(SETTINGS)}, got {setting!r}")
        matrix = self.matrix
        if len(self.layers) > 1:
            np.fill_diagonal(matrix, 0.0)
        best = matrix.max(axis=1 if setting == "awi" else 0)
        return {layer: float(value) for layer, value in zip(self.layers, best, strict=True)}

    def best(self, setting: Setting) -> int:
        """The layer that agrees most in that reading; the lower one where two agree as much."""
        scores = self.scores(setting)
        return max(scores, key=lambda layer: (scores[layer], -layer))

    def auto(self, setting: Setting) -> tuple[int, ...]:
        """The layers that agree more in that reading than in the other; the best one if there is none."""
        mine = self.scores(setting)
        other = self.scores("awo" if setting == "awi" else "awi")
        return tuple(layer for layer in self.layers if mine[layer] > other[layer]) or (self.best(setting),)

    def to_dict(self) -> Json:
        """Everything as plain JSON values; `from_dict` reads it back."""
        return {
            "layers": list(self.layers),
            "shared": self.shared.tolist(),
            "awi_links": self.awi_links.tolist(),
            "awo_links": self.awo_links.tolist(),
            "pairs": self.pairs,
            "words": self.words,
        }

    @classmethod
    def from_dict(cls, values: Json) -> Agreement:
        """Read what `to_dict` wrote."""
        return cls(
            tuple(values["layers"]),
            np.array(values["shared"], int),
            np.array(values["awi_links"], int),
            np.array(values["awo_links"], int),
            int(values["pairs"]),
            int(values["words"]),
        )

    def is_sound(self) -> bool:
        """Return True if the counts fit each other, as those of a damaged cache do not."""
        count = len(self.layers)
        if not count or self.shared.shape != (count, count) or self.pairs < 0 or self.words < 1:
            return False
        one_each = self.awi_links.shape == self.awo_links.shape == (count,)
        return one_each and bool(min(self.shared.min(), self.awi_links.min(), self.awo_links.min()) >= 0)

    def table(self, setting: Setting) -> str:
        """The scores as a table for people, chosen layers marked."""
        awi, awo, chosen = self.scores("awi"), self.scores("awo"), self.auto(setting)
        rows = ["layer  awi    awo"]
        for layer in self.layers:
            mark = " *" if layer in chosen else ""
            rows.append(f"{layer:>5}  {awi[layer]:.3f}  {awo[layer]:.3f}{mark}")
        rows.append(f"agreement of the two readings on {self.pairs} pairs, {self.words} words; * chosen for {setting}")
        return "\n".join(rows)


def _choices(
    maps: Float[np.ndarray, "layer row column_and_null"],
) -> Int[np.ndarray, "layer row"]:
    """Each row's arg-max column, -1 where it has no link."""
    best = maps.argmax(axis=-1)
    top = maps.max(axis=-1)
    return np.where((best < maps.shape[-1] - 1) & (top > 0), best, -1)


# ---- remembered per model, measure and text -----------------------------------------------------------------------------


def recall_agreement(key: str) -> Agreement | None:
    """Counts of an earlier run; None where nothing was, or nothing readable."""
    try:
        found = Agreement.from_dict(json.loads(read_text(_cache_path(key))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return found if found.is_sound() else None


def remember_agreement(key: str, agreement: Agreement) -> None:
    """Keep the counts for later runs; a cache that cannot be written only costs time."""
    with suppress(InputError):
        write_json(_cache_path(key), agreement.to_dict())


def _cache_path(key: str) -> Path:
    """In `NORMLENS_CACHE`, or in `normlens` in the user's cache folder."""
    given = os.environ.get("NORMLENS_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normlens"
    return (Path(given) if given else base) / "layers" / f"{key}.json"


# ---- saved by name, for other texts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedChoice:
    """Layers by direction, with what they were chosen by: written by `--save-choice`, read by `--layers-from`."""

    layers: dict[str, tuple[int, ...]]
    setting: str
    measure: str
    models: dict[str, str | None]
    pairs: dict[str, int]

    def write(self, path: Path) -> None:
        """As a small JSON file."""
        write_json(path, {"normlens_layers": 1, **asdict(self)})

    @classmethod
    def read(cls, path: Path) -> SavedChoice:
        """Read a saved choice."""
        try:
            found = json.loads(read_text(Path(path)))
            if found.pop("normlens_layers") != 1:
                raise ValueError("another version")
            layers = {str(name): tuple(int(n) for n in numbers) for name, numbers in found.pop("layers").items()}
            return cls(layers=layers, **found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"{path} is not a file that --save-choice wrote ({error})") from None

    def check(self, now: SavedChoice) -> None:
        """Refuse a choice that was made for something else."""
        for name in ("setting", "measure", "models"):
            mine, wanted = getattr(self, name), getattr(now, name)
            if mine != wanted:
                raise InputError(
                    f"the saved layers were chosen for {name} {mine}, now it is {wanted}; choose anew, or give "
                    "the layers by number"
                )
