"""What an explanation costs, as ratios to plain gradient x input on the same model and input, in one run.

Everything takes turns, and the first round is thrown away. `make bench` takes wall time on two threads, as for analyses;
by itself this takes processor time on one thread, which a busy machine disturbs least. Weights are random, since cost
depends on shapes.

    python -m benchmarks.explain
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.speed import Spread, _peak, _reset_peak, _status, in_turns
from normlens.attribution.affine import slope_of
from normlens.attribution.observer import TermSelection
from normlens.attribution.proof import ProofSettings, check_sums
from normlens.attribution.terms import Run
from normlens.lens import Lens

TOKENS = TermSelection()
KEPT = TermSelection(heads=True, blocks=True, direct=True)  # by default: all but edges
ALL = TermSelection(heads=True, edges=True, blocks=True, direct=True)
#: What is promised, as ratios to gradient x input.
PROMISED = {"tokens": 1.15, "kept": 1.5, "all": 1.5, "integrated": 2.5}
#: And against carrying every position's vector through every layer, at 128 tokens.
FASTER = 20.0
#: Tokens and gigabytes of the long case, the whole proof included.
LONG, PROMISED_PEAK = 8192, 16.0

WHAT = {
    "tokens": "explain, tokens",
    "kept": "explain, all terms but edges",
    "all": "explain, all terms",
    "integrated": "explain, tokens, `integrated`",
}


def bert(layers: int) -> nn.Module:
    """BERT-base with a classification head and random weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers, max_position_embeddings=4096)
    return transformers.BertForSequenceClassification(config).eval()


def llama(layers: int) -> nn.Module:
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
    return transformers.LlamaForCausalLM(config).eval()


def batch(rows: int, length: int) -> dict[str, Tensor]:
    """Random tokens, no padding."""
    ids = torch.randint(5, 1000, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def first_logit(output: Any) -> Tensor:
    """One number per row: of the text, or of its last position."""
    logits: Tensor = output.logits
    return logits[:, 0] if logits.ndim == 2 else logits[:, -1, 7]


def gradient_times_input(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The plain way: one forward and one backward pass, no rule."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    vectors = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()  # type: ignore[operator]
    first_logit(model(inputs_embeds=vectors, attention_mask=inputs["attention_mask"])).sum().backward()
    assert vectors.grad is not None
    return (vectors * vectors.grad).sum(-1)


# ---- time ------------------------------------------------------------------------------------------------------------


def explained(model: nn.Module, inputs: dict[str, Tensor], wanted: TermSelection, integrated: bool = False) -> Any:
    """The terms with the proof of every run; what is proved once per model is no part of it."""
    terms = Run(model, inputs, wanted, integrated=integrated).explain(first_logit)
    check_sums(terms, ProofSettings("benchmark", torch.float32, "integrated" if integrated else "fixed"))
    return terms


def ratios(
    model: nn.Module, inputs: dict[str, Tensor], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Spread]:
    """Ratios to gradient x input."""
    times = in_turns(
        {
            "gradient x input": lambda: gradient_times_input(model, inputs),
            "tokens": lambda: explained(model, inputs, TOKENS),
            "kept": lambda: explained(model, inputs, KEPT),
            "all": lambda: explained(model, inputs, ALL),
            "integrated": lambda: explained(model, inputs, TOKENS, integrated=True),
        },
        rounds,
        clock,
    )
    plain = times.pop("gradient x input")
    return {name: Spread.of(taken, plain) for name, taken in times.items()}


# ---- the materialized way --------------------------------------------------------------------------------------------


def materialized(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """BERT with the vector of every input position carried through every layer: `[input, position, width]` throughout.

    One text. The last entry along the first axis is what belongs to no input.
    """
    with torch.no_grad():
        entering = model.bert.embeddings(input_ids=inputs["input_ids"])[0]
        count, width = entering.shape
        parts = torch.zeros(count + 1, count, width)
        parts[torch.arange(count), torch.arange(count)] = entering
        for layer in model.bert.encoder.layer:
            own, whole = layer.attention.self, parts.sum(0)
            heads = own.num_attention_heads

            def split(x: Tensor, heads: int = heads) -> Tensor:
                return x.unflatten(-1, (heads, -1)).transpose(-2, -3)

            query, key = split(own.query(whole)), split(own.key(whole))
            alpha = torch.softmax(query @ key.transpose(-1, -2) * (width // heads) ** -0.5, -1)
            mixed = (alpha @ split(_linear(own.value, parts))).transpose(-2, -3).flatten(-2)
            parts = _normalized(layer.attention.output.LayerNorm, parts + _linear(layer.attention.output.dense, mixed))
            wide = _linear(layer.intermediate.dense, parts)
            z = wide.sum(0)
            wide *= slope_of(z, layer.intermediate.intermediate_act_fn(z), None, 0.5)
            parts = _normalized(layer.output.LayerNorm, parts + _linear(layer.output.dense, wide))
        first = _linear(model.bert.pooler.dense, parts[:, 0])
        z = first.sum(0)
        first *= slope_of(z, torch.tanh(z), None, 1.0)
        return _linear(model.classifier, first)[:, 0]


def _linear(module: Any, parts: Tensor) -> Tensor:
    out = parts @ module.weight.T
    out[-1] += module.bias
    return out


def _normalized(module: Any, parts: Tensor) -> Tensor:
    scale = torch.rsqrt(parts.sum(0).var(-1, unbiased=False, keepdim=True) + module.eps)
    out = (parts - parts.mean(-1, keepdim=True)) * scale * module.weight
    out[-1] += module.bias
    return out


def against_materialized(rounds: int, clock: Callable[[], float] = time.perf_counter, layers: int = 4) -> Spread:
    """How many times faster the terms are than the materialized way, BERT-base, 1 x 128; both give the same."""
    model, inputs = bert(layers), batch(1, 128)
    ours, theirs = explained(model, inputs, TOKENS).tokens[0][0], materialized(model, inputs)[:-1]
    torch.testing.assert_close(theirs.double(), ours, atol=1e-4 * float(ours.abs().sum()), rtol=0)
    works: dict[str, Callable[[], Any]] = {
        "ours": lambda: explained(model, inputs, TOKENS),
        "theirs": lambda: materialized(model, inputs),
    }
    times = in_turns(works, rounds, clock)
    return Spread.of(times["theirs"], times["ours"])


# ---- memory ----------------------------------------------------------------------------------------------------------


def peak(length: int, layers: int = 12) -> float:
    """Gigabytes at the peak of a fresh process that explains one logit of the Llama shape, with the whole proof."""
    command = [sys.executable, "-m", "benchmarks.explain", "--peak", str(length), "--layers", str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: float = json.loads(done.stdout.splitlines()[-1])["peak"]
    return found


def _peak_here(length: int, layers: int) -> dict[str, float]:
    lens = Lens(llama(layers))
    before = _status("VmRSS") / 1024
    _reset_peak()
    (found,) = lens.explain_inputs(batch(1, length), output=7, parts=["tokens"])
    return {"peak": _peak() / 1024, "before": before, "high": _status("VmHWM") / 1024, "gap": found.proof.gap}


# ---- all of it -------------------------------------------------------------------------------------------------------

SHAPES = (
    ("BERT-base 8 x 128", bert, (8, 128)),
    ("Llama-shaped 1 x 512", llama, (1, 512)),
    ("Llama-shaped 1 x 1024", llama, (1, 1024)),
)


def main() -> None:
    """All shapes, in processor time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", type=int, help="tokens: only the memory at this length, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak is not None:
        print(json.dumps(_peak_here(options.peak, options.layers)))
        return
    print("| shape | asked for | best | median | middle half | promised |", "|---|---|---|---|---|---|", sep="\n")
    for name, build, shape in SHAPES:
        found = ratios(build(options.layers), batch(*shape), options.rounds, time.process_time)
        for work, spread in found.items():
            print(_line(name, WHAT[work], spread, f"{PROMISED[work]}"), flush=True)
    spread = against_materialized(options.rounds, time.process_time)
    print(_line("BERT-base 1 x 128", "times faster than the materialized way", spread, f"at least {FASTER:g}"))


def _line(name: str, what: str, spread: Spread, promised: str) -> str:
    middle = f"{spread.low:.2f} to {spread.high:.2f}"
    return f"| {name} | {what} | {spread.best:.2f} | {spread.median:.2f} | {middle} | {promised} |"


if __name__ == "__main__":
    main()
