"""The 2020 paper's second experiment: word alignment from the norms of cross-attention, scored by AER.

For any translation model, sentence pairs and gold alignments: AER of attention weights against norms, layer by layer
and head by head, in both settings; how a head's mean norm goes with its AER; the automatic choice of layers; gradient
baselines on the same model; other aligners from their output files. Measured stands next to published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int

from normlens.alignment.direction import Direction
from normlens.alignment.extract import argmax_links, shares
from normlens.alignment.forcing import ForcedPair, WordPooling
from normlens.alignment.formats import check_indices, read_alignments
from normlens.alignment.gradients import saliency
from normlens.alignment.layers import SETTINGS, Agreement
from normlens.alignment.links import Annotation, Links
from normlens.alignment.scoring import Counts, corpus_counts
from normlens.alignment.streams import read_parallel
from normlens.errors import InputError
from normlens.lens import Lens, load
from normlens.provenance import versions

#: AER in per cent. `v1` is Table 3 of arXiv 2004.10102v1 (WMT16 de-en), `emnlp` the authors' run for the EMNLP version
#: (Europarl de-en, 5 seeds); both score on the 508 RWTH pairs.
PUBLISHED: dict[str, Any] = {
    "v1": {
        "weights": {"best": 51.9, "mean": 81.4},
        "norms": {"best": 28.3, "mean": 61.6},
        "others": {"SmoothGrad (Li)": 36.4, "SmoothGrad (Ding)": 36.4, "fast_align": 28.4, "GIZA++": 21.0},
    },
    "emnlp": {
        "awo": {
            "weights": {"best": 47.74, "mean": 68.43, "layers": [92.2, 86.5, 63.2, 55.6, 48.4, 64.8]},
            "norms": {"best": 41.36, "mean": 62.86, "layers": [87.9, 83.0, 61.7, 49.2, 41.4, 53.9]},
            "spearman": 0.556,
            "highest_norm_head": 87.09,
        },
        "awi": {
            "weights": {"best": 29.77, "mean": 68.54, "layers": [49.3, 29.8, 56.4, 91.7, 91.2, 93.0]},
            "norms": {"best": 24.98, "mean": 60.45, "layers": [32.5, 25.0, 51.7, 85.2, 83.5, 84.8]},
            "spearman": -0.436,
            "highest_norm_head": 35.53,
        },
    },
}
#: What stands for "weights" and "norms": summed over heads, and head by head.
BY_LAYER = {"weights": "attn_w", "norms": "attn_n"}
BY_HEAD = {"weights": "alpha", "norms": "af_norm"}
GRADIENTS = {"li": "Li et al. 2016", "ding": "gradient x input, Ding et al. 2019"}


@dataclass(frozen=True)
class Example:
    """One pair for a picture: maps of all layers in one setting, and its gold links."""

    line: int
    source: tuple[str, ...]
    target: tuple[str, ...]
    setting: str
    maps: dict[str, Float[np.ndarray, "layer target source_and_null"]]
    gold: Annotation


@dataclass(frozen=True)
class NmtReport:
    """Everything measured, AER in per cent; `to_dict` is what `--json` writes."""

    model: str
    pairs: int
    layers: tuple[int, ...]
    by_layer: dict[str, dict[str, list[float]]]
    by_head: dict[str, dict[str, Float[np.ndarray, "layer head"]]]
    mean_norm: Float[np.ndarray, "layer head"]
    agreement: Agreement
    automatic: dict[str, dict[str, Any]]
    others: dict[str, float]
    gradients: dict[str, dict[str, Any]]
    examples: tuple[Example, ...] = field(repr=False)

    def spearman(self, setting: str) -> float:
        """Rank correlation of a head's AER (by its norms) with its mean norm."""
        ranks = [pd.Series(values.ravel()).rank() for values in (self.by_head[setting]["norms"], self.mean_norm)]
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])

    def highest_norm_head(self, setting: str) -> tuple[int, int, float]:
        """Layer, head and AER of the head with the largest mean norm."""
        row, column = np.unravel_index(int(self.mean_norm.argmax()), self.mean_norm.shape)
        return self.layers[int(row)], int(column) + 1, float(self.by_head[setting]["norms"][row, column])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, published numbers beside the measured ones."""
        return {
            "experiment": "kobayashi2020-nmt",
            "model": self.model,
            "pairs": self.pairs,
            "layers": list(self.layers),
            "aer_by_layer": self.by_layer,
            "aer_by_head": {s: {m: v.tolist() for m, v in by.items()} for s, by in self.by_head.items()},
            "mean_norm": self.mean_norm.tolist(),
            "spearman": {setting: self.spearman(setting) for setting in SETTINGS},
            "highest_norm_head": {setting: self.highest_norm_head(setting) for setting in SETTINGS},
            "agreement": {setting: self.agreement.scores(setting) for setting in SETTINGS},
            "automatic": self.automatic,
            "others": self.others,
            "gradients": self.gradients,
            "published": PUBLISHED,
            "versions": versions(),
        }

    def text(self) -> str:
        """The tables for people."""
        lines = [f"kobayashi2020-nmt: {self.model}, {self.pairs} pairs, AER in per cent"]
        for setting in SETTINGS:
            lines += ["", f"{setting}   layer " + " ".join(f"{layer:>6}" for layer in self.layers) + "    best   mean"]
            for what in BY_LAYER:
                values, known = self.by_layer[setting][what], PUBLISHED["emnlp"][setting][what]
                lines.append(_row(what, values, min(values), float(np.mean(values))))
                lines.append(_row("  published", known["layers"], known["best"], known["mean"]))
            layer, head, value = self.highest_norm_head(setting)
            known = PUBLISHED["emnlp"][setting]
            lines.append(
                f"Spearman of a head's AER and mean norm {self.spearman(setting):.3f} (published {known['spearman']}); "
                f"head with the largest mean norm: layer {layer} head {head}, AER {value:.1f} "
                f"(published {known['highest_norm_head']}), its whole layer "
                f"{self.by_layer[setting]['norms'][self.layers.index(layer)]:.2f}"
            )
            chosen = self.automatic[setting]
            lines.append(
                f"chosen without gold: best layer {chosen['best_layer']}, AER {chosen['best']:.2f}; "
                f"layers {', '.join(map(str, chosen['auto_layers']))} together, AER {chosen['auto']:.2f}"
            )
        lines += ["", self.agreement.table("awi")]
        if self.gradients or self.others:
            lines.append("")
        for name, row in self.gradients.items():
            lines.append(f"{name}: AER {row['aer']:.2f} on {row['pairs']} pairs, {row['samples']} sample(s)")
        lines += [f"{name}: AER {value:.2f}" for name, value in self.others.items()]
        lines.append("published, v1: " + ", ".join(f"{k} {v}" for k, v in PUBLISHED["v1"]["others"].items()))
        return "\n".join(lines)


def _row(name: str, values: Sequence[float], best: float, mean: float) -> str:
    return f"{name:<12}" + " ".join(f"{value:6.1f}" for value in values) + f"  {best:6.1f} {mean:6.1f}"


def run(
    *,
    model: str | Path | Lens,
    source: Path | str,
    target: Path | str,
    gold: Path | str,
    gold_one_based: bool = False,
    gold_swap: bool = False,
    others: Mapping[str, tuple[Path | str, bool]] | None = None,
    gradients: Sequence[str] = (),
    gradient_samples: int = 1,
    gradient_pairs: int | None = None,
    figures: Path | str | None = None,
    examples: int = 7,
    limit: int | None = None,
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> NmtReport:
    """Run the experiment; with `figures`, pictures and `report.json` go into that folder.

    `others` are output files of other aligners by name, each with whether it is written target-source; they count words
    from 0. Gradients cost a sweep per target position: `gradient_pairs` takes only the first pairs for them.
    """
    lens = model if isinstance(model, Lens) else load(model)
    direction = Direction(lens, batch_tokens=batch_tokens)
    lines = list(read_parallel(Path(source), Path(target)))[:limit]
    pairs = [direction.forcing(*line) for line in lines]
    truth = read_alignments(gold, one_based=gold_one_based, swap=gold_swap)
    if limit is None:
        check_indices(truth, [(len(p.source.words), len(p.target.words)) for p in pairs], "--gold-")
    wanted = truth.lines[: len(pairs)]
    if not any(line.sure for line in wanted):
        raise InputError(f"AER needs at least one sure gold link: {gold} has none in the first {len(pairs)} lines.")
    measured = _Measured(direction, pairs, wanted)
    measured.run(progress)
    rows = {
        name: 100
        * corpus_counts([line.possible for line in read_alignments(path, swap=turned).lines][:limit], wanted).aer
        for name, (path, turned) in (others or {}).items()
    }
    report = NmtReport(
        model=Path(str(lens.model.config._name_or_path)).name or type(lens.model).__name__,  # type: ignore[union-attr]
        pairs=len(pairs),
        layers=direction.layers,
        by_layer={s: {m: [100 * v for v in measured.aer(s, BY_LAYER[m])] for m in BY_LAYER} for s in SETTINGS},
        by_head={s: {m: 100 * np.array(measured.aer(s, BY_HEAD[m])) for m in BY_HEAD} for s in SETTINGS},
        mean_norm=measured.norm_sum / measured.norm_count,
        agreement=measured.agreement,
        automatic={setting: measured.automatic(setting) for setting in SETTINGS},
        others=rows,
        gradients={
            GRADIENTS.get(method, method): _gradient_row(
                direction, pairs[:gradient_pairs], wanted[:gradient_pairs], method, gradient_samples
            )
            for method in gradients
        },
        examples=measured.examples(examples),
    )
    if figures is not None:
        draw(report, Path(figures))
    return report


class _Measured:
    """One pass over the pairs; word-level maps of the summed heads are kept, those of single heads only counted."""

    def __init__(self, direction: Direction, pairs: Sequence[ForcedPair], gold: Sequence[Annotation]) -> None:
        self.direction, self.pairs, self.gold = direction, pairs, gold
        self.sure = sum(len(line.sure) for line in gold)
        self.counts: dict[tuple[str, str], Int[np.ndarray, "layer *head count"]] = {}
        self.maps: dict[tuple[str, str], list[Any]] = {
            (s, m): [None] * len(pairs) for s in SETTINGS for m in BY_LAYER.values()
        }
        heads = next(site.heads for site in direction.lens.anatomy.sites if site.kind == "cross")
        self.norm_sum = np.zeros((len(direction.layers), heads))
        self.norm_count = 0
        self.agreement = Agreement.empty(direction.layers)

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        done = 0
        for chosen in self.direction.batches(self.pairs):
            self._batch(chosen)
            done += len(chosen)
            if progress is not None:
                progress(done, len(self.pairs))

    def _batch(self, chosen: list[int]) -> None:
        direction = self.direction
        batch = [self.pairs[i] for i in chosen]
        pooling = WordPooling(batch, direction.device)
        names = [*BY_LAYER.values(), *BY_HEAD.values()]
        pooled: dict[tuple[str, str], list[torch.Tensor]] = {(s, n): [] for s in SETTINGS for n in names}
        results = direction.lens.stream_inputs(
            direction.forcing.inputs(batch, direction.device), measures=names, mixing=[], sites=["cross"]
        )
        for place, result in enumerate(results):
            real = (result.query_mask.unsqueeze(-1) & result.key_mask.unsqueeze(1)).to(direction.device)
            norms = result.values["af_norm"] * real.unsqueeze(1)
            self.norm_sum[place] += norms.sum((0, 2, 3)).double().cpu().numpy()
            self.norm_count += int(real.sum()) if place == 0 else 0
            for name in names:
                for setting in SETTINGS:
                    pooled[setting, name].append(pooling(result.values[name], setting).cpu())
        for place, index in enumerate(chosen):
            line = self.gold[index]
            shape = len(batch[place].rows), len(batch[place].columns)
            sure, possible = _cells(line.sure, shape), _cells(line.possible, shape)
            for key, by_layer in pooled.items():
                maps = np.stack([pooling.cut(one, place).numpy() for one in by_layer])
                counted = _count(maps, sure, possible)
                self.counts[key] = self.counts[key] + counted if key in self.counts else counted
                if key in self.maps:
                    self.maps[key][index] = maps
            norms_awi, norms_awo = (self.maps[s, "attn_n"][index] for s in ("awi", "awo"))
            self.agreement = self.agreement + Agreement.of(direction.layers, norms_awi, norms_awo)

    def aer(self, setting: str, measure: str) -> Any:
        """AER for every layer (and head), as nested lists."""
        counts = self.counts[setting, measure]
        return (1 - (counts[..., 1] + counts[..., 2]) / (counts[..., 0] + self.sure)).tolist()

    def automatic(self, setting: str) -> dict[str, Any]:
        """AER of what is chosen without gold: the best layer, and the automatic layers together."""
        layers = self.direction.layers
        best, auto = self.agreement.best(setting), self.agreement.auto(setting)
        found = {}
        for name, chosen in (("best", (best,)), ("auto", auto)):
            places = [layers.index(layer) for layer in chosen]
            links: list[Links] = [
                frozenset() if maps is None else argmax_links(shares(maps[places]).sum(0))
                for maps in self.maps[setting, "attn_n"]
            ]
            found[name] = 100 * corpus_counts(links, self.gold).aer
        return {"best_layer": best, "auto_layers": list(auto), **found}

    def examples(self, count: int) -> tuple[Example, ...]:
        """The first pairs of 5 to 14 words a side that have a map, for pictures."""
        fitting = [
            i
            for i, pair in enumerate(self.pairs)
            if pair.problem is None and all(5 <= len(side.words) <= 14 for side in (pair.source, pair.target))
        ]
        return tuple(
            Example(
                i + 1,
                self.pairs[i].source.words,
                self.pairs[i].target.words,
                "awi",
                {what: self.maps["awi", measure][i] for what, measure in BY_LAYER.items()},
                self.gold[i],
            )
            for i in fitting[:count]
        )


def _cells(links: Links, shape: tuple[int, int]) -> Bool[np.ndarray, "target source_and_null"]:
    cells = np.zeros((shape[0], shape[1] + 1), bool)
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


def _gradient_row(
    direction: Direction, pairs: Sequence[ForcedPair], gold: Sequence[Annotation], method: str, samples: int
) -> dict[str, Any]:
    counts = sum((Counts.of(frozenset(), line) for line in gold), Counts())
    # A sweep holds the gradients of many target positions at once, so its batches are smaller.
    for chosen in direction.batches(pairs, max(1, direction.batch_tokens // 8)):
        batch = [pairs[i] for i in chosen]
        inputs = direction.forcing.inputs(batch, direction.device)
        pooling = WordPooling(batch, direction.device)
        pooled = pooling(saliency(direction.lens.model, inputs, method, samples=samples), "awo").cpu()
        for place, index in enumerate(chosen):
            found = Counts.of(argmax_links(pooling.cut(pooled, place).numpy()), gold[index])
            counts = counts + Counts(found.links, 0, found.links_in_sure, found.links_in_possible)
    return {"aer": 100 * counts.aer, "pairs": len(pairs), "samples": samples}


def draw(report: NmtReport, folder: Path) -> None:
    """Figures 7 and 8 (the first two examples), 13-17 (the others), AER by layer, and heads; and `report.json`."""
    from normlens.plots import alignment as plots

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=1), encoding="utf-8")
    caption = f"{report.model} · {report.pairs} pairs · normlens {versions()['normlens']}"
    pictures = {
        "aer-by-layer": plots.layer_curves(report.by_layer, report.layers, caption),
        "heads": plots.head_tables(report.by_head["awi"]["norms"], report.mean_norm, report.layers, caption),
    }
    numbers = [7, 8, 13, 14, 15, 16, 17]
    best = report.agreement.best("awi")
    for number, example in zip(numbers, report.examples, strict=False):
        maps = {what: shares(values[report.layers.index(best)]) for what, values in example.maps.items()}
        pictures[f"figure-{number:02}"] = plots.soft_alignments(
            maps,
            example.source,
            example.target,
            {what: argmax_links(scores) for what, scores in maps.items()},
            example.gold.sure,
            example.gold.possible,
            f"line {example.line} · awi · layer {best} · {caption}",
        )
    for name, figure in pictures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
