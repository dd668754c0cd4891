"""Alignment throughput against the model's own teacher-forced forward pass, on the same batches, in one run.

    python -m benchmarks.alignment --model opus-mt-en-fr --source test.en --target test.fr

The ratio is forward seconds / alignment seconds: 1 means that alignment costs nothing beyond the forward pass. The
forward pass is `model(**inputs)` under `torch.inference_mode`, with the attention implementation that the model was
loaded with; alignment is everything from text to links: segmentation, batches, maps, proof, words, extraction. Rounds
alternate, and the median of the rounds' ratios is reported, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from normlens.alignment.aligner import Aligner
from normlens.alignment.parallel_files import read_parallel
from normlens.lens import load

TARGET = 0.7


class Seconds(NamedTuple):
    """How long a call took: by the clock, and in seconds of all its threads together."""

    clock: float
    processor: float


def seconds(work: Callable[[], Any]) -> Seconds:
    """Time one call."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return Seconds(time.perf_counter() - clock, time.process_time() - processor)


def measure(model: str, pairs: list[tuple[str, str]], *, batch_tokens: int = 4096, rounds: int = 5) -> dict[str, Any]:
    """Time the forward passes and the alignment of the same pairs, alternating."""
    lens = load(model)
    aligner = Aligner(lens, batch_tokens=batch_tokens)
    mapper = aligner.forward
    aligner.choose_layers(pairs)
    encoded = [mapper.encoder(source, target) for source, target in pairs]
    batches = [mapper.encoder.batch([encoded[i] for i in chosen], mapper.device) for chosen in mapper.batches(encoded)]
    whole = lens.model
    body = whole.base_model  # without the output layer over the vocabulary

    def forward(module: Any) -> None:
        with torch.inference_mode():
            for inputs in batches:
                module(**inputs, use_cache=False)

    def align() -> None:
        for _ in aligner.align(pairs):
            pass

    for work in (lambda: forward(whole), align):  # once, to warm up, and so that the proof of the outputs is done
        work()
    timed = [(seconds(lambda: forward(whole)), seconds(lambda: forward(body)), seconds(align)) for _ in range(rounds)]
    tokens = sum(len(pair.source_ids) + len(pair.decoder_ids) for pair in encoded)
    return {
        "pairs": len(pairs),
        "tokens": tokens,
        "layers": list(aligner.layers["forward"]),
        "attention": whole.config._attn_implementation,
        "ratio": statistics.median(one.clock / aligned.clock for one, _, aligned in timed),
        "ratio_without_output_layer": statistics.median(one.clock / aligned.clock for _, one, aligned in timed),
        # Others on the machine change what the clock says, and hardly this.
        "processor_ratio": statistics.median(one.processor / aligned.processor for one, _, aligned in timed),
        "processor_ratio_without_output_layer": statistics.median(
            one.processor / aligned.processor for _, one, aligned in timed
        ),
        "ratios": [round(one.clock / aligned.clock, 3) for one, _, aligned in timed],
        "target": TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pairs = list(read_parallel(options.source, options.target))[: options.limit]
    result = measure(options.model, pairs, batch_tokens=options.batch_tokens, rounds=options.rounds)
    print(json.dumps(result))
    if result["ratio"] < TARGET:
        raise SystemExit(f"alignment runs at {result['ratio']:.2f} of the forward pass, the target is {TARGET}")


if __name__ == "__main__":
    main()
