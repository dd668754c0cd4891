"""Kobayashi et al. 2024: what the feed-forward block does to the map of a layer, and what is left of it at the end.

Each component is judged by what it does to the order of the pairs: 1 less the rank correlation of the map before it and
the map after it, within one sequence and layer. Encoders and decoder-only models; in a decoder, a key after its query is no
pair. The parts of each pair go through the feed-forward block, so the cost is stated beside the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from normlens.corpus.run import all_sequences
from normlens.errors import InputError
from normlens.experiments.claims import evaluate
from normlens.experiments.encoder_study import HEADINGS, sample_corpus, source_line
from normlens.experiments.outcome import Finding, Number, Outcome, Picture, Table, facts_of, printed
from normlens.inputs.encoding import TextEncoder
from normlens.inputs.tokens import is_special, readable
from normlens.io.checksums import content_digest
from normlens.lens import Lens
from normlens.measures.table import MEASURES
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import numbered_style
from normlens.provenance import versions
from normlens.results.analysis import Analysis, SiteAnalysis, row_shares
from normlens.statistics import spearman
from normlens.types import Json

NAME = "kobayashi2024"
#: A map costs about half as many feed-forward passes as there are tokens, so the defaults are small.
LIMIT, LENGTH = 24, 64

#: The components in the order in which a vector meets them: what each is called, the map before it and after it.
COMPONENTS = {
    "attention residual": ("attn_n", "attnres_n"),
    "attention normalization": ("attnres_n", "attnresln_n"),
    "feed-forward": ("attnresln_n", "ff_n"),
    "residual": ("ff_n", "ffres_n"),
    "normalization": ("ffres_n", "ffresln_n"),
    "all three": ("attnresln_n", "ffresln_n"),
}
MAPS = tuple(dict.fromkeys(name for pair in COMPONENTS.values() for name in pair))

#: Kinds of pairs of different positions, the first that fits: what they are called.
PAIRS = {
    "word": "subwords of one word",
    "same": "the same token elsewhere",
    "special": "a special token as key",
    "punctuation": "punctuation as key",
    "neighbour": "neighbours",
    "other": "all others",
}
#: The share of all pairs that counts as amplified most.
TOP = 0.01


@dataclass(frozen=True)
class LayerStudy:
    """One encoder or decoder and a few texts."""

    lens: Lens
    data: tuple[Path, ...] = ()  # empty: the sample corpus
    limit: int = LIMIT
    max_length: int = LENGTH
    progress: Callable[[int, int], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.lens.anatomy.kinds not in (("encoder",), ("decoder",)):
            raise InputError(
                "the experiment studies one stack of layers: this model has "
                f"{' and '.join(self.lens.anatomy.kinds)} attention; give an encoder or a decoder-only model"
            )
        if self.lens.tokenizer is None:
            raise InputError("this model has no tokenizer, which the experiment needs; give a folder that holds one")

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that are read."""
        return self.data or (sample_corpus(),)

    def texts(self) -> list[list[int]]:
        """The token ids of each sequence."""
        sequences = all_sequences(self.lens, self.sources, max_length=self.max_length, skip=HEADINGS, limit=self.limit)
        found = [sequence.ids.tolist() for sequence in sequences]
        found = [ids for ids in found if len(ids) > 2]
        if not found:
            raise InputError("the data hold no sequence of three tokens; give another file")
        return found


@dataclass(frozen=True)
class Measured:
    """The counts over all sequences."""

    layers: list[int]
    changes: dict[str, Float[np.ndarray, "sequence layer"]]
    undone: Float[np.ndarray, "sequence layer"]  # rank correlation of what the block changed and what came after it
    pairs: pd.DataFrame  # layer, kind, query, key, before, after: pairs of different positions
    tokens: int
    proof: float
    cost: float  # times the plain forward pass


def run(study: LayerStudy) -> Outcome:
    """One pass over the texts, sequence by sequence."""
    texts = study.texts()
    found = measured(study, texts)
    record: Json = {
        "model": study.lens.identity,
        "data": ", ".join(path.name for path in study.data) or "sample corpus of normlens",
        "inputs": [{"path": str(path), "sha256": content_digest(path)} for path in study.sources],
        "sequences": len(texts),
        "tokens": found.tokens,
        "max_length": study.max_length,
        "max_proof_error": found.proof,
        "versions": versions(),
    }
    line = source_line(record)
    tables = (changes(found), amplified(found), examples(found))
    return Outcome(
        NAME,
        "What the feed-forward block does to the map of a layer, and what is left of it",
        record,
        f"Model {record['model']['name']} on {record['data']}: {len(texts):,} sequences, {found.tokens:,} tokens; "
        f"cost: {cost_of(found)}.",
        _summary(found),
        findings(found),
        tables,
        (_picture(found, line),),
        facts_of(
            record,
            {
                "sequences": f"{len(texts):,}, at most {study.max_length} tokens",
                "cost": cost_of(found),
            },
        ),
        _notes(study),
    )


def cost_of(found: Measured) -> str:
    """The cost of the run, in words; the first sequence, which also reads the model, is not counted."""
    if np.isnan(found.cost):
        return "not measured, since one sequence alone also pays for reading the model"
    return f"{found.cost:.0f} times the plain forward pass, in this run"


# ---- counting --------------------------------------------------------------------------------------------------------


def measured(study: LayerStudy, texts: list[list[int]]) -> Measured:
    """Analyse each sequence, and keep what the tables need."""
    lens, kind = study.lens, study.lens.anatomy.kinds[0]
    rows: dict[str, list[np.ndarray]] = {name: [] for name in COMPONENTS}
    undone, frames, proof, spent, plain = [], [], 0.0, 0.0, 0.0
    device = next(lens.model.parameters()).device
    for number, ids in enumerate(texts):
        inputs = {"input_ids": torch.tensor([ids], device=device)}
        started = time.process_time()
        analysis: Analysis = lens.analyze_inputs(inputs, measures=list(MAPS))[0]
        spent += time.process_time() - started if number else 0.0  # the first pass also reads the model
        if number:
            started = time.process_time()
            with torch.no_grad():
                lens.model(**inputs)
            plain += time.process_time() - started
        site = analysis.site(kind)
        proof = max(proof, float(site.proof.max()))
        kept = pairs_of(kind, len(ids))
        for name, (before, after) in COMPONENTS.items():
            rows[name].append(np.array([1 - rho for rho in _rhos(site, before, after, kept)]))
        shares = {name: row_shares(site[name].values) for name in ("attnresln_n", "ff_n", "ffresln_n")}
        off = kept & ~np.eye(len(ids), dtype=bool)
        block, later = shares["ff_n"] - shares["attnresln_n"], shares["ffresln_n"] - shares["ff_n"]
        undone.append(np.array([spearman(a[off], b[off]) for a, b in zip(block, later, strict=True)]))
        frames.append(_pairs(lens, site, ids, shares, off))
        if study.progress is not None:
            study.progress(number + 1, len(texts))
    layers = [int(layer) for layer in site.dataset["layer"].values]
    cost = spent / plain if plain > 0 else float("nan")
    stacked = {name: np.stack(found) for name, found in rows.items()}
    pairs = pd.concat(frames, ignore_index=True)
    return Measured(layers, stacked, np.stack(undone), pairs, sum(map(len, texts)), proof, cost)


def pairs_of(kind: str, length: int) -> Bool[np.ndarray, "query key"]:
    """The pairs that exist: in a decoder no key after its query."""
    return np.tri(length, dtype=bool) if kind == "decoder" else np.ones((length, length), dtype=bool)


def _rhos(site: SiteAnalysis, before: str, after: str, kept: Bool[np.ndarray, "query key"]) -> list[float]:
    return [spearman(a[kept], b[kept]) for a, b in zip(site[before].values, site[after].values, strict=True)]


def _pairs(
    lens: Lens, site: SiteAnalysis, ids: list[int], shares: dict[str, np.ndarray], off: Bool[np.ndarray, "query key"]
) -> pd.DataFrame:
    """One row for each layer and pair of different positions, with its kind."""
    tokens = site.query_tokens
    words = TextEncoder(lens.model, lens.tokenizer).label(ids).words
    kinds = np.full(off.shape, "other", dtype=object)
    special = np.array([is_special(token) for token in tokens])
    marks = np.array([not any(c.isalnum() for c in readable(token)) for token in tokens])
    position = np.arange(len(ids))
    kinds[np.abs(position[:, None] - position) == 1] = "neighbour"
    kinds[:, marks & ~special] = "punctuation"
    kinds[:, special] = "special"
    same = np.array(ids)[:, None] == np.array(ids)
    plain = ~(special | marks)
    kinds[same & plain[:, None] & plain] = "same"
    kinds[(np.array(words)[:, None] == np.array(words)) & plain[:, None] & plain] = "word"
    queries, keys = np.nonzero(off)
    found = []
    for n, layer in enumerate(site.dataset["layer"].values):
        found.append(
            pd.DataFrame(
                {
                    "layer": int(layer),
                    "kind": kinds[off],
                    "query": [readable(tokens[i]) for i in queries],
                    "key": [readable(tokens[j]) for j in keys],
                    "before": shares["attnresln_n"][n][off],
                    "after": shares["ff_n"][n][off],
                }
            )
        )
    return pd.concat(found, ignore_index=True)


# ---- tables ----------------------------------------------------------------------------------------------------------


def changes(found: Measured) -> Table:
    """1 less the rank correlation of the maps before and after each component, by layer and on average."""
    numbers = []
    for name, values in found.changes.items():
        means = np.nanmean(values, axis=0)
        numbers += [Number(str(layer), name, float(m), 3) for layer, m in zip(found.layers, means, strict=True)]
        numbers.append(Number("all", name, float(np.nanmean(values)), 3))
    numbers += [
        Number(str(layer), "undone", float(m), 2)
        for layer, m in zip(found.layers, np.nanmean(found.undone, axis=0), strict=True)
    ]
    numbers.append(Number("all", "undone", float(np.nanmean(found.undone)), 2))
    titles = {name: f"{MEASURES[b].title} → {MEASURES[a].title}" for name, (b, a) in COMPONENTS.items()}
    return Table(
        "changes",
        "How much each component changes the map: 1 - ρ before and after it",
        "contextualization change",
        tuple(numbers),
        {**{str(layer): f"layer {layer}" for layer in found.layers}, "all": "all layers"},
        {
            **{name: f"{name} ({title})" for name, title in titles.items()},
            "undone": "ρ of FF's change and what follows",
        },
        "The last column is below zero where residual and normalization take back what the feed-forward block did.",
    )


def top_pairs(found: Measured) -> pd.DataFrame:
    """In each layer, the pairs whose share the feed-forward block raised most."""
    gained = found.pairs.assign(gain=found.pairs["after"] - found.pairs["before"])
    count = max(1, round(TOP * len(gained) / len(found.layers)))
    return gained.sort_values("gain", ascending=False, kind="stable").groupby("layer", sort=True).head(count)


def amplified(found: Measured) -> Table:
    """The kinds of pairs that the feed-forward block amplifies most, beside all pairs."""
    everything = found.pairs["kind"].value_counts(normalize=True)
    most = top_pairs(found)["kind"].value_counts(normalize=True)
    numbers, rows = [], {}
    for kind, title in PAIRS.items():
        if kind not in everything:
            continue
        rows[kind] = title
        base, share = float(everything[kind]), float(most.get(kind, 0.0))
        numbers += [
            Number(kind, "all", 100 * base, 1),
            Number(kind, "most", 100 * share, 1),
            Number(kind, "lift", share / base, 2),
        ]
    return Table(
        "amplified",
        f"Pairs whose share the feed-forward block raises most (the first {TOP:.0%} of each layer)",
        "amplified token pairs",
        tuple(numbers),
        rows,
        {"all": "of all pairs, %", "most": "of the amplified, %", "lift": "times as many"},
        "A pair is counted under the first kind that fits; pairs of a position with itself are left out.",
    )


def examples(found: Measured) -> Table:
    """The most amplified pair of tokens in each layer, by name."""
    best = top_pairs(found).groupby("layer", sort=True).head(3)
    numbers, rows = [], {}
    for n, row in enumerate(best.itertuples()):
        key = str(n)
        rows[key] = f"layer {row.layer}: {row.query} ← {row.key}"
        numbers += [
            Number(key, "before", 100 * float(str(row.before)), 1),
            Number(key, "after", 100 * float(str(row.after)), 1),
        ]
    return Table(
        "pairs",
        "The pairs that gain most, by layer",
        "amplified token pairs",
        tuple(numbers),
        rows,
        {"before": "share of the row before, %", "after": "after the feed-forward block, %"},
        folded=True,
    )


# ---- findings --------------------------------------------------------------------------------------------------------


def findings(found: Measured) -> tuple[Finding, ...]:
    """The paper's claims, by the numbers at hand."""
    table = amplified(found)
    close = [kind for kind in ("word", "same") if kind in table.rows]
    base, share = (printed(sum(table.value(kind, column) for kind in close), 1) for column in ("all", "most"))
    by_layer = {name: np.nanmean(found.changes[name], axis=0) for name in ("feed-forward", "all three")}
    numbers = {
        "mean change": float(np.nanmean(found.changes["feed-forward"])),
        "share of all": base,
        "share of amplified": share,
        "lift": share / base if base > 0 else float("nan"),
        "undone": float(np.nanmean(found.undone)),
        "layers changed less": int((by_layer["all three"] < by_layer["feed-forward"]).sum()),
        "three quarters of the layers": 0.75 * len(found.layers),
    }
    return evaluate(NAME, (), {"count": len(found.layers)}, numbers)


def _summary(found: Measured) -> str:
    mean = {name: float(np.nanmean(values)) for name, values in found.changes.items()}
    return (
        f"The feed-forward block changes the map by {mean['feed-forward']:.3f} (1 - ρ); with its residual and normalization "
        f"{mean['all three']:.3f} of it are left."
    )


def _picture(found: Measured, line: str) -> Picture:
    shown = ("feed-forward", "residual", "normalization", "all three")
    curves = tuple(
        Curve(numbered_style(name, n), np.nanmean(found.changes[name], axis=0)) for n, name in enumerate(shown)
    )
    figure = plot_series(
        [Curves("change of the map", "1 - ρ before and after", curves)],
        [str(layer) for layer in found.layers],
        "layer",
        size=(4.2, 2.4),
        provenance=line,
    )
    caption = "How much each component changes the order of the pairs; all three: from attention to the layer's end."
    return Picture("changes", "Change of the map by component", "contextualization change", caption, figure)


def _notes(study: LayerStudy) -> tuple[str, ...]:
    pre_norm = all(site.norm is None for site in study.lens.anatomy.sites)
    notes = [
        "Slopes of activations are (g(z) - g(0)) / z at the z that the model computed, so that all biases but b_V, which "
        "goes with its key, belong to no token; gated units are taken apart by integrated gradients as well.",
        "Nothing is published here beside the measured numbers: the paper prints its changes as curves.",
    ]
    if pre_norm:
        notes.append("In a pre-norm layer nothing follows the last sum: its normalization changes nothing.")
    return tuple(notes)


def estimate(sequences: int, length: int, kind: str) -> str:
    """The estimated cost of a run, as a sentence; in a decoder half of the pairs are none.

    >>> estimate(8, 64, "decoder").partition(": ")[2].partition(" through")[0]
    'each layer carries up to 2,080 pairs'
    """
    pairs = int(pairs_of(kind, length).sum())
    return (
        f"{sequences} sequences of at most {length} tokens: each layer carries up to {pairs:,} pairs through its "
        f"feed-forward block, about {max(1, round(pairs / length / 2))} feed-forward passes beside the one of the plain pass"
    )
