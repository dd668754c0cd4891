"""Designs of the aligner beside each other, from the same forward passes: error rate, precision, recall.

    python -m benchmarks.alignment_designs --source test.en --target test.fr --gold alignment.talp --gold-one-based \\
        --first 300 --model opus-mt-en-fr --reverse-model opus-mt-fr-en --explain 4

The table of docs/alignment.md: nothing here is fitted, but a choice among many rows is a choice by gold, so pass only those
pairs that may be chosen on. `--final` measures the default alone, on the pairs after the first `--skip`, with how often the
links of each confidence are right. `--explain 4` adds the terms of `explain` on every fourth pair: a backward pass for each
target subword, about a minute for 20 pairs and a model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from normlens.alignment.aligner import Aligner
from normlens.alignment.extraction import (
    cell_shares,
    confidence,
    extract_joint_links,
    joined_views,
    mutual_links,
    share_links,
)
from normlens.alignment.formats import read_alignments
from normlens.alignment.links import Annotation, Links
from normlens.alignment.pair_encoding import EncodedPair
from normlens.alignment.scoring import corpus_counts
from normlens.alignment.word_maps import WordMapper, WordPooling
from normlens.measures.request import Request
from normlens.measures.run import SiteResult

#: Maps of one direction, by what they are; the views of each stand first, the extra column last.
Seen = Mapping[str, np.ndarray]
MEASURES = ("attn_n", "attn_w", "alti", "af_norm")


@dataclass(frozen=True)
class Pair:
    """One pair as both models see it; a map of the reverse model has source words as rows."""

    forward: Seen
    reverse: Seen

    def views(self, name: str = "attn_n", null: bool = False) -> np.ndarray:
        """All views' `p q`, target words as rows; `null`: the extra column has a share of the rows."""
        one, other = (shares(maps[name], null) for maps in (self.forward, self.reverse))
        return np.concatenate([one, other.swapaxes(-1, -2)])

    def nothing(self) -> np.ndarray:
        """The extra column's share, of a target word and of a source word, multiplied for each cell."""
        one, other = (mean(maps["attn_n"][..., -1] / maps["attn_n"].sum(-1)) for maps in (self.forward, self.reverse))
        return np.asarray(np.sqrt((1 - one)[:, None] * (1 - other)))


def shares(maps: np.ndarray, null: bool = False) -> np.ndarray:
    """Each cell's share of its row times its share of its column, words only."""
    words = maps[..., :-1]
    across, down = (maps if null else words).sum(-1, keepdims=True), words.sum(-2, keepdims=True)
    found = np.zeros_like(words)
    np.divide(words**2, across * down, out=found, where=across * down > 0)
    return found


def mean(views: np.ndarray, at: float = 0.0) -> np.ndarray:
    """The power mean over views; 0 is the geometric one."""
    views = np.maximum(views, 1e-12)
    return np.asarray(np.exp(np.log(views).mean(0)) if at == 0 else (views**at).mean(0) ** (1 / at))


def both(joint: np.ndarray, nothing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """A cell's share of its row and of its column; `nothing` is a mass that takes part in each."""
    across, down = (joint.sum(axis, keepdims=True) + nothing for axis in (1, 0))
    return joint / np.maximum(across, 1e-300), joint / np.maximum(down, 1e-300)


def cells(chosen: np.ndarray) -> Links:
    """True cells as links."""
    return frozenset((int(source), int(target)) for target, source in np.argwhere(chosen))


def geometric(joint: np.ndarray, threshold: float = 0.5) -> Links:
    """The rule until 0.2: `sqrt(p q)` above one half."""
    p, q = both(joint)
    return cells(np.sqrt(p * q) > threshold)


def grown(joint: np.ndarray, threshold: float) -> Links:
    """Links of several words: a majority of its row or column joins where a neighbour in it is linked already."""
    p, q = both(joint)
    linked = np.zeros(np.add(joint.shape, 2), bool)
    linked[1:-1, 1:-1] = np.sqrt(p * q) > 0.5
    while True:
        beside = linked[:-2, 1:-1] | linked[2:, 1:-1] | linked[1:-1, :-2] | linked[1:-1, 2:]
        new = beside & (np.maximum(p, q) > threshold) & ~linked[1:-1, 1:-1]
        if not new.any():
            return cells(linked[1:-1, 1:-1])
        linked[1:-1, 1:-1] |= new


def around(joint: np.ndarray) -> np.ndarray:
    """What a cell and its eight neighbours have together."""
    wide = np.pad(joint, 1)
    rows, columns = joint.shape
    places = [(a, b) for a in range(3) for b in range(3)]
    return np.asarray(sum(wide[a : a + rows, b : b + columns] for a, b in places))


def with_others(pair: Pair, name: str, weight: float) -> np.ndarray:
    """The joined map with other views, at a weight."""
    return np.asarray(mean(pair.views()) ** (1 - weight) * mean(pair.views(name)) ** weight)


def _joint(pair: Pair) -> np.ndarray:
    return mean(pair.views())


DESIGNS: dict[str, Callable[[Pair], Links]] = {
    "mean share of row and column above 0.5 (default)": lambda pair: share_links(_joint(pair)),
    "the same, en→fr alone": lambda pair: share_links(joined_views(pair.forward["attn_n"])),
    "the same, fr→en alone": lambda pair: share_links(joined_views(pair.reverse["attn_n"]).T),
    "geometric mean of the shares above 0.5 (until 0.2)": lambda pair: geometric(_joint(pair)),
    "the same, en→fr alone ": lambda pair: geometric(joined_views(pair.forward["attn_n"])),
    "the same, fr→en alone ": lambda pair: geometric(joined_views(pair.reverse["attn_n"]).T),
    "the smaller share above 0.5": lambda pair: cells(np.minimum(*both(_joint(pair))) > 0.5),
    "the larger share above 0.5": lambda pair: cells(np.maximum(*both(_joint(pair))) > 0.5),
    "mutual arg-max": lambda pair: mutual_links(_joint(pair)),
    "null: in the views' rows": lambda pair: share_links(mean(pair.views(null=True))),
    "null: shares times what the extra columns leave": lambda pair: cells(
        np.mean(both(_joint(pair)), axis=0) * pair.nothing() > 0.5
    ),
    "null: the mass of a cell that knows nothing, 1/(rows · columns)": lambda pair: cells(
        np.mean(both(_joint(pair), 1 / _joint(pair).size), axis=0) > 0.5
    ),
    "several words: row or column majority beside a link": lambda pair: grown(_joint(pair), 0.5),
    "several words: the same above 0.6": lambda pair: grown(_joint(pair), 0.6),
    "neighbours: times the sum of the cells around": lambda pair: share_links(_joint(pair) * around(_joint(pair))),
    "directions: both have the row's or the column's majority": lambda pair: cells(
        np.any([np.min([_majority(pair, axis, d) for d in (0, 1)], axis=0) > 0.5 for axis in (0, 1)], axis=0)
        | (np.mean(both(_joint(pair)), axis=0) > 0.5)
    ),
    "views: median": lambda pair: share_links(np.median(pair.views(), axis=0)),
    "views: without the highest and the lowest": lambda pair: share_links(mean(np.sort(pair.views(), 0)[1:-1])),
    "views: power mean 0.5": lambda pair: share_links(mean(pair.views(), 0.5)),
    "weights instead of norms": lambda pair: share_links(mean(pair.views("attn_w"))),
    "ALTI instead of norms": lambda pair: share_links(mean(pair.views("alti"))),
    "weights' views at a quarter": lambda pair: share_links(with_others(pair, "attn_w", 0.25)),
    "ALTI's views at a quarter": lambda pair: share_links(with_others(pair, "alti", 0.25)),
    "`awo` layers as views at a quarter": lambda pair: share_links(with_others(pair, "awo", 0.25)),
    "every head of the layers a view": lambda pair: share_links(mean(pair.views("af_norm"))),
    "a quarter of the map through the encoder's ALTI rollout": lambda pair: share_links(mean(pair.views("rolled"))),
}
EXPLAINED: dict[str, Callable[[Pair], Links]] = {
    "these pairs: default": lambda pair: share_links(_joint(pair)),
    "these pairs: `explain` alone": lambda pair: share_links(mean(pair.views("explain"))),
    "these pairs: `explain` alone, mutual arg-max": lambda pair: extract_joint_links(mean(pair.views("explain"))),
    "these pairs: `explain` as a view, at a tenth": lambda pair: share_links(with_others(pair, "explain", 0.1)),
    "these pairs: `explain` as a view, at a quarter": lambda pair: share_links(with_others(pair, "explain", 0.25)),
}


def _majority(pair: Pair, axis: int, direction: int) -> np.ndarray:
    joint = joined_views(pair.forward["attn_n"]) if direction == 0 else joined_views(pair.reverse["attn_n"]).T
    return both(joint)[axis]


def seen(mapper: WordMapper, pairs: Sequence[EncodedPair], chosen: Sequence[int], others: Sequence[int]) -> list[Seen]:
    """The maps of one direction: of the chosen layers, and of the others read as `awo`."""
    found: dict[int, Seen] = {}
    for batch in mapper.batches(pairs, 2048):
        found.update(zip(batch, _seen_batch(mapper, [pairs[i] for i in batch], chosen, others), strict=True))
    return [found[i] for i in range(len(pairs))]


def _seen_batch(
    mapper: WordMapper, rows: Sequence[EncodedPair], chosen: Sequence[int], others: Sequence[int]
) -> list[Seen]:
    pooling, rolled = WordPooling(rows, mapper.device), _rolled(mapper, rows)
    views: dict[str, list[torch.Tensor]] = {name: [] for name in (*MEASURES, "awo", "rolled")}

    def take(result: SiteResult) -> None:
        values = result.values["attn_n"]
        if result.layer in others:
            views["awo"].append(pooling(values, "awo"))
        if result.layer in chosen:
            for name in MEASURES[:-1]:
                views[name].append(pooling(result.values[name], "awi"))
            views["af_norm"] += list(pooling(result.values["af_norm"], "awi").unbind(1))
            views["rolled"].append(pooling(0.75 * values + 0.25 * values @ rolled.to(values), "awi"))

    mapper.measure_batch(rows, take, measures=MEASURES)
    return [
        {
            name: np.stack([pooling.one_pair(one, place).double().numpy() for one in some])
            for name, some in views.items()
        }
        for place in range(len(rows))
    ]


def _rolled(mapper: WordMapper, rows: Sequence[EncodedPair]) -> torch.Tensor:
    """What each source position of the encoder's end has of each source token, by ALTI's rollout."""
    maps: list[torch.Tensor] = []
    request = Request.of(mapper.lens.anatomy, measures=["alti"], mixing=[], sites=["encoder"])
    inputs = mapper.encoder.batch(rows, mapper.device)
    mapper.lens.run(inputs, request, lambda result, block: maps.append(result.values["alti"].double()))
    product = torch.eye(maps[0].shape[-1], dtype=torch.float64)
    for layer in maps:
        product = torch.nan_to_num(layer / layer.sum(-1, keepdim=True)) @ product
    return product


def explained(mapper: WordMapper, pair: EncodedPair) -> np.ndarray:
    """What each source word gave to the logit of each target word's subwords, where it speaks for it."""
    ids = pair.decoder_ids
    inputs = mapper.encoder.batch([pair], mapper.device)
    rows = []
    for place in range(len(ids) - 1):
        (one,) = mapper.lens.explain_inputs(inputs, output=ids[place + 1], position=place, parts=["tokens"])
        rows.append(torch.from_numpy(one.site("encoder")["tokens"].values.copy()))
    terms = torch.stack([*rows, torch.zeros(len(pair.source_ids), dtype=torch.float64)])
    pooling = WordPooling([pair], mapper.device)
    return pooling.one_pair(pooling(terms.clamp(min=0).unsqueeze(0), "awo"), 0).double().numpy()[None]


def table(designs: Mapping[str, Callable[[Pair], Links]], pairs: Sequence[Pair], gold: Sequence[Annotation]) -> None:
    """One row for each design."""
    for name, design in designs.items():
        counts = corpus_counts([design(pair) for pair in pairs], gold)
        figures = " | ".join(
            f"{100 * x:.{n}f}" for x, n in ((counts.aer, 2), (counts.precision, 1), (counts.recall, 1))
        )
        print(f"| {name} | {figures} |", flush=True)


def calibration(joints: Sequence[np.ndarray], gold: Sequence[Annotation]) -> None:
    """How often links are right, by what their confidence says, in four parts of equal size; and a logistic fit."""
    said, share, right = [], [], []
    for joint, known in zip(joints, gold, strict=True):
        strength = cell_shares(joint)
        for source, target in share_links(joint):
            share.append(float(strength[target, source]))
            said.append(confidence(share[-1]))
            right.append((source, target) in known.possible)
    order = np.argsort(said)
    for part in np.array_split(order, 4):
        values, found = np.array(said)[part], np.array(right)[part]
        print(f"said {values.min():.3f} to {values.max():.3f} (mean {values.mean():.3f}), right {found.mean():.3f}")
    logit = np.log(np.array(share) / np.maximum(1e-6, 1 - np.array(share)))
    inputs, wanted, weights = np.stack([np.ones_like(logit), logit], 1), np.array(right, float), np.zeros(2)
    for _ in range(50):  # Newton's method
        chance = 1 / (1 + np.exp(-inputs @ weights))
        curvature = inputs.T @ (inputs * (chance * (1 - chance))[:, None])
        weights = weights + np.linalg.solve(curvature, inputs.T @ (wanted - chance))
    print(
        f"all: said {np.mean(said):.3f}, right {np.mean(right):.3f}; fit {weights[0]:.2f} + {weights[1]:.2f} logit x\n"
    )


def main() -> None:
    """Run both models once, then every design."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "target", "gold"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--gold-one-based", action="store_true")
    parser.add_argument("--first", type=int, help="only so many pairs, from the beginning")
    for name in ("model", "reverse-model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--explain", type=int, help="also explain on one in so many pairs")
    parser.add_argument("--skip", type=int, default=0, help="without so many pairs at the beginning of those")
    parser.add_argument("--final", action="store_true", help="the default alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    gold = read_alignments(given.gold, one_based=given.gold_one_based).lines[: given.first]
    lines = [path.read_text(encoding="utf-8").split("\n")[: len(gold)] for path in (given.source, given.target)]
    aligner = Aligner(given.model, reverse=given.reverse_model)
    aligner.choose_layers(list(zip(*lines, strict=True)))  # on the first pairs of the file, as `normlens align` does
    gold, lines = gold[given.skip :], [side[given.skip :] for side in lines]
    maps: dict[str, list[Seen]] = {}
    encoded: dict[str, list[EncodedPair]] = {}
    assert aligner.reverse is not None
    mappers = {"forward": aligner.forward, "reverse": aligner.reverse}
    for name, mapper in mappers.items():
        sides = lines if name == "forward" else lines[::-1]
        encoded[name] = [mapper.encoder(one, other) for one, other in zip(*sides, strict=True)]
        maps[name] = seen(mapper, encoded[name], aligner.layers[name], aligner.agreements[name].auto("awo"))
    pairs = [Pair(one, other) for one, other in zip(maps["forward"], maps["reverse"], strict=True)]
    print(f"{len(gold)} pairs\n\n| design | AER | precision | recall |\n|---|---|---|---|")
    table({name: DESIGNS[name] for name in list(DESIGNS)[:3]} if given.final else DESIGNS, pairs, gold)
    print()
    calibration([_joint(pair) for pair in pairs], gold)
    calibration([joined_views(pair.forward["attn_n"]) for pair in pairs], gold)
    if given.explain:
        some = range(0, len(pairs), given.explain)
        print(
            f"\n{len(some)} pairs, every {given.explain}th\n\n| design | AER | precision | recall |\n|---|---|---|---|"
        )
        beside = [
            Pair(
                {**pairs[i].forward, "explain": explained(mappers["forward"], encoded["forward"][i])},
                {**pairs[i].reverse, "explain": explained(mappers["reverse"], encoded["reverse"][i])},
            )
            for i in some
        ]
        table(EXPLAINED, beside, [gold[i] for i in some])


if __name__ == "__main__":
    main()
