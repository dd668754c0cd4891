"""A study of one translation model on sentence pairs with gold alignments: its alignment errors, all in per cent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from normlens.alignment.extraction import argmax_links, row_shares
from normlens.alignment.formats import AlignmentFile, check_indices, read_alignments
from normlens.alignment.gradient_baselines import check_methods, saliency
from normlens.alignment.layer_choice import SETTINGS, Agreement
from normlens.alignment.links import Annotation, Links
from normlens.alignment.pair_encoding import EncodedPair
from normlens.alignment.parallel_files import read_parallel
from normlens.alignment.scoring import corpus_counts
from normlens.alignment.word_maps import WordMapper, WordPooling
from normlens.errors import InputError
from normlens.io.checksums import file_digest
from normlens.io.writing import is_there
from normlens.lens import Lens
from normlens.measures.run import SiteResult
from normlens.options import Setting
from normlens.provenance import versions
from normlens.statistics import spearman
from normlens.types import Json

#: What stands for weights and norms: summed over heads, and head by head.
Quantity = Literal["weights", "norms"]
BY_LAYER: dict[Quantity, str] = {"weights": "attn_w", "norms": "attn_n"}
BY_HEAD: dict[Quantity, str] = {"weights": "alpha", "norms": "af_norm"}


def check_files(
    source: Path,
    target: Path,
    gold: Path,
    others: Mapping[str, tuple[Path, bool]],
    gradients: Sequence[str],
    limit: int | None,
) -> None:
    """Refuse, before a model is loaded, files that do not belong together, and gradients that nobody knows."""
    check_methods(gradients)
    for path in (source, target, gold, *(path for path, _ in others.values())):
        if is_there(path) and not path.is_file():
            raise InputError(f"{path} is no file, and is read several times; save it as one first")
    pairs = sum(1 for _ in islice(read_parallel(source, target), limit))
    for path in (gold, *(path for path, _ in others.values())):
        lines = len(read_alignments(path).lines[:limit])
        if lines != pairs:
            raise InputError(f"{path} has {lines} lines, the sentences have {pairs}")


@dataclass(frozen=True)
class TranslationStudy:
    """One model, its pairs and their gold alignments, with everything that decides the numbers.

    `others` are output files of other aligners by name, each with whether it is written target-source; they count words
    from 0. Gradients cost a sweep per target position: `gradient_pairs` takes only the first pairs for them.
    """

    lens: Lens
    source: Path
    target: Path
    gold: Path
    gold_one_based: bool = False
    gold_swap: bool = False
    others: Mapping[str, tuple[Path, bool]] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    gradient_samples: int = 1
    gradient_pairs: int | None = None
    limit: int | None = None
    batch_tokens: int = 2048
    progress: Callable[[int, int], None] | None = field(default=None, compare=False)

    @cached_property
    def mapper(self) -> WordMapper:
        """The model as it reads and force-decodes pairs."""
        return WordMapper(self.lens, batch_tokens=self.batch_tokens)

    @cached_property
    def pairs(self) -> list[EncodedPair]:
        """The pairs, encoded for the model."""
        lines = list(read_parallel(self.source, self.target))[: self.limit]
        return [self.mapper.encoder(*line) for line in lines]

    @cached_property
    def gold_links(self) -> tuple[Annotation, ...]:
        """The gold alignments, every link of them checked against its pair."""
        read = read_alignments(self.gold, one_based=self.gold_one_based, swap=self.gold_swap)
        truth: AlignmentFile = replace(read, lines=read.lines[: self.limit])
        check_indices(truth, [(len(p.source.words), len(p.target.words)) for p in self.pairs], "--gold-")
        if not any(line.sure for line in truth.lines):
            raise InputError(f"{self.gold} has no sure link in its {len(self.pairs)} lines, which AER needs")
        return truth.lines

    def errors(self) -> AlignmentErrors:
        """Measure every layer and head on every pair, in one forward pass each."""
        counting = _Counting(self.mapper, self.pairs, self.gold_links)
        done = 0
        for chosen in self.mapper.batches(self.pairs):
            counting.update(chosen)
            done += len(chosen)
            if self.progress is not None:
                self.progress(done, len(self.pairs))
        return counting.result()

    def gradient_errors(self) -> dict[str, GradientError]:
        """AER of the gradient baselines, read as `awo` by their nature."""
        pairs, gold = self.pairs[: self.gradient_pairs], self.gold_links[: self.gradient_pairs]
        return {method: self._gradient_error(method, pairs, gold) for method in self.gradients}

    def _gradient_error(self, method: str, pairs: Sequence[EncodedPair], gold: Sequence[Annotation]) -> GradientError:
        mapper, links = self.mapper, [frozenset[tuple[int, int]]()] * len(pairs)
        # A sweep holds the gradients of many target positions at once, so its batches are smaller.
        for chosen in mapper.batches(pairs, max(1, mapper.batch_tokens // 8)):
            pooling = WordPooling([pairs[i] for i in chosen], mapper.device)
            inputs = mapper.encoder.batch(pooling.pairs, mapper.device)
            pooled = pooling(saliency(mapper.lens.model, inputs, method, samples=self.gradient_samples), "awo").cpu()
            for place, index in enumerate(chosen):
                links[index] = argmax_links(pooling.one_pair(pooled, place).numpy())
        return GradientError(100 * corpus_counts(links, gold).aer, len(pairs), self.gradient_samples)

    def other_errors(self) -> dict[str, float]:
        """AER of the other aligners' output files."""
        read = {name: read_alignments(path, swap=turned).lines for name, (path, turned) in self.others.items()}
        return {
            name: 100 * corpus_counts([line.possible for line in lines[: self.limit]], self.gold_links).aer
            for name, lines in read.items()
        }

    def record(self, max_proof_error: float) -> Json:
        """The settings and what they were applied to, for the report."""
        files = {"source": self.source, "target": self.target, "gold": self.gold}
        return {
            "model": self.mapper.describe(),
            "data": f"{self.source.name}, {self.target.name}",
            "inputs": [{"path": str(path), "sha256": file_digest(path)} for path in files.values()],
            "pairs": len(self.pairs),
            "without_links": sum(pair.problem is not None for pair in self.pairs),
            "gold": self.gold.name,
            "max_proof_error": max_proof_error,
            "versions": versions(),
        }


@dataclass(frozen=True)
class GradientError:
    """AER of a gradient baseline, and on how many pairs and noisy samples it rests."""

    aer: float
    pairs: int
    samples: int


@dataclass(frozen=True)
class ChosenLayers:
    """The choice without gold: the layer that agrees most, and all layers that belong to the setting."""

    best_layer: int
    best: float
    auto_layers: tuple[int, ...]
    auto: float


@dataclass(frozen=True)
class AlignmentErrors:
    """AER of weights and of norms, by layer and by head, in both settings."""

    layers: tuple[int, ...]
    by_layer: dict[Setting, dict[Quantity, Float[np.ndarray, " layer"]]]
    by_head: dict[Setting, dict[Quantity, Float[np.ndarray, "layer head"]]]
    mean_norm: Float[np.ndarray, "layer head"]
    agreement: Agreement
    chosen: dict[Setting, ChosenLayers]
    #: Word maps of the summed heads in `awi`, by pair; None where a pair could not be aligned.
    maps: dict[Quantity, list[Float[np.ndarray, "layer target source_and_null"] | None]] = field(repr=False)
    max_proof_error: float

    def spearman(self, setting: Setting) -> float:
        """Rank correlation of a head's AER (by its norms) with its mean norm."""
        return spearman(self.by_head[setting]["norms"].ravel(), self.mean_norm.ravel())

    @property
    def largest_norm_head(self) -> tuple[int, int]:
        """Layer and head, from 1, with the largest mean norm."""
        row, column = np.unravel_index(int(self.mean_norm.argmax()), self.mean_norm.shape)
        return self.layers[int(row)], int(column) + 1

    def head_error(self, setting: Setting, layer: int, head: int) -> float:
        """AER of one head by its norms."""
        return float(self.by_head[setting]["norms"][self.layers.index(layer), head - 1])

    def layer_error(self, setting: Setting, layer: int) -> float:
        """AER of one layer by its norms."""
        return float(self.by_layer[setting]["norms"][self.layers.index(layer)])


class _Counting:
    """Counts links batch by batch; word maps of the summed heads are kept, those of single heads only counted."""

    def __init__(self, mapper: WordMapper, pairs: Sequence[EncodedPair], gold: Sequence[Annotation]) -> None:
        self.mapper, self.pairs, self.gold = mapper, pairs, gold
        self.counts: dict[tuple[Setting, str], Int[np.ndarray, "layer *head count"]] = {}
        self.maps: dict[tuple[Setting, str], list[Any]] = {
            (setting, measure): [None] * len(pairs) for setting in SETTINGS for measure in BY_LAYER.values()
        }
        self.norm_sum = np.zeros((len(mapper.layers), mapper.heads))
        self.cells = 0
        self.agreement = Agreement.empty(mapper.layers)
        self.max_proof_error = 0.0

    def update(self, chosen: Sequence[int]) -> None:
        """One batch of pairs, by their indices."""
        mapper = self.mapper
        pooling = WordPooling([self.pairs[i] for i in chosen], mapper.device)
        names = [*BY_LAYER.values(), *BY_HEAD.values()]
        pooled: dict[tuple[Setting, str], list[torch.Tensor]] = {(s, n): [] for s in SETTINGS for n in names}

        def take(result: SiteResult) -> None:
            place = mapper.layers.index(result.layer)
            real = (result.query_mask.unsqueeze(-1) & result.key_mask.unsqueeze(1)).to(mapper.device)
            norms = result.values["af_norm"] * real.unsqueeze(1)
            self.norm_sum[place] += norms.sum((0, 2, 3)).double().cpu().numpy()
            self.cells += int(real.sum()) if place == 0 else 0
            self.max_proof_error = max(self.max_proof_error, float(result.proof.max()))
            for setting, name in pooled:
                pooled[setting, name].append(pooling(result.values[name], setting).cpu())

        mapper.measure_batch(pooling.pairs, take, measures=names)
        for place, index in enumerate(chosen):
            line, pair = self.gold[index], self.pairs[index]
            sure, possible = (_cells(links, len(pair.rows), len(pair.columns)) for links in (line.sure, line.possible))
            for key, by_layer in pooled.items():
                maps = np.stack([pooling.one_pair(one, place).numpy() for one in by_layer])
                counted = _count(maps, sure, possible)
                self.counts[key] = self.counts[key] + counted if key in self.counts else counted
                if key in self.maps:
                    self.maps[key][index] = maps
            awi, awo = (self.maps[setting, "attn_n"][index] for setting in SETTINGS)
            self.agreement = self.agreement + Agreement.of(mapper.layers, awi, awo)

    def result(self) -> AlignmentErrors:
        """Everything that was counted."""
        return AlignmentErrors(
            self.mapper.layers,
            {s: {what: self._errors(s, name) for what, name in BY_LAYER.items()} for s in SETTINGS},
            {s: {what: self._errors(s, name) for what, name in BY_HEAD.items()} for s in SETTINGS},
            self.norm_sum / self.cells,
            self.agreement,
            {setting: self._chosen(setting) for setting in SETTINGS},
            {what: self.maps["awi", name] for what, name in BY_LAYER.items()},
            self.max_proof_error,
        )

    def _errors(self, setting: Setting, measure: str) -> Float[np.ndarray, "layer ..."]:
        counts = self.counts[setting, measure]
        links, sure = counts[..., 0], sum(len(line.sure) for line in self.gold)
        errors: Float[np.ndarray, "layer ..."] = 100 * (1 - (counts[..., 1] + counts[..., 2]) / (links + sure))
        return errors

    def _chosen(self, setting: Setting) -> ChosenLayers:
        best, auto = self.agreement.best(setting), self.agreement.auto(setting)
        return ChosenLayers(best, self._joint_error(setting, (best,)), auto, self._joint_error(setting, auto))

    def _joint_error(self, setting: Setting, layers: Sequence[int]) -> float:
        places = [self.mapper.layers.index(layer) for layer in layers]
        links: list[Links] = [
            frozenset() if maps is None else argmax_links(row_shares(maps[places]).sum(0))
            for maps in self.maps[setting, "attn_n"]
        ]
        return 100 * corpus_counts(links, self.gold).aer


def _cells(links: Links, targets: int, sources: int) -> Bool[np.ndarray, "target source_and_null"]:
    cells = np.zeros((targets, sources + 1), bool)
    for source, target in links:
        cells[target, source] = True
    return cells


def _count(
    maps: Float[np.ndarray, "*any target source_and_null"],
    sure: Bool[np.ndarray, "target source_and_null"],
    possible: Bool[np.ndarray, "target source_and_null"],
) -> Int[np.ndarray, "*any three"]:
    """Links, links that are sure and links that are possible, of the arg-max of every map."""
    best = maps.argmax(-1)
    linked = (best < maps.shape[-1] - 1) & (maps.max(-1) > 0)
    rows = np.arange(maps.shape[-2])
    return np.stack(
        [linked.sum(-1), (sure[rows, best] & linked).sum(-1), (possible[rows, best] & linked).sum(-1)], axis=-1
    )
