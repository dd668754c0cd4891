"""Deletion and insertion of patches and frames: which attribution method finds those that a model's number depends on.

The number is the model's own choice of a label or, of an encoder without a head, its first state along the direction of
that state. Patches are removed by setting their pixels to the mean colour of the model's training images, frames by
silence. With masks of the object, methods are also judged by pointing at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from PIL import Image as Pillow
from torch import Tensor

from normlens.anatomy.interface import use_implementation
from normlens.anatomy.scope import PassScope
from normlens.attribution.questions import first_tensor, head_of
from normlens.errors import InputError
from normlens.faithfulness.bootstrap import Estimate, difference, estimate
from normlens.inputs.media import joined
from normlens.inputs.places import Place
from normlens.plots.media import fitted
from normlens.types import Json

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Shares of the patches that are removed (deletion) or shown (insertion).
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
_STEPS = 30  # of integrated gradients


@dataclass(frozen=True)
class Picture:
    """One image or recording as a model takes it, the places of its positions, and the number that is explained."""

    inputs: dict[str, Tensor]
    name: str  # of the input that holds the image or the recording
    rate: float  # samples in a second; 0 for an image
    places: tuple[Place, ...]
    positions: tuple[int, ...]  # of the patches among the model's positions
    output: int | None  # the label; None: the direction of the first state
    direction: Tensor | None


Scores = Float[np.ndarray, " patch"]
ImageMethod = Callable[["Lens", Picture], Scores]


@dataclass(frozen=True)
class ImageStudy:
    """The drops of each method on each image; larger is better in both columns."""

    deletion: Mapping[str, np.ndarray]
    insertion: Mapping[str, np.ndarray]
    record: Json
    pointing: Mapping[str, np.ndarray] = field(default_factory=dict)  # whether the best patch lies on the object
    segmentation: Mapping[str, np.ndarray] = field(default_factory=dict)  # average precision of its patches

    @property
    def columns(self) -> dict[str, Mapping[str, np.ndarray]]:
        """The columns by name; those of masks where there were any."""
        found = {"deletion": self.deletion, "insertion": self.insertion}
        found |= {"pointing": self.pointing, "segmentation": self.segmentation}
        return {name: column for name, column in found.items() if column}

    def table(self) -> pd.DataFrame:
        """Means with 95 % intervals, best first by deletion."""
        rows = []
        for method in self.deletion:
            row: Json = {"method": method}
            for name, found in self.columns.items():
                mean: Estimate = estimate([found[method]])
                row |= {name: mean.mean, f"{name}_low": mean.low, f"{name}_high": mean.high}
            rows.append(row)
        return pd.DataFrame(rows).sort_values("deletion", ascending=False, ignore_index=True)

    def against(self, method: str, other: str, column: str = "deletion") -> Estimate:
        """The paired difference of two methods on the same images."""
        if column not in self.columns:
            raise InputError(f"column must be one of {', '.join(self.columns)}, got {column!r}")
        found = self.columns[column]
        return difference([found[method]], [found[other]])


def image_study(
    lens: Lens,
    images: Sequence[Any],
    methods: Sequence[str] | None = None,
    *,
    masks: Sequence[Any] | None = None,
    sampling_rate: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImageStudy:
    """Remove and show patches in the order of each method's scores.

    Args:
        lens: An image classifier or image encoder with its processor.
        images: Paths, PIL images or arrays; for a sound classifier on samples (wav2vec 2.0) paths of recordings or samples.
        methods: Names of methods; by default all of `IMAGE_METHODS`.
        masks: For each image an array of its height and width that is true on the object.
        sampling_rate: Of samples; a file says so itself.
        progress: Called with the number of images that are done and of all images.

    Returns:
        For each method and image, the mean drop of the number over `SHARES` when the best patches are removed, and its
        mean level when they alone are shown. The number is the label's probability, or the cosine with the whole
        image's first state.
    """
    chosen = list(IMAGE_METHODS) if methods is None else list(methods)
    for name in chosen:
        if name not in IMAGE_METHODS:
            raise InputError(f"a method for images must be one of {', '.join(IMAGE_METHODS)}, got {name!r}")
    if not images:
        raise InputError("images is empty; pass at least one image")
    if masks is not None and len(masks) != len(images):
        raise InputError(f"got {len(images)} images and {len(masks)} masks; each image needs its mask")
    names = ("deletion", "insertion", *(("pointing", "segmentation") if masks is not None else ()))
    found: dict[str, dict[str, list[float]]] = {column: {name: [] for name in chosen} for column in names}
    for done, image in enumerate(images, start=1):
        picture = read_picture(lens, image, sampling_rate)
        inside = None if masks is None else _covered(lens, picture, masks[done - 1])
        for name in chosen:
            scores = IMAGE_METHODS[name](lens, picture)
            order = np.argsort(-scores, kind="stable")
            removed, shown = _levels(lens, picture, order)
            found["deletion"][name].append(1.0 - removed)
            found["insertion"][name].append(shown)
            if inside is not None:
                found["pointing"][name].append(float(inside[order[0]]))
                found["segmentation"][name].append(_average_precision(inside[order]))
        if progress is not None:
            progress(done, len(images))
    record = {"model": lens.identity, "images": len(images), "shares": list(SHARES)}
    columns = {column: {name: np.array(each) for name, each in of.items()} for column, of in found.items()}
    return ImageStudy(record=record, **columns)


def read_picture(lens: Lens, image: Any, sampling_rate: int | None = None) -> Picture:
    """Read one image or recording and ask the model for its own choice."""
    hears = isinstance(getattr(lens.extractor, "sampling_rate", None), int)
    row = lens.media(None, [], image, sampling_rate) if hears else lens.media(None, [image], None, None)
    first = next(lens.model.parameters())
    inputs = joined([row], first.device, first.dtype)
    output = _output(lens, inputs)
    head = head_of(lens.model)
    if head == "sequence":
        label, direction = int(output[0].argmax()), None
    elif head == "none" and output.ndim == 3:
        label, direction = None, output[0, 0] / output[0, 0].norm()
    else:
        raise InputError(f"{type(lens.model).__name__} is no image classifier and no image encoder")
    count = lens.analyze_inputs(inputs, measures=["x_norm"], layers=[1])[0].sites["encoder"].sizes["key"]
    places = lens.labels(inputs).of_tower("audio" if hears else "vision", 0, count).places
    positions = tuple(n for n, place in enumerate(places) if place.row >= 0 or place.start >= 0)
    name = "input_values" if hears else "pixel_values"
    if not positions or name not in inputs or (hears and inputs[name].ndim != 2):
        raise InputError(f"the positions of {lens.family!r} have no known places in {name}")
    rate = float(lens.extractor.sampling_rate) if hears else 0.0
    return Picture(inputs, name, rate, tuple(places[n] for n in positions), positions, label, direction)


def _covered(lens: Lens, picture: Picture, mask: Any) -> np.ndarray:
    """For each patch, whether at least half of it lies on the object; the mask is scaled and cut as its image was."""
    shape = np.asarray(mask).shape
    if len(shape) != 2:
        raise InputError(f"a mask must be an array of height and width, got shape {shape}")
    drawn = Pillow.fromarray(np.repeat((np.asarray(mask) > 0)[:, :, None].astype(np.uint8) * 255, 3, axis=2))
    seen = fitted(drawn, lens.media.geometry)[..., 0] > 0.5
    covered = []
    for place in picture.places:
        patch = seen[int(place.top) : int(place.bottom), int(place.left) : int(place.right)]
        covered.append(patch.size > 0 and patch.mean() >= 0.5)
    return np.array(covered)


def _average_precision(ranked: np.ndarray) -> float:
    """The mean precision at each patch of the object, best first; not a number where the object has none."""
    hits = np.flatnonzero(ranked)
    if not len(hits):
        return float("nan")
    return float(np.mean((np.arange(len(hits)) + 1) / (hits + 1)))


def _output(lens: Lens, inputs: Mapping[str, Tensor]) -> Tensor:
    with PassScope(lens.model):
        found: Tensor = first_tensor(lens.model(**inputs)).detach()
    return found


def _levels(lens: Lens, picture: Picture, order: np.ndarray) -> tuple[float, float]:
    """The mean level of the number with the first patches removed, and with them alone, over that of the whole image."""
    pixels = picture.inputs[picture.name]
    rows = [pixels]
    for share in SHARES:
        count = max(1, round(share * len(order)))
        rows.append(_without(pixels, picture, order[:count]))
        rows.append(_without(pixels, picture, order[count:]))
    levels = _level(_output(lens, {**picture.inputs, picture.name: torch.cat(rows)}), picture)
    whole = float(levels[0]) or 1.0
    return float(levels[1::2].mean()) / whole, float(levels[2::2].mean()) / whole


def _without(pixels: Tensor, picture: Picture, patches: np.ndarray) -> Tensor:
    changed = pixels.clone()
    for patch in patches.tolist():
        changed[_slices(picture, patch)] = 0.0
    return changed


def _slices(picture: Picture, patch: int) -> tuple[Any, ...]:
    """The pixels of a patch, or the samples of a frame."""
    place = picture.places[patch]
    if picture.rate:
        return ..., slice(round(place.start * picture.rate), round(place.end * picture.rate))
    return ..., slice(int(place.top), int(place.bottom)), slice(int(place.left), int(place.right))


def _level(output: Tensor, picture: Picture) -> Tensor:
    if picture.direction is None:
        return output.softmax(-1)[:, picture.output]
    return torch.nn.functional.cosine_similarity(output[:, 0], picture.direction[None])


def _number(output: Any, picture: Picture) -> Tensor:
    found = first_tensor(output)
    return found[0, picture.output] if picture.direction is None else (found[0, 0] * picture.direction).sum()


# ---- methods -----------------------------------------------------------------------------------------------------------


def _explained(lens: Lens, picture: Picture, attention: Any) -> Scores:
    """The terms of `explain`."""
    question: Any = (
        {"output": picture.output} if picture.direction is None else {"direction": picture.direction, "position": 0}
    )
    found = lens.explain_inputs(picture.inputs, attention=attention, parts=[], **question)[0]
    terms: Scores = found["tokens"].values[list(picture.positions)]
    return terms


def _map_row(lens: Lens, picture: Picture, name: str, *, rollout: bool, normalize: bool = True) -> Scores:
    """The first row of a map: of the last layer, or rolled out through all of them."""
    analysis = lens.analyze_inputs(picture.inputs, measures=[name])[0]
    maps = analysis.rollout(name, normalize=normalize) if rollout else analysis[name]
    row: Scores = maps.isel(layer=-1, query=0).values[list(picture.positions)]
    return row


def _pixel_gradient(lens: Lens, picture: Picture, scale: float) -> Tensor:
    with PassScope(lens.model, grad=True):
        pixels = (scale * picture.inputs[picture.name]).detach().requires_grad_()
        number = _number(lens.model(**{**picture.inputs, picture.name: pixels}), picture)
        (gradient,) = torch.autograd.grad(number, pixels)
    return gradient


def _gradient_x_input(lens: Lens, picture: Picture, steps: int) -> Scores:
    """Gradients at the pixels times the pixels, added over each patch; along the path from zero where steps are several."""
    scales = [(step + 0.5) / steps for step in range(steps)] if steps > 1 else [1.0]
    gradient = sum(_pixel_gradient(lens, picture, scale) for scale in scales) / len(scales)
    shares = gradient * picture.inputs[picture.name]
    return np.array([float(shares[_slices(picture, patch)].sum()) for patch in range(len(picture.places))])


def _chefer(lens: Lens, picture: Picture) -> Scores:
    """Attention weighted by its gradient, rolled out (Chefer et al. 2021): `R + E_h[(grad A * A)+] R`."""
    with PassScope(lens.model, grad=True) as scope:
        use_implementation(scope, "eager")
        output = lens.model(**picture.inputs, output_attentions=True)
        attentions = list(output.attentions or ())
        if not attentions:
            raise InputError(f"{lens.family!r} shows no attention weights, which chefer needs; leave it out")
        gradients = torch.autograd.grad(_number(output, picture), attentions)
    relevance = torch.eye(attentions[0].shape[-1], dtype=torch.float64)
    for attention, gradient in zip(attentions, gradients, strict=True):
        weighted = (attention.detach() * gradient)[0].clamp(min=0).mean(0).cpu().double()
        relevance = relevance + weighted @ relevance
    found: Scores = relevance[0].numpy()[list(picture.positions)]
    return found


def _random(lens: Lens, picture: Picture) -> Scores:
    """Numbers drawn from the image's own size, the same in every run."""
    return np.random.default_rng(len(picture.places)).random(len(picture.places))


#: Methods by name; each gives one number for each patch.
IMAGE_METHODS: dict[str, ImageMethod] = {
    "fixed": partial(_explained, attention="fixed"),
    "integrated": partial(_explained, attention="integrated"),
    "alti": partial(_map_row, name="alti", rollout=True),
    "globenc": partial(_map_row, name="enc_n", rollout=True, normalize=False),
    "norm_rollout": partial(_map_row, name="attnresln_n", rollout=True),
    "attention_rollout": partial(_map_row, name="attnres_w", rollout=True),
    "attention": partial(_map_row, name="attn_w", rollout=False),
    "gradient_x_input": partial(_gradient_x_input, steps=1),
    "integrated_gradients": partial(_gradient_x_input, steps=_STEPS),
    "chefer": _chefer,
    "random": _random,
}
