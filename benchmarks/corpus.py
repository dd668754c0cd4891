"""What corpus statistics cost: throughput with everything counted, over the plain forward pass, on the same batches.

Run `python -m benchmarks.corpus`. Ratios are taken in one run, forward pass and statistics in turns, so that a busy
machine slows both; processor time is used beside the clock for the same reason.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
import transformers

import normlens
from normlens.corpus.batches import Batch
from normlens.corpus.options import Plan
from normlens.corpus.run import count_batch, request_for, with_sites
from normlens.corpus.sequences import TokenSequence
from normlens.corpus.statistics import Statistics
from normlens.lens import Lens

TARGET = 0.75
CATEGORIES = ("cls", "sep", "mask", "special", "comma_period", "other")


def bert(layers: int = 12, width: int = 768, heads: int = 12) -> Lens:
    """A BERT of the given shape with random weights: cost depends on shapes, not on training."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width
    )
    return Lens(transformers.BertModel(config).eval())


def sequences(count: int, length: int, seed: int = 0) -> list[TokenSequence]:
    """Random sequences with the categories of real ones."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        ids = rng.integers(1000, 20000, length)
        category = rng.choice([4, 5], p=[0.1, 0.9], size=length).astype(np.uint8)
        category[0], category[length // 2], category[-1] = 0, 1, 1
        made.append(TokenSequence(index, str(index), ids, np.zeros(length, dtype=np.int64), category))
    return made


def throughput(rounds: int = 5, batch_size: int = 8, length: int = 128) -> dict[str, float]:
    """The ratio of the two speeds, by the clock and by processor time; the median over rounds."""
    lens = bert()
    covariates = {"rank": np.random.default_rng(0).permutation(30522).astype(np.float64)}
    plan = with_sites(Plan.of(CATEGORIES, covariates=covariates), lens)
    request, statistics = request_for(lens, plan), Statistics(plan)
    made = sequences(batch_size * (rounds + 1), length)
    clock, processor = [], []
    for start in range(0, len(made), batch_size):
        batch = Batch(made[start : start + batch_size])
        inputs = batch.inputs(torch.device("cpu"))
        with torch.inference_mode():
            plain = _timed(lambda: lens.model(**inputs))  # noqa: B023
        counted = _timed(lambda: count_batch(lens, batch, plan, request, [statistics]))  # noqa: B023
        if start:  # the first round loads tables and proves the model once
            clock.append(plain[0] / counted[0])
            processor.append(plain[1] / counted[1])
    return {"clock": median(clock), "processor": median(processor)}


def peak(count: int) -> float:
    """Peak memory in MB of a whole corpus run over so many sequences, in a process of its own."""
    code = f"from benchmarks.corpus import _peak; _peak({count})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _peak(count: int) -> None:
    rng = np.random.default_rng(0)
    words = [word for word in normlens.load().tokenizer.get_vocab() if word.isalpha() and word.isascii()]
    lens = Lens(bert(layers=2, width=64, heads=2).model, normlens.load().tokenizer, name="small")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "corpus.txt"
        with source.open("w") as stream:
            for _ in range(count):
                stream.write(" ".join(rng.choice(words, size=60)) + "\n")
        lens.corpus(source, Path(folder) / "out", max_length=64)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _timed(work: object) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    work()  # type: ignore[operator]
    return time.perf_counter() - clock, time.process_time() - processor


def main(most: int = 2000) -> None:
    """Print the ratios against their targets."""
    speed = throughput()
    print(
        f"corpus: throughput with all statistics / plain forward pass (BERT-base shape, 128 tokens): "
        f"{speed['clock']:.2f} by the clock, {speed['processor']:.2f} by processor time (target {TARGET})"
    )
    small, large = peak(100), peak(most)
    print(f"corpus: peak memory at {most:,} sequences / at 100: {large / small:.2f} ({large:.0f} MB / {small:.0f} MB)")


if __name__ == "__main__":
    main()
