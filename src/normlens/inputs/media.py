"""Images and sound to tensors, through the model's own processor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from normlens.anatomy.inputs import modality_of
from normlens.errors import InputError
from normlens.io.remote import first_line
from normlens.types import Json

#: An image (path, PIL image, array or tensor), and sound (path, array or tensor of samples).
Image = Any
Sound = Any


class MediaOptions(TypedDict, total=False):
    """Images and sound, in `Lens.analyze` and `Lens.explain`."""

    images: Image | Sequence[Image]  # paths, PIL images, arrays or tensors
    audio: Sound | Sequence[Sound]  # paths of WAV files, or samples
    sampling_rate: int  # of samples; a file says so itself


@dataclass(frozen=True)
class MediaRow:
    """The inputs of one row as tensors, each with the row in front, and what stands in the provenance."""

    inputs: dict[str, Tensor]
    notes: Json = field(default_factory=dict)


class MediaEncoder:
    """Turns images and sound, with or without text, into the inputs of a model.

    Args:
        processor: An image processor, a feature extractor, or a processor that holds one.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(
        self, text: str | None, images: Sequence[Image], audio: Sound | None, sampling_rate: int | None
    ) -> MediaRow:
        """Encode one row: a text, its images and its sound, of which any may be missing."""
        if self._processor is None:
            raise InputError(
                "this lens has no processor, which images and audio need, or it could not be loaded; pass "
                "Lens(model, processor), or tensors to analyze_inputs() or explain_inputs()"
            )
        given: Json = {}
        notes: Json = {}
        if images:
            given["images"] = [read_image(image) for image in images]
            notes["images"] = [_record(image, read) for image, read in zip(images, given["images"], strict=True)]
            notes["image_geometry"] = self.geometry
        if audio is not None:
            rate = self._rate()
            samples, original = read_sound(audio, sampling_rate, rate)
            self._check_length(samples, rate)
            given |= {"audio": samples, "sampling_rate": rate}
            notes["audio"] = _record(audio, samples) | {"sampling_rate": original, "seconds": len(samples) / rate}
        if text is not None:
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"text must be a string that is not empty, got {text!r}")
            given["text"] = self._with_marks(text, len(images))
            notes["text"] = text
        return MediaRow(self._processed(given), notes)

    def rows(self, text: Any, options: Mapping[str, Any]) -> tuple[bool, list[MediaRow]]:
        """Return whether one row was given, and the rows; `options` holds those of `MediaOptions`."""
        single, rows = media_rows(text, options.get("images"), options.get("audio"))
        return single, [self(*row, options.get("sampling_rate")) for row in rows]

    def _check_length(self, samples: np.ndarray, rate: int) -> None:
        """Refuse a recording that the extractor would cut without a word."""
        extractor = getattr(self._processor, "feature_extractor", self._processor)
        most = getattr(extractor, "n_samples", None)
        if isinstance(most, int) and len(samples) > most:
            raise InputError(
                f"the recording has {len(samples) / rate:.1f} s and the model takes {most / rate:.1f} s; cut it, and pass "
                "the parts one by one"
            )

    @property
    def geometry(self) -> Json:
        """The part of an image that the processor takes: how it is scaled, and then cut."""
        reader = getattr(self._processor, "image_processor", self._processor)
        found: Json = {}
        for name, does, size in (("resize", "do_resize", "size"), ("crop", "do_center_crop", "crop_size")):
            sizes = getattr(reader, size, None)
            plain = {str(k): int(v) for k, v in dict(sizes or {}).items() if isinstance(v, int)}
            if getattr(reader, does, False) and (set(plain) == {"shortest_edge"} or {"height", "width"} <= set(plain)):
                found[name] = plain
        return found

    def _rate(self) -> int:
        extractor = getattr(self._processor, "feature_extractor", self._processor)
        rate = getattr(extractor, "sampling_rate", None)
        if not isinstance(rate, int):
            raise InputError(f"{type(self._processor).__name__} reads no sound; pass images=…, or another processor")
        return rate

    def _with_marks(self, text: str, images: int) -> str:
        """The text with a placeholder for each image in front, where it names none."""
        mark = getattr(self._processor, "image_token", None)
        if isinstance(mark, str) and images and mark not in text:
            return mark * images + "\n" + text
        return text

    def _processed(self, given: Json) -> dict[str, Tensor]:
        arguments = {name: value for name, value in given.items() if name not in ("audio", "text")}
        single = not hasattr(self._processor, "tokenizer")  # an image processor or a feature extractor alone
        if "text" in given:
            if single:
                raise InputError(f"{type(self._processor).__name__} reads no text; pass images or audio alone")
            arguments["text"] = [given["text"]]
        if "images" in given and not single and getattr(self._processor, "image_processor", None) is None:
            raise InputError(f"{type(self._processor).__name__} reads no images; pass audio=…, or another processor")
        if "images" in given and single and hasattr(self._processor, "sampling_rate"):
            raise InputError(f"{type(self._processor).__name__} reads sound, got images; pass audio=…")
        try:
            if "audio" in given and (single or "text" not in given):
                reader = self._processor if single else self._processor.feature_extractor
                rate = arguments["sampling_rate"]
                encoded = reader(given["audio"], sampling_rate=rate, return_tensors="pt")
            elif "text" not in given and not single:
                encoded = self._processor.image_processor(images=arguments["images"], return_tensors="pt")
            else:
                if "audio" in given:
                    arguments["audio"] = given["audio"]
                encoded = self._processor(**arguments, return_tensors="pt")
        except InputError:
            raise
        except Exception as error:  # each processor fails in its own way
            raise InputError(f"{type(self._processor).__name__} failed on the inputs: {first_line(error)}") from error
        return {str(name): value for name, value in encoded.items() if isinstance(value, Tensor)}


# ---- reading -----------------------------------------------------------------------------------------------------------


def read_image(image: Image) -> Any:
    """An image as the processors take it: a PIL image in colour, or an array of height, width and channels."""
    if isinstance(image, str | Path):
        try:
            from PIL import Image as Pillow
        except ImportError as error:
            raise InputError("images from files need Pillow; pip install 'normlens[media]'") from error
        try:
            with Pillow.open(image) as opened:
                return opened.convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise InputError(f"{str(image)!r} cannot be read as an image: {first_line(error)}") from error
    if hasattr(image, "convert"):
        return image.convert("RGB")
    array = _array("an image", image)
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.ndim != 3 or not {array.shape[0], array.shape[2]} & {1, 3, 4}:
        raise InputError(
            f"an image must be a path, a PIL image, or an array of height, width and 3 channels, got shape {array.shape}"
        )
    if array.shape[2] == 4:
        array = array[:, :, :3]  # without its transparency
    elif array.shape[0] == 4 and array.shape[2] not in (1, 3):
        array = array[:3]
    if not np.isfinite(array).all():
        raise InputError("an image holds NaN or infinity; check how it was made")
    return array


def read_sound(sound: Sound, sampling_rate: int | None, rate: int) -> tuple[np.ndarray, int]:
    """Samples of one channel at the model's rate, and the rate at which they came.

    Args:
        sound: A path of a WAV file, or samples.
        sampling_rate: The samples in a second; a file says so itself.
        rate: The rate that the model takes.
    """
    if isinstance(sound, str | Path):
        samples, sampling_rate = _read_wav(Path(sound))
    else:
        samples = _array("audio", sound)
        if samples.ndim not in (1, 2) or samples.size == 0:
            raise InputError(f"audio must be a path or samples (time, or channel and time), got shape {samples.shape}")
        samples = samples.mean(axis=int(np.argmin(samples.shape))) if samples.ndim == 2 else samples
    if isinstance(sampling_rate, bool) or not isinstance(sampling_rate, Integral) or sampling_rate < 1:
        raise InputError(
            f"sampling_rate must be given with samples, as a whole number, got {sampling_rate!r}; the model takes {rate}"
        )
    samples, sampling_rate = samples.astype(np.float32), int(sampling_rate)
    if not np.isfinite(samples).all():
        raise InputError("audio holds NaN or infinity; check how it was made")
    if sampling_rate != rate:
        try:
            from scipy.signal import resample_poly
        except ImportError as error:
            raise InputError(
                f"the sound has {sampling_rate} samples in a second and the model takes {rate}; resample it, or "
                "pip install 'normlens[media]'"
            ) from error
        divisor = int(np.gcd(sampling_rate, rate))
        samples = resample_poly(samples, rate // divisor, sampling_rate // divisor).astype(np.float32)
    return samples, sampling_rate


def _array(what: str, given: Any) -> np.ndarray:
    """Numbers as an array; whatever holds none is refused."""
    if isinstance(given, Tensor):
        if given.layout != torch.strided or given.is_quantized or given.is_meta:
            raise InputError(f"{what} must be a dense tensor, got one with layout {given.layout}")
        given = given.detach().cpu()
        given = (given.float() if given.is_floating_point() else given).numpy()
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} must be a path or real numbers, got {type(given).__name__} of {array.dtype}")
    return array


def _read_wav(path: Path) -> tuple[np.ndarray, int]:
    try:
        from scipy.io import wavfile
    except ImportError as error:
        raise InputError("sound from files needs SciPy; pip install 'normlens[media]'") from error
    try:
        rate, samples = wavfile.read(path)
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise InputError(f"{str(path)!r} cannot be read as a WAV file: {first_line(error)}") from error
    if samples.size == 0:
        raise InputError(f"{str(path)!r} holds no sound")
    if samples.dtype == np.uint8:
        samples = (samples.astype(np.float32) - 128) / 128
    elif np.issubdtype(samples.dtype, np.integer):
        samples = samples.astype(np.float32) / np.iinfo(samples.dtype).max
    return samples.mean(axis=1) if samples.ndim == 2 else samples, int(rate)


def _record(given: Any, read: Any) -> Json:
    """The name, size and content of an image or sound, for the provenance."""
    pixels = np.ascontiguousarray(np.asarray(read))
    found: Json = {"sha256": hashlib.sha256(pixels.tobytes()).hexdigest(), "shape": list(pixels.shape)}
    return found | ({"file": Path(given).name} if isinstance(given, str | Path) else {})


# ---- rows ----------------------------------------------------------------------------------------------------------------


def media_rows(text: Any, images: Any, audio: Any) -> tuple[bool, list[tuple[Any, list[Image], Any]]]:
    """Return whether one row was given, and each row's text, images and sound.

    Several images without a text are rows of their own; with one text they all belong to it, with a list of texts each
    text has its own.
    """
    if isinstance(text, list | tuple):
        count = len(text)
        of_images = _for_each("images", images, count)
        of_audio = _for_each("audio", audio, count)
        each = [image if isinstance(image, list | tuple) else [] if image is None else [image] for image in of_images]
        return False, list(zip(text, map(list, each), of_audio, strict=True))
    several = images if isinstance(images, list | tuple) else None
    if text is not None:
        return True, [(text, list(several) if several is not None else [] if images is None else [images], audio)]
    if several is not None:
        if not several:
            raise InputError("images is empty; pass at least one image")
        sounds = _for_each("audio", audio, len(several))
        return False, [(None, [image], sound) for image, sound in zip(several, sounds, strict=True)]
    if isinstance(audio, list | tuple) and not _is_samples(audio):
        if not audio:
            raise InputError("audio is empty; pass at least one recording")
        return False, [(None, [], sound) for sound in audio]
    return True, [(None, [] if images is None else [images], audio)]


def _is_samples(audio: Sequence[Any]) -> bool:
    return bool(audio) and all(isinstance(x, int | float) for x in audio[:16])


def _for_each(name: str, given: Any, count: int) -> list[Any]:
    if given is None:
        return [None] * count
    if not isinstance(given, list | tuple) or len(given) != count:
        size = len(given) if isinstance(given, list | tuple) else 1
        raise InputError(f"{name} must be a list with one entry for each of {count} rows, got {size}")
    return list(given)


def batches_of(rows: Sequence[MediaRow], size: int) -> list[list[int]]:
    """Rows that can share a pass: neighbours with equal shapes; rows of several images go alone."""
    batches: list[list[int]] = []
    for number, row in enumerate(rows):
        last = rows[batches[-1][-1]] if batches else None
        if last is not None and len(batches[-1]) < size and _may_join(last, row):
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def _may_join(one: MediaRow, other: MediaRow) -> bool:
    shapes = [{name: tuple(x.shape) for name, x in row.inputs.items()} for row in (one, other)]
    alone = all(x.shape[0] == 1 for x in one.inputs.values())
    return alone and shapes[0] == shapes[1]


def joined(rows: Sequence[MediaRow], device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """One batch of rows, on the model's device; images and sound in its dtype."""
    batch = {}
    for name in rows[0].inputs:
        whole = torch.cat([row.inputs[name] for row in rows]) if len(rows) > 1 else rows[0].inputs[name]
        floating = whole.is_floating_point() and modality_of(name) in ("vision", "audio")
        batch[name] = whole.to(device, dtype) if floating else whole.to(device)
    return batch


def extended(inputs: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """The inputs of one row with more tokens behind its text."""
    more = dict(inputs)
    for name, value in inputs.items():
        if name == "input_ids":
            more[name] = torch.cat([value, ids.to(value)], 1)
        elif (
            value.ndim == 2 and value.shape == inputs["input_ids"].shape
        ):  # a mask has ones there, types of tokens zeros
            filler = 1 if name == "attention_mask" else 0
            more[name] = torch.cat([value, value.new_full((len(value), ids.shape[1]), filler)], 1)
    return more
