"""The place of each position: a token of text, a patch of an image, a stretch of sound.

Patches and frames follow from the model's own patch sizes and strides. Where that arithmetic does not give the number of
positions that the model has, positions keep their modality and have no place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from normlens.anatomy.inputs import modality_of
from normlens.inputs.tokens import Tokens
from normlens.types import ModelInputs

Modality = Literal["text", "image", "audio", "special"]


#: Settings of models that make one position of several neighbouring patches.
_MERGES = ("spatial_merge_size", "scale_factor", "downsample_ratio", "downsample_factor", "mm_tokens_per_image")


@dataclass(frozen=True)
class Place:
    """The place of one position; numbers that it does not have are -1 or NaN."""

    modality: Modality
    image: int = -1  # the image of the row, from 0
    row: int = -1  # of the patch, from the top
    column: int = -1
    left: float = math.nan  # the patch in pixels of the processed image
    top: float = math.nan
    right: float = math.nan
    bottom: float = math.nan
    start: float = math.nan  # the stretch of sound in seconds
    end: float = math.nan

    @property
    def text(self) -> str:
        """The place as a label."""
        if self.modality == "image" and self.row >= 0:
            return f"({self.row},{self.column})"
        if self.modality == "audio" and not math.isnan(self.start):
            band = f" band {self.row}" if self.row >= 0 else ""
            return f"{self.start:.2f}s{band}"
        return self.modality


def coordinates(places: Sequence[Place], axis: str) -> dict[str, tuple[str, np.ndarray]]:
    """The places of an axis as coordinates; nothing for a text, whose tokens say all.

    >>> sorted(coordinates([Place("special"), Place("image", 0, 0, 0, 0.0, 0.0, 8.0, 8.0)], "key"))[:3]
    ['key_bottom', 'key_column', 'key_image']
    """
    found: dict[str, tuple[str, np.ndarray]] = {}
    if all(place.modality == "text" for place in places):
        return found
    for field in fields(Place):
        values = [getattr(place, field.name) for place in places]
        dtype: Any = object if field.name == "modality" else np.float64 if isinstance(values[0], float) else np.int64
        array = np.array(values, dtype=dtype)
        known = dtype is object or not bool(np.all(np.isnan(array) if dtype is np.float64 else array < 0))
        if known:
            found[f"{axis}_{field.name}"] = (axis, array)
    return found


class PlaceReader:
    """Reads the places of a model's positions from its configuration and its inputs.

    Args:
        config: The model's configuration.
        extractor: Its feature extractor, which knows how many samples a frame of sound has; None: seconds are not known.
        shuffled: Whether the model draws its patches at random, so that their places are not known.
    """

    def __init__(self, config: Any, extractor: Any = None, *, shuffled: bool = False) -> None:
        self._config, self._extractor, self._shuffled = config, extractor, shuffled

    def of_tower(self, inputs: ModelInputs, tower: str, count: int, item: int = 0) -> Tokens:
        """The positions of a stack of layers over images or sound.

        Args:
            inputs: The inputs of one row.
            tower: `vision` or `audio`.
            count: The number of positions.
            item: The image, where the tower takes those of a row one by one.
        """
        places = self._patches(inputs, count, item) if tower == "vision" else self._frames(inputs, count)
        return labelled(places or [Place("image" if tower == "vision" else "audio")] * count)

    def of_text(self, tokens: Tokens, inputs: ModelInputs) -> Tokens:
        """Tokens of a text in which some stand for patches of images or for frames of sound."""
        places = [Place("text")] * len(tokens.ids)
        modalities: dict[str, Modality] = {"image": "image", "video": "image", "audio": "audio"}
        for name, modality in modalities.items():
            marks = {getattr(self._config, f"{name}_token_{ending}", None) for ending in ("id", "index")} - {None}
            positions = [n for n, token in enumerate(tokens.ids) if token in marks]
            if positions:
                found = self._merged(inputs, len(positions)) if modality == "image" else None
                for n, position in enumerate(positions):
                    places[position] = found[n] if found else Place(modality)
        if all(place.modality == "text" for place in places):
            return tokens
        strings = [s if p.modality == "text" else p.text for s, p in zip(tokens.strings, places, strict=True)]
        return replace(tokens, strings=tuple(strings), places=tuple(places))

    # ---- images ----------------------------------------------------------------------------------------------------------

    def _patches(self, inputs: ModelInputs, count: int, item: int) -> list[Place] | None:
        """Special positions in front, then patches row by row, then what else the model adds (detection tokens)."""
        grids = self._grids(inputs)
        if not grids or self._shuffled:
            return None
        if self._packed(inputs):
            return self._in_blocks(grids, count)
        together = sum(rows * columns for rows, columns, *_ in grids)
        if len(grids) > 1 and count < together:
            patches = grid_places(grids[min(item, len(grids) - 1)], item)
        else:
            patches = [place for number, grid in enumerate(grids) for place in grid_places(grid, number)]
        behind = int(getattr(self._config, "num_detection_tokens", 0) or 0)
        front = count - len(patches) - behind
        if front not in self._fronts() or (front > 0 and len(patches) == together and len(grids) > 1):
            return None
        return [*[Place("special")] * front, *patches, *[Place("special")] * behind]

    def _fronts(self) -> set[int]:
        """The numbers of special positions that may stand in front of the patches: none, or `[CLS]` with its registers."""
        vision = getattr(self._config, "vision_config", None) or self._config
        if str(getattr(vision, "model_type", "")).startswith("llama4"):
            return {0}  # its `[CLS]` stands behind
        return {0, 1, 2, 1 + int(getattr(vision, "num_register_tokens", 0) or 0)}

    def _packed(self, inputs: ModelInputs) -> bool:
        """Return True where patches are cut beforehand, as in Qwen-VL."""
        return any(isinstance(inputs.get(name), Tensor) for name in ("image_grid_thw", "video_grid_thw"))

    def _in_blocks(self, grids: list[tuple[int, int, float, float]], count: int) -> list[Place] | None:
        """Patches block by block: those that will be merged to one stand together."""
        vision = getattr(self._config, "vision_config", None) or self._config
        side = int(getattr(vision, "spatial_merge_size", 0) or 1)
        if getattr(vision, "window_size", None) or any(rows % side or columns % side for rows, columns, *_ in grids):
            return None  # windows put them in another order inside of the tower
        places: list[Place] = []
        for number, grid in enumerate(grids):
            whole = np.array(grid_places(grid, number), dtype=object).reshape(grid[:2])
            blocks = whole.reshape(grid[0] // side, side, grid[1] // side, side).swapaxes(1, 2)
            places += blocks.ravel().tolist()
        return places if len(places) == count else None

    def _merged(self, inputs: ModelInputs, count: int) -> list[Place] | None:
        """The patches of the vision tower as the language model takes them: whole, or several made one."""
        grids = self._grids(inputs)
        total = sum(rows * columns for rows, columns, *_ in grids)
        factor = math.isqrt(total // count) if count and total % count == 0 else 0
        if not factor or factor**2 * count != total or self._shuffled or isinstance(inputs.get("image_sizes"), Tensor):
            return None
        vision = getattr(self._config, "vision_config", None)
        if factor > 1 and not any(getattr(part, name, None) for part in (self._config, vision) for name in _MERGES):
            return None  # learned queries take the place of patches
        if any(rows % factor or columns % factor for rows, columns, *_ in grids):
            return None
        merged = [(rows // factor, columns // factor, h * factor, w * factor) for rows, columns, h, w in grids]
        return [place for number, grid in enumerate(merged) for place in grid_places(grid, number)]

    def _grids(self, inputs: ModelInputs) -> list[tuple[int, int, float, float]]:
        """Rows, columns and the height and width of a patch, for each image of a row."""
        vision = getattr(self._config, "vision_config", None) or self._config
        size = getattr(vision, "patch_size", None)
        if isinstance(size, list | tuple) and len(size) == 1:
            size = size[0]
        if not isinstance(size, int | list | tuple) or (not isinstance(size, int) and len(size) != 2):
            return []
        height, width = (size, size) if isinstance(size, int) else size
        for name in ("image_grid_thw", "video_grid_thw"):  # patches are cut beforehand, and their numbers are an input
            grid = inputs.get(name)
            if isinstance(grid, Tensor) and grid.ndim == 2:
                return [(int(h), int(w), height, width) for t, h, w in grid.tolist() for _ in range(int(t))]
        pixels = inputs.get("pixel_values")
        if not isinstance(pixels, Tensor) or pixels.ndim not in (4, 5):
            return []
        images = (
            pixels.shape[0] if pixels.ndim == 4 else pixels.shape[1] // int(getattr(vision, "tubelet_size", 1) or 1)
        )
        if getattr(vision, "patch_stride", None) not in (None, height, [height, width], (height, width)):
            return []  # patches that overlap
        return [(pixels.shape[-2] // height, pixels.shape[-1] // width, height, width)] * images

    # ---- sound -----------------------------------------------------------------------------------------------------------

    def _frames(self, inputs: ModelInputs, count: int) -> list[Place] | None:
        rate = getattr(self._extractor, "sampling_rate", None)
        values, features = inputs.get("input_values"), inputs.get("input_features")
        strides = getattr(self._config, "conv_stride", None)
        if isinstance(values, Tensor) and values.ndim == 2 and strides and rate:
            return _strided(values.shape[1], list(self._config.conv_kernel), list(strides), rate, count)
        hop = getattr(self._extractor, "hop_length", None)
        if isinstance(values, Tensor) and values.ndim == 3:
            # The spectrogram of AST: Kaldi's filter banks, of which 100 make a second.
            return self._spectrogram(values.shape[1], values.shape[2], 0.01, count)
        if isinstance(features, Tensor) and features.ndim == 3 and hop and rate:
            bands = getattr(getattr(self._config, "audio_config", None) or self._config, "num_mel_bins", None)
            others = [size for size in features.shape[1:] if size != bands]
            frames = int(others[0]) if len(others) == 1 else 0
            if count and frames and frames % count == 0:
                step = frames // count * hop / rate
                return [Place("audio", start=n * step, end=(n + 1) * step) for n in range(count)]
        return None

    def _spectrogram(self, frames: int, bands: int, seconds: float, count: int) -> list[Place] | None:
        """Patches over frequency and time, frequency first, with special positions in front."""
        names = ("patch_size", "frequency_stride", "time_stride")
        size, across, along = (getattr(self._config, name, None) for name in names)
        if not isinstance(size, int) or not across or not along:
            return None
        rows, columns = (bands - size) // across + 1, (frames - size) // along + 1
        front = count - rows * columns
        if front < 0:
            return None
        places = [Place("special")] * front
        for row in range(rows):
            for column in range(columns):
                start = column * along * seconds
                places.append(Place("audio", row=row, column=column, start=start, end=start + size * seconds))
        return places


def _strided(samples: int, kernels: list[int], strides: list[int], rate: int, count: int) -> list[Place] | None:
    """The stretch of sound that each output of a stack of convolutions reads."""
    length, field, step = samples, 1, 1
    for kernel, stride in zip(kernels, strides, strict=True):
        length = (length - kernel) // stride + 1
        field += (kernel - 1) * step
        step *= stride
    if length != count:
        return None
    return [Place("audio", start=n * step / rate, end=(n * step + field) / rate) for n in range(count)]


def grid_places(grid: tuple[int, int, float, float], image: int) -> list[Place]:
    """The patches of one image, row by row.

    >>> [place.text for place in grid_places((1, 2, 8, 8), 0)]
    ['(0,0)', '(0,1)']
    """
    rows, columns, height, width = grid
    places = []
    for row in range(rows):
        for column in range(columns):
            box = (column * width, row * height, (column + 1) * width, (row + 1) * height)
            places.append(Place("image", image, row, column, *map(float, box)))
    return places


def labelled(places: Sequence[Place]) -> Tokens:
    """Positions that are no tokens, with their places as labels."""
    specials = 0
    strings = []
    for place in places:
        if place.modality == "special":
            strings.append("[CLS]" if not specials else f"[special {specials}]")
            specials += 1
        else:
            strings.append(place.text)
    count = range(len(places))
    return Tokens(tuple(count), tuple(strings), tuple(count), tuple(places))


def media_in(inputs: ModelInputs) -> list[str]:
    """The modalities beside text among a model's inputs."""
    found = {modality_of(name) for name in inputs}
    return [tower for tower in ("vision", "audio") if tower in found]


def numbered(count: int) -> Tokens:
    """Positions of which nothing more is known than their number."""
    return Tokens(tuple(range(count)), tuple(map(str, range(count))), tuple(range(count)))
