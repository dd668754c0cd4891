"""What an analysis costs, as ratios to the model's own plain forward pass (SDPA, no extra outputs), in one run.

The plain pass and the analyses take turns, and what counts is the median of the rounds' own ratios, with its quartiles: a
busy machine slows both. Weights are random, since cost depends on shapes, but for the embedded model. The first round is
thrown away: there the model's own output is compared once and loops are compiled.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

import normlens
from benchmarks.materializing import materialize
from normlens.lens import Lens
from normlens.measures.request import Request

THREADS = 2
ALL = ["f_norm", "attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n"]
LAST = ["attnresln_n"]


def bert(layers: int = 12, heads: int = 12) -> Lens:
    """BERT-base with random weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers, num_attention_heads=heads, max_position_embeddings=4096)
    return Lens(transformers.BertModel(config).eval())


def llama(layers: int = 12) -> Lens:
    """A Llama of 1024 with 16 heads over 4."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        intermediate_size=2816,
        vocab_size=4000,
        max_position_embeddings=16384,
    )
    return Lens(transformers.LlamaModel(config).eval())


def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Random tokens, no padding."""
    ids = torch.randint(5, 1000, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def in_turns(
    works: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """The times of each, taken in turns."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = clock()
            work()
            times[name].append(clock() - start)
    return times


def best(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The quickest time of each, taken in turns."""
    return {name: min(times) for name, times in in_turns(works, rounds).items()}


@dataclass(frozen=True)
class Spread:
    """Ratios of the rounds of two works that took turns."""

    best: float  # the quickest against the quickest
    median: float
    low: float  # the first and the third quartile of the rounds
    high: float

    @classmethod
    def of(cls, times: list[float], plain: list[float]) -> Spread:
        """Of all rounds."""
        rounds = sorted(mine / theirs for mine, theirs in zip(times, plain, strict=True))
        quarters = statistics.quantiles(rounds, n=4) if len(rounds) > 1 else rounds * 3
        return cls(min(times) / min(plain), statistics.median(rounds), quarters[0], quarters[2])


def plain(lens: Lens, inputs: dict[str, torch.Tensor], **options: Any) -> Callable[[], None]:
    """The model's own forward pass."""
    if isinstance(lens.model, transformers.LlamaModel):
        options["use_cache"] = False

    def work() -> None:
        with torch.no_grad():
            lens.model(**inputs, **options)

    return work


def analysis(lens: Lens, inputs: dict[str, torch.Tensor], measures: list[str], mixing: list[str] | None = None) -> Any:
    """An analysis whose results are let go site by site."""
    settings = Request.of(lens.anatomy, measures=measures, mixing=mixing)
    return lambda: lens.run(inputs, settings, lambda result, block: None)


def ratios(lens: Lens, rows: int, length: int, rounds: int = 5) -> dict[str, Spread]:
    """The cost of all five maps, of the last one alone, and of ratios alone."""
    inputs = batch(rows, length)
    times = in_turns(
        {
            "plain": plain(lens, inputs),
            "all": analysis(lens, inputs, ALL),
            "last": analysis(lens, inputs, LAST),
            "mixing": analysis(lens, inputs, [], ["attnresln_n"]),
        },
        rounds,
    )
    return {name: Spread.of(taken, times["plain"]) for name, taken in times.items()}


def short_texts(rounds: int) -> dict[str, Spread]:
    """`analyze` of five maps from text or tokens to labelled arrays, in processor time on one thread."""
    torch.set_num_threads(1)
    embedded, shaped = normlens.load(), bert(4)
    tokens = embedded.tokenizer(SENTENCE, return_tensors="pt")
    cases = {
        f"embedded model, {tokens['input_ids'].shape[1]} tokens": (
            plain(embedded, dict(tokens)),
            lambda: embedded.analyze(SENTENCE, measures=ALL[1:]),
        )
    }
    for length in (16, 64):
        inputs = batch(1, length)
        cases[f"BERT-shaped 4 layers, 1 x {length}"] = (
            plain(shaped, inputs),
            partial(shaped.analyze_inputs, inputs, measures=ALL[1:]),
        )
    found = {}
    for name, (bare, analyse) in cases.items():
        times = in_turns({"plain": bare, "analyze": analyse}, 2 * rounds, time.process_time)
        found[name] = Spread.of(times["analyze"], times["plain"])
    torch.set_num_threads(THREADS)
    return found


#: What a ratio through the feed-forward block may cost. Of the layer's 12 products of the width squared it needs 12 more
#: (its two matrices for what a position gives itself, the second again for the rest), and one for the self part: 25/12.
RATIO_THROUGH_FEED_FORWARD = 2.2


def through_feed_forward(lens: Lens, length: int, rounds: int = 5) -> dict[str, Spread]:
    """The cost of mixing ratios through the feed-forward block, one text, and of the map."""
    inputs = batch(1, length)
    found: dict[str, Spread] = {}
    # A map costs as much as length / 2 feed-forward blocks: a few rounds of it are enough to see that.
    for name, measures, mixing, times in (
        ("ratio", [], ["ffresln_n"], rounds),
        ("map", ["ffresln_n"], None, max(2, rounds // 10)),
    ):
        works = {"plain": plain(lens, inputs), "work": analysis(lens, inputs, measures, mixing)}
        taken = in_turns(works, times)
        found[name] = Spread.of(taken["work"], taken["plain"])
    return found


def attentions(lens: Lens, rows: int, length: int, rounds: int = 5) -> float:
    """What bare `output_attentions=True` costs, which forces eager attention and keeps every weight."""
    inputs = batch(rows, length)
    before = lens.model.config._attn_implementation
    eager = bert(len(lens.anatomy.sites))
    eager.model.set_attn_implementation("eager")
    works = {"plain": plain(lens, inputs), "eager": plain(eager, inputs, output_attentions=True)}
    times = best(works, rounds)
    assert lens.model.config._attn_implementation == before
    return times["eager"] / times["plain"]


def against_materializing(rounds: int = 5) -> float:
    """How many times faster one layer's analysis is than building all vectors, BERT-base, 1 x 128."""
    lens, inputs = bert(4), batch(1, 128)
    layers = len(lens.anatomy.sites)
    head, model = (1, 12, 128), 768
    generator = torch.Generator().manual_seed(0)
    alpha = torch.randn(*head, 128, generator=generator).softmax(-1)
    values, weight = torch.randn(*head, 64, generator=generator), torch.randn(12, 64, model, generator=generator)
    residual, total = (torch.randn(1, 128, model, generator=generator) for _ in range(2))
    times = best(
        {
            "plain": plain(lens, inputs),
            "ours": analysis(lens, inputs, ALL),
            "theirs": lambda: materialize(alpha, values, weight, residual, total, torch.ones(model), 1e-12),
        },
        rounds,
    )
    return times["theirs"] / ((times["ours"] - times["plain"]) / layers)


#: In the embedded model, 17 tokens.
SENTENCE = "The quick brown fox jumps over the lazy dog near the old river bank."
#: A short text in the embedded model, and a sentence of BERT's length in BERT's shape.
FIRST = {"first-embedded": "embedded model, 17 tokens", "first-bert": "BERT-base 1 x 128"}


def first_call(case: str, rounds: int = 5) -> Spread:
    """The first analysis of a fresh process over a warm forward pass, in processor time."""
    found = [in_process(case) for _ in range(rounds)]
    return Spread.of([one["first"] for one in found], [one["plain"] for one in found])


def peaks(case: str) -> float:
    """The peak memory of a fresh process, in MB."""
    return in_process(case)["peak"]


def in_process(case: str) -> dict[str, float]:
    """What one case finds in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed", case]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _child(case: str) -> dict[str, float]:
    torch.set_num_threads(1 if case in FIRST else THREADS)
    if case in FIRST:
        lens = normlens.load() if case == "first-embedded" else bert()
        tokens = lens.tokenizer(SENTENCE, return_tensors="pt") if lens.tokenizer is not None else batch(1, 128)
        inputs = dict(tokens)
        bare = in_turns({"plain": plain(lens, inputs)}, 5, time.process_time)["plain"]
        start = time.process_time()
        lens.analyze_inputs(inputs)
        return {"first": time.process_time() - start, "plain": statistics.median(bare)}
    if case.startswith("bert"):
        lens, inputs = bert(), batch(1, 512)
        lens.anatomy  # noqa: B018
        work = plain(lens, inputs) if case == "bert-plain" else analysis(lens, inputs, ALL)
        work()  # weights are prepared and loops compiled: what stays is not what a run needs at its peak
        _reset_peak()
        before = _status("VmRSS")
        work()
        return {"peak": _status("VmHWM"), "before": before}
    lens, inputs = llama(), batch(1, 8192)
    times = best({"plain": plain(lens, inputs), "mixing": analysis(lens, inputs, [], ["attnresln_n"])}, 2)
    return {"ratio": times["mixing"] / times["plain"], "peak": _peak()}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _reset_peak() -> None:
    """Let the kernel forget the largest size so far (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1])))
