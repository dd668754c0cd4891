"""Labels of the positions of prepared inputs: tokens, patches and frames where they are known, numbers elsewhere."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normlens.anatomy.inputs import modality_of, rows_of
from normlens.anatomy.kinds import Kind, is_cross, item_of
from normlens.errors import InputError
from normlens.inputs.encoding import TextEncoder
from normlens.inputs.places import Place, PlaceReader, grid_places, labelled, media_in, numbered
from normlens.inputs.tokens import Tokens
from normlens.types import Json, ModelInputs


class InputLabels:
    """Labels the rows of one batch of prepared inputs.

    Args:
        encoder: Names token ids.
        places: Reads the places of patches and frames.
        inputs: The batch.
    """

    def __init__(self, encoder: TextEncoder, places: PlaceReader, inputs: ModelInputs) -> None:
        self._encoder, self._places, self._inputs = encoder, places, inputs
        self._media = media_in(inputs)

    def sides(self, kind: Kind, row: int, queries: Tensor, keys: Tensor) -> tuple[Tokens, Tokens]:
        """The positions at the query and key axes of a kind of site; the masks say which of them are real."""
        labels = self.at(kind, row, queries)
        return labels, self.keys_of_cross(kind, row, keys) if is_cross(kind) else labels

    def at(self, kind: Kind, row: int, real: Tensor) -> Tokens:
        """The positions of self-attention, or the queries of cross-attention."""
        tower = self._tower(kind)
        if tower and (is_cross(kind) or "stack" in kind):
            return numbered(int(real.sum()))  # queries that the model has learned
        if tower:
            return self._places.of_tower(self._row(row), tower, int(real.sum()), item_of(kind))
        written = kind in ("decoder", "cross") and "decoder_input_ids" in self._inputs
        return self._tokens("decoder_input_ids" if written else "input_ids", row, real)

    def of_text(self, tokens: Tokens, row: int) -> Tokens:
        """Tokens of a row, with the places of those that stand for patches and frames."""
        return self._places.of_text(tokens, self._row(row))

    def of_tower(self, tower: str, row: int, count: int, items: int = 1) -> Tokens:
        """Positions of a tower; those of several images one after the other."""
        if items > 1 and items != images_in(self._inputs):  # windows, or images of several rows
            return labelled([Place("image" if tower == "vision" else "audio")] * count)
        each = [self._places.of_tower(self._row(row), tower, count // items, item) for item in range(items)]
        if items == 1:
            return each[0]
        places = [place for tokens in each for place in tokens.places]
        return labelled(places)

    def of_grid(self, row: int, name: str, grid: tuple[int, int]) -> Tokens:
        """The places of a feature map, whose rows and columns cover the image evenly."""
        pixels = self._row(row).get(name)
        height, width = pixels.shape[-2:] if isinstance(pixels, Tensor) else grid
        return labelled(grid_places((*grid, height / grid[0], width / grid[1]), 0))

    def keys_of_cross(self, kind: Kind, row: int, real: Tensor) -> Tokens:
        """The keys of cross-attention: positions of the tower, or of the encoder."""
        tower = self._tower(kind)
        if not tower and self._media and not self._reads_text(kind):
            tower = self._media[0]
        if tower:
            return self._places.of_tower(self._row(row), tower, int(real.sum()), item_of(kind))
        return self._tokens("input_ids", row, real)

    def _reads_text(self, kind: Kind) -> bool:
        """Return True if cross-attention reads the text of an encoder, and not a tower's states."""
        return bool(self._text()) and "decoder_input_ids" in self._inputs

    def _tower(self, kind: Kind) -> str:
        """The tower whose positions a kind of site has; empty for text."""
        first = kind.split("_")[0]
        if first in ("vision", "audio"):
            return first
        alone = len(self._media) == 1 and not self._text()
        return self._media[0] if kind == "encoder" and alone else ""

    def _text(self) -> list[str]:
        """The inputs that are text on the side of the encoder."""
        return [name for name in self._inputs if modality_of(name) == "text"]

    def _tokens(self, name: str, row: int, real: Tensor) -> Tokens:
        ids = self._inputs.get(name)
        if isinstance(ids, Tensor) and ids.ndim == 2 and ids.shape[1] == real.shape[0]:
            tokens = self._encoder.label(ids[row][real.to(ids.device)].tolist())
            return self._places.of_text(tokens, self._row(row)) if self._media else tokens
        return numbered(int(real.sum()))

    def _row(self, row: int) -> Json:
        """The inputs of one row; one whose images are not in the order of the rows has none."""
        rows = rows_of(self._inputs)
        found: dict[str, Any] = {}
        for name, value in self._inputs.items():
            if not isinstance(value, Tensor) or rows == 1:
                found[name] = value
            elif value.ndim and value.shape[0] == rows:
                found[name] = value[row : row + 1]
        return found


def images_in(inputs: ModelInputs) -> int:
    """The number of images in the inputs of one row; 1 where there are several rows, or none."""
    pixels = inputs.get("pixel_values")
    if rows_of(inputs) != 1 or not isinstance(pixels, Tensor) or pixels.ndim not in (4, 5):
        return 1
    return int(pixels.shape[0] if pixels.ndim == 4 else pixels.shape[0] * pixels.shape[1])


def check_media_rows(config: Any, inputs: ModelInputs) -> None:
    """Refuse a batch in which it is not known which image or sound belongs to which row."""
    rows, ids = rows_of(inputs), inputs.get("input_ids")
    mask = inputs.get("attention_mask")
    if media_in(inputs) and ids is None and isinstance(mask, Tensor) and not bool(mask.all()):
        raise InputError(
            "attention_mask pads sound or images, whose positions the model makes fewer of; pass each row by itself, cut to "
            "its length and without a mask"
        )
    if rows == 1 or not isinstance(ids, Tensor) or not media_in(inputs):
        return
    marks = [
        getattr(config, f"{name}_token_{end}", None) for name in ("image", "video", "audio") for end in ("id", "index")
    ]
    counts = {tuple(int((row == mark).sum()) for mark in marks if isinstance(mark, int)) for row in ids}
    given = {
        name: v.shape[0]
        for name, v in inputs.items()
        if isinstance(v, Tensor) and modality_of(name) in ("vision", "audio")
    }
    if len(counts) > 1 or any(length != rows for length in given.values()):
        raise InputError(
            f"it is not known which image or sound belongs to which of {rows} rows, got {given} with other numbers of "
            "placeholders; pass one row at a time"
        )
