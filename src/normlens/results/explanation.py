"""Explanation: what made one number of a model's output. Labelled arrays and provenance; frozen; holds no model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from normlens.errors import InputError
from normlens.inputs.prompts import ANSWER, REST
from normlens.inputs.tokens import readable
from normlens.io.writing import atomic_folder
from normlens.io.zarr_folder import attributes_of, check_replaced, read_tree, write_tree
from normlens.provenance import references
from normlens.results.base import Result, array_rows, tidy
from normlens.types import JsonMapping

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, RenderableType

    from normlens.viewer.display import View

_FORMAT = 1
#: Above this share of the number itself, a gap is spoken of.
_NOTABLE = 0.01
#: Steps that a figure of sound shows below each other.
_MOST_ROWS = 12
#: What may be kept, in the order in which it is shown.
PARTS = ("tokens", "states", "edges", "heads", "blocks", "direct", "biases")
#: What is kept where nothing is named: edges grow with the square of the length, and are asked for.
BY_DEFAULT = tuple(part for part in PARTS if part != "edges")


@dataclass(frozen=True)
class Proof:
    """Errors of the proof: the distance of the terms from the number, and the other checks.

    `gap`: the largest distance of the sum from the number, at the entrance of any layer, over the sum of absolute terms;
    `over_value`: the same distance over the number itself; `replay`: the frozen map run forwards on input vectors
    multiplied by random numbers, over the sum of absolute terms; `output`: how far the number is from what the model
    puts out by itself, over the largest logit. The last two are found once per model and kind of input.
    """

    gap: float
    over_value: float
    replay: float
    output: float

    def __float__(self) -> float:
        return self.gap


@dataclass(frozen=True, eq=False)
class Explanation(Result["SiteExplanation"]):
    """The terms of one number that the model put out."""

    sites: Mapping[str, Mapping[str, xr.DataArray]]
    value: Any  # a number; with the axis `step`, one for each step (xarray)
    proof: Proof
    provenance: JsonMapping = field(default_factory=dict)

    def __post_init__(self) -> None:
        for arrays in self.sites.values():
            for array in arrays.values():
                for variable in (array.variable, *(coordinate.variable for coordinate in array.coords.values())):
                    if isinstance(variable.values, np.ndarray):
                        variable.values.flags.writeable = False
        frozen = {kind: MappingProxyType(dict(arrays)) for kind, arrays in self.sites.items()}
        object.__setattr__(self, "sites", MappingProxyType(frozen))
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    # ---- reading -------------------------------------------------------------------------------------------------

    def site(self, kind: str) -> SiteExplanation:
        """Return the terms of one side: `encoder`, `decoder`, or `cross` for the attention between them."""
        return SiteExplanation(self._checked_kind(kind), self.sites[kind])

    @property
    def probability(self) -> Any:
        """The probability that the model gives the explained output, where it has a softmax head."""
        return self.provenance.get("probability")

    @property
    def warning(self) -> str:
        """A warning about these numbers; empty where there is none."""
        if self.proof.over_value > _NOTABLE:
            return (
                f"the terms miss the number by {self.proof.over_value:.1%} of it: it is small beside terms that cancel "
                f"({self.proof.gap:.0e} of their absolute sum)"
            )
        return ""

    # ---- sums ----------------------------------------------------------------------------------------------------

    def sum_of_steps(self) -> Explanation:
        """The steps added up: what made the whole output, as one number; itself where there is one step only.

        The proof's gap holds for the sum as well; over the number itself it is a bound.
        """
        if np.ndim(self.value) == 0:
            return self
        each = np.asarray(self.value, dtype=float)
        total = float(each.sum())
        sites = {
            kind: {name: array.sum("step") for name, array in arrays.items() if "edge" not in array.dims}
            for kind, arrays in self.sites.items()
        }
        over = self.proof.over_value * float(np.abs(each).sum()) / max(abs(total), 1e-300)
        chances = [p for p in self.probability or () if p is not None]
        record = {
            **self.provenance,
            "output": "".join(map(str, self.provenance["output"])),
            "steps": list(map(str, self.provenance["output"])),
            "probability": float(np.prod(chances)) if len(chances) == len(each) else None,
        }
        return Explanation(sites, total, replace(self.proof, over_value=over), record)

    def by_word(self, name: str = "tokens") -> xr.DataArray:
        """Terms added over the subwords of each word, for models with one side."""
        return self._only.by_word(name)

    def by_span(self, spans: Mapping[str, tuple[int, int]], name: str = "tokens") -> xr.DataArray:
        """Terms added over spans of positions `(start, stop)`, for models with one side."""
        return self._only.by_span(spans, name)

    def by_source(self, name: str = "tokens") -> xr.DataArray:
        """Return terms added over the sources that `explain(sources=…)` placed, for models with one side.

        `rest` is the text around them, `answer` what the model wrote before the explained token; together they add up.
        """
        return self._by_part("source", "sources", name)

    def by_message(self, name: str = "tokens") -> xr.DataArray:
        """Return terms added over the messages of a chat (`1 system`, `2 user`, …), for models with one side.

        `rest` are the template's own tokens, `answer` what the model wrote before the explained token.
        """
        return self._by_part("message", "messages", name)

    def _by_part(self, axis: str, record: str, name: str) -> xr.DataArray:
        parts = self.provenance.get(record)
        if parts is None:
            raise InputError(f"this explanation has no {record}; pass {record}=… to explain()")
        return self._only.by_label(axis, parts, self.provenance[f"{record}_named"], name)

    # ---- tables and files ----------------------------------------------------------------------------------------

    def to_frame(self, parts: Sequence[str] | None = None) -> pd.DataFrame:
        """Return a tidy table: one row per number, with site, part, step, layer, block, head, positions, tokens, value."""
        frames = []
        held = {name for arrays in self.sites.values() for name in arrays}
        if parts is not None and not set(parts) <= held:
            unknown = sorted(set(parts) - held)
            raise InputError(f"parts must be among those that were kept ({', '.join(sorted(held))}), got {unknown}")
        for kind, arrays in self.sites.items():
            for name in parts if parts is not None else arrays:
                if name in arrays:
                    frames.append(array_rows(arrays[name], site=kind, part=name))
        if not frames:
            kept = sorted({name for arrays in self.sites.values() for name in arrays})
            raise InputError(f"parts must be among those that were kept ({', '.join(kept)}), got {parts}")
        return tidy(frames)

    def to_captum(self) -> list[Any]:
        """Captum's records for `captum.attr.visualization.visualize_text`, one for each step; needs captum."""
        from normlens.viewer.other_viewers import to_captum

        return to_captum(self)

    def to_inseq(self) -> Any:
        """An inseq `FeatureAttributionOutput`, for its `show()` and its tools; needs inseq."""
        from normlens.viewer.other_viewers import to_inseq

        return to_inseq(self)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything to a Zarr folder, which `open_explanation` reads."""
        return save_explanation(self, path, overwrite=overwrite)

    # ---- pictures ------------------------------------------------------------------------------------------------

    def show(self, *, view: str = "") -> View:
        """See it: the viewer in a notebook, a page in the browser elsewhere.

        `view` opens a state of the page (what its address says after the `#`), such as `"view=flow"`.
        """
        from normlens.viewer.display import show
        from normlens.viewer.explanation_page import explanation_page

        tokens = sum(arrays["tokens"].sizes["key"] for arrays in self.sites.values() if "tokens" in arrays)
        return show(explanation_page(self), view, self.plot, tokens)

    def save_html(self, path: str | Path) -> Path:
        """Write the viewer as one HTML file that opens offline."""
        from normlens.viewer.explanation_page import explanation_page
        from normlens.viewer.page import save_html

        return save_html(explanation_page(self), path)

    def image_map(self, *, image: int = 0, site: str | None = None) -> xr.DataArray:
        """The signed terms of the patches of an image (row, column); steps are added.

        Args:
            image: The image, where there are several.
            site: The kind of site; by default the first with patches.

        Returns:
            The terms. Those of special positions (`[CLS]`) have no place in it.
        """
        from normlens.results.media import image_map, site_with_places

        tokens = {kind: arrays["tokens"] for kind, arrays in self.sum_of_steps().sites.items() if "tokens" in arrays}
        return image_map(tokens[site_with_places(tokens, site)], "key", image)

    def plot(
        self,
        *,
        words: bool = False,
        step: int | None = None,
        width: float = 6.6,
        image: Any = None,
        audio: Any = None,
        sampling_rate: int | None = None,
    ) -> Figure:
        """A figure for a paper: the text coloured by signed terms and the heads; `normlens.plots.save_figure` writes it.

        Args:
            words: Add the terms of each word's tokens.
            step: One of several steps (from 1), which are added without it.
            width: The width in inches.
            image: The image that was explained, over which the terms of its patches are drawn. It is embedded.
            audio: The sound that was explained, below whose waveform its terms are drawn.
            sampling_rate: Of samples; a file says so itself.
        """
        from normlens.plots.explanation import plot_explanation

        if image is not None:
            from normlens.plots.media import plot_on_image

            return plot_on_image(
                image,
                {f"{self.provenance.get('output') or 'direction'}"[:40]: self.image_map()},
                geometry=self.provenance.get("image_geometry"),
                signed=True,
                label="← lowers it    term of each patch    raises it →",
                provenance=self.provenance_line(),
            )
        if audio is not None:
            return self._plot_on_sound(audio, sampling_rate)

        return plot_explanation(self, words=words, step=step, width=width)

    def _plot_on_sound(self, audio: Any, sampling_rate: int | None) -> Figure:
        from normlens.inputs.media import read_sound
        from normlens.plots.media import plot_on_sound
        from normlens.results.media import site_with_places

        tokens = {kind: arrays["tokens"] for kind, arrays in self.sites.items() if "tokens" in arrays}
        array = tokens[site_with_places(tokens, None, sound=True)]
        rows = {}
        if "step" in array.dims:
            for number in range(min(array.sizes["step"], _MOST_ROWS)):
                one = array.isel(step=number)
                rows[f"{number + 1}. {readable(str(one['output_token'].values))}"] = one
        else:
            rows[str(self.provenance.get("output"))] = array
        rate = 16_000
        samples, _ = read_sound(audio, sampling_rate, rate)
        return plot_on_sound(samples, rate, rows, label="term", provenance=self.provenance_line())

    def _repr_html_(self) -> str:
        from normlens.viewer.inline_text import inline_html

        return inline_html(self)

    # ---- where it comes from -------------------------------------------------------------------------------------

    @property
    def _rule(self) -> str:
        """The attention rule and the baseline; results of earlier versions: from zero."""
        record = self.provenance
        return f"attention={record.get('attention', '?')}, baseline={record.get('baseline', 'zero')}"

    def provenance_line(self) -> str:
        """Return one line that says where the numbers come from."""
        return f"{self._model_line(f', {self._rule}')} · gap {self.proof.gap:.0e}"

    def cite(self) -> str:
        """BibTeX of the papers behind the terms, and a line on how they were made."""
        papers = references(["kobayashi2020", "kobayashi2021", "modarressi2023", "kobayashi2024"])
        versions = self.provenance.get("versions", {})
        model = self.provenance.get("model", {})
        made = f"% explained with normlens {versions.get('normlens')}: {model.get('name')}, {self._rule}"
        return f"{papers}\n\n{made}"

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        from normlens.results.tables import ExplanationTables

        yield ExplanationTables(self)

    def __repr__(self) -> str:
        names = self.provenance.get("output"), self.provenance.get("against")
        what = f"{names[0]!r}" if names[1] is None else f"{names[0]!r} against {names[1]!r}"
        sizes = " + ".join(f"{a['tokens'].sizes['key']} {kind}" for kind, a in self.sites.items() if "tokens" in a)
        value = f"{float(self.value):.3f}" if np.ndim(self.value) == 0 else f"{np.size(self.value)} steps"
        caution = f"; {self.warning}" if self.warning else ""
        return f"<Explanation of {what}: {value}; {sizes} positions; gap {self.proof.gap:.0e}{caution}>"


@dataclass(frozen=True)
class SiteExplanation:
    """The terms of one side of a model."""

    kind: str
    arrays: Mapping[str, xr.DataArray]

    def __getitem__(self, name: str) -> xr.DataArray:
        """Terms by their name."""
        if name not in self.arrays:
            raise InputError(
                f"{name!r} is not among the kept parts ({', '.join(self.arrays)}); ask for it with parts=[…], one "
                f"of {', '.join(PARTS)}"
            )
        return self.arrays[name]

    def at_step(self, step: int) -> SiteExplanation:
        """The terms of the tokens at one step, counted from 0."""
        return SiteExplanation(self.kind, {"tokens": self["tokens"].isel(step=step)})

    def by_word(self, name: str = "tokens") -> xr.DataArray:
        """Terms added over the subwords of each word: `word` on the last axis, with its text beside it."""
        words = self["tokens"]["key_word"].values
        order = list(dict.fromkeys(words.tolist()))
        strings = self["tokens"]["key_token"].values
        texts = ["".join(readable(str(s)) for s in strings[words == word]) for word in order]
        groups = [words == word for word in order]
        return self._added(name, groups, "word", {"word": order, "word_text": ("word", np.array(texts, dtype=object))})

    def by_span(self, spans: Mapping[str, tuple[int, int]], name: str = "tokens") -> xr.DataArray:
        """Terms added over spans of positions `(start, stop)`; they may overlap and need not cover all."""
        if not isinstance(spans, Mapping) or not spans:
            raise InputError(f"spans must be a mapping of names to (start, stop), got {spans!r}")
        count = self["tokens"].sizes["key"]
        groups = []
        for label, span in spans.items():
            start, stop = _span(label, span, count)
            groups.append((np.arange(count) >= start) & (np.arange(count) < stop))
        return self._added(name, groups, "span", {"span": list(spans)})

    def by_label(self, axis: str, labels: Sequence[str], named: Sequence[str], name: str = "tokens") -> xr.DataArray:
        """Terms added over the positions of each label; positions after the last label are `answer`.

        Args:
            axis: The name of the new axis.
            labels: The label of each position.
            named: All labels, in their order; one without a position has 0.
            name: The terms.
        """
        count = self["tokens"].sizes["key"]
        each = np.array([*labels, *[ANSWER] * (count - len(labels))], dtype=object)
        order = [*named, *(label for label in (REST, ANSWER) if label in each)]
        return self._added(name, [each == label for label in order], axis, {axis: order})

    def _added(self, name: str, groups: Sequence[Any], axis: str, coords: JsonMapping) -> xr.DataArray:
        array = self[name]
        if "key" not in array.dims:
            raise InputError(
                f"{name!r} has the axes {', '.join(map(str, array.dims))}, none of them positions to add over"
            )
        moved = array.transpose(..., "key")
        values = np.stack([moved.values[..., group].sum(-1) for group in groups], -1)
        kept = {str(k): v for k, v in moved.coords.items() if "key" not in v.dims}
        return xr.DataArray(values, dims=(*moved.dims[:-1], axis), coords={**kept, **coords}, name=name)


def save_explanation(explanation: Explanation, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write an explanation to a Zarr folder; an older one is replaced only if asked for, and only by a whole one."""
    target = Path(path)
    check_replaced(target, "a saved explanation", overwrite=overwrite, ours=is_explanation(target))
    labels = {
        kind: {name: _strings(array) for name, array in arrays.items()} for kind, arrays in explanation.sites.items()
    }
    value = explanation.value
    steps = None if np.ndim(value) == 0 else [float(v) for v in np.asarray(value)]
    record = {
        "format": _FORMAT,
        "value": float(value) if steps is None else steps,
        "proof": asdict(explanation.proof),
        "provenance": dict(explanation.provenance),
        "labels": labels,
    }
    with atomic_folder(target) as draft:
        plain = {
            f"/{kind}/{name}": array.drop_vars(list(labels[kind][name])).to_dataset(name="value")
            for kind, arrays in explanation.sites.items()
            for name, array in arrays.items()
        }
        tree = xr.DataTree.from_dict(plain)
        tree.attrs["normlens_explanation"] = json.dumps(record, ensure_ascii=False)
        write_tree(tree, draft)
    return target


def _strings(array: xr.DataArray) -> dict[str, tuple[list[str], list[Any]]]:
    # Strings stand in the record, not in arrays: Zarr has no settled type for strings of any length.
    return {str(n): (list(map(str, c.dims)), c.values.tolist()) for n, c in array.coords.items() if c.dtype == object}


def is_explanation(path: str | Path) -> bool:
    """Return True if a folder holds a saved explanation."""
    return "normlens_explanation" in attributes_of(path)


def open_explanation(path: str | Path) -> Explanation:
    """The explanation that `save` wrote to this folder."""
    if not is_explanation(path):
        raise InputError(f"{path} is no saved explanation; check the path")
    tree = read_tree(Path(path), "a saved explanation")
    try:
        record = json.loads(tree.attrs["normlens_explanation"])
        if record["format"] != _FORMAT:
            raise InputError(f"{path} has format {record['format']}, this version reads {_FORMAT}; update normlens?")
        return _read_back(tree, record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, StopIteration, RecursionError) as error:
        raise InputError(f"{path} lacks its value, proof or labels ({error}); make it again") from error


def _read_back(tree: xr.DataTree, record: JsonMapping) -> Explanation:
    sites: dict[str, dict[str, xr.DataArray]] = {}
    for kind, arrays in record["labels"].items():
        sites[kind] = {}
        for name, labels in arrays.items():
            node = tree[f"{kind}/{name}"]
            if not isinstance(node, xr.DataTree):
                raise TypeError(f"{kind}/{name} is no array")
            strings = {label: (axis, np.array(values, dtype=object)) for label, (axis, values) in labels.items()}
            array = node.to_dataset(inherit=False)["value"].assign_coords(strings)
            sites[kind][name] = array.rename(name)
    value = record["value"]
    if isinstance(value, list):
        steps = next(iter(sites.values()))["tokens"]
        coords = {"step": steps["step"].values, "output_token": ("step", steps["output_token"].values)}
        value = xr.DataArray(value, dims=("step",), coords=coords, name="value")
    return Explanation(sites, value, Proof(**record["proof"]), record["provenance"])


def _span(label: Any, span: Any, count: int) -> tuple[int, int]:
    """Return start and stop of a span within `count` positions."""
    whole = isinstance(span, Sequence) and not isinstance(span, str) and len(span) == 2
    if not whole or not all(isinstance(place, Integral) and not isinstance(place, bool) for place in span):
        raise InputError(f"span {label!r} must be two whole numbers (start, stop), got {span!r}")
    start, stop = (int(place) for place in span)
    if not 0 <= start < stop <= count:
        raise InputError(f"span {label!r} must lie within the {count} positions, got ({start}, {stop})")
    return start, stop
