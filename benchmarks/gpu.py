"""What an analysis costs on a GPU: measured where there is one, estimated where there is none.

    python -m benchmarks.gpu                # `make bench-gpu`: measures, writes gpu_report.json and gpu_report.md
    python -m benchmarks.gpu --estimate     # counts on a device that does not exist, writes docs/performance_gpu.md

Plain pass and analyses take turns and are timed by the device's own events; medians, and the quartiles beside them.

The estimate takes each launch of one layer (a model of two layers less one of one) for as long as its operations or its
bytes take, whichever is longer, at a share of what the card's maker states. The host's launches and what travels to it
go on at the same time; each wait of the host is added. Lengths that are too long for a CPU follow from three short ones:
what a launch does is a polynomial of degree two in the length.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from experimental.triton.kernel_trial import seconds as device_seconds
from experimental.triton.kernel_trial import trial

from benchmarks import speed
from normlens.lens import Lens
from normlens.provenance import versions

ROOT = Path(__file__).parent.parent
WORKS = {
    "plain": "plain forward pass",
    "maps": "five maps, five mixing ratios, f_norm",
    "mixing": "mixing ratio alone",
    "explain": "explain one of the sequences, default parts",
}
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """A model with random weights, and a batch for it."""

    name: str
    family: str  # bert or llama
    rows: int
    length: int
    layers: int = 4
    width: int = 768
    heads: int = 12
    kv_heads: int = 12
    inner: int = 3072
    dtype: str = "float32"

    def model(self, layers: int | None = None) -> torch.nn.Module:
        """With an output head, so that it can be explained."""
        torch.manual_seed(0)
        layers = self.layers if layers is None else layers
        common: dict[str, Any] = {"vocab_size": 1000, "hidden_size": self.width, "num_hidden_layers": layers}
        common |= {"num_attention_heads": self.heads, "intermediate_size": self.inner}
        common |= {"max_position_embeddings": max(512, self.length)}
        if self.family == "bert":
            made = transformers.BertForMaskedLM(transformers.BertConfig(**common))
        else:
            made = transformers.LlamaForCausalLM(
                transformers.LlamaConfig(**common, num_key_value_heads=self.kv_heads, use_cache=False)
            )
        found: torch.nn.Module = made.to(getattr(torch, self.dtype)).eval()
        return found


SHAPES = (
    Shape("BERT-base 8 x 128", "bert", 8, 128),
    Shape("BERT-base 8 x 512", "bert", 8, 512),
    Shape("Llama-8B 1 x 4096, bfloat16", "llama", 1, 4096, 2, 4096, 32, 8, 14336, "bfloat16"),
)


def works(lens: Lens, shape: Shape, length: int, device: str) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    inputs = {name: value.to(device) for name, value in speed.batch(shape.rows, length).items()}
    if shape.family == "llama":  # as one calls it without padding
        del inputs["attention_mask"]
    one = {"input_ids": inputs["input_ids"][:1]}
    body: Any = lens.model.base_model

    def plain() -> None:
        with torch.no_grad():
            body(**inputs)

    return {
        "plain": plain,
        "maps": lambda: lens.analyze_inputs(inputs, measures=speed.ALL),
        "mixing": lambda: lens.analyze_inputs(inputs, measures=[], mixing=["attnresln_n"]),
        "explain": lambda: lens.explain_inputs(one, position=length // 2),
    }


# ---- measuring -----------------------------------------------------------------------------------------------------------


def measure(shapes: tuple[Shape, ...], rounds: int, device: str = "cuda") -> dict[str, Any]:
    """All works of all shapes, in turns."""
    where = torch.device(device, 0)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(where),
        "cuda": torch.version.cuda,
        "versions": dict(versions()),
        "rounds": rounds,
        "shapes": [],
        "kernel": kernel_trials(shapes, where),
    }
    for shape in shapes:
        lens = Lens(shape.model().to(device))
        doing = works(lens, shape, shape.length, device)
        times: dict[str, list[float]] = {name: [] for name in doing}
        peaks = {}
        for name, work in doing.items():  # once for what happens once, once for its memory
            work()
            torch.cuda.reset_peak_memory_stats(where)
            work()
            peaks[name] = torch.cuda.max_memory_allocated(where)
        for _ in range(rounds):
            for name, work in doing.items():
                times[name].append(device_seconds(work, where))
        found = {name: _summary(taken, times["plain"]) | {"peak_bytes": peaks[name]} for name, taken in times.items()}
        report["shapes"].append({**asdict(shape), "works": found})
        del lens, doing
    return report


def _summary(times: list[float], plain: list[float]) -> dict[str, float]:
    ratios = [mine / theirs for mine, theirs in zip(times, plain, strict=True)]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return {
        "seconds": statistics.median(times),
        "ratio": float(middle),
        "ratio_low": float(low),
        "ratio_high": float(high),
    }


def kernel_trials(shapes: tuple[Shape, ...], device: torch.device) -> list[dict[str, Any]]:
    """What the fused kernel's trial says on this device, for the heads of each shape."""
    found = []
    for heads, width, dtype in {(s.heads, s.width // s.heads, s.dtype) for s in shapes}:
        said: dict[str, Any] = {"heads": heads, "width": width, "dtype": dtype}
        try:
            result = trial(device, getattr(torch, dtype), heads, width, 2)
            said |= {**asdict(result), "won": result.won}
        except Exception as error:  # no Triton, or no code for this card: a finding, too
            said |= {"error": f"{type(error).__name__}: {error}"}
        found.append(said)
    return found


def as_markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    named = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [
        f"# normlens on {report['device']}",
        "",
        f"`make bench-gpu`, {report['rounds']} interleaved rounds, CUDA {report['cuda']}, {named}.",
        "",
        "| model and batch | work | over the plain pass: median (quartiles) | ms | peak GB |",
        "|---|---|---|---|---|",
    ]
    for shape in report["shapes"]:
        for name, found in shape["works"].items():
            ratio = f"{found['ratio']:.2f} ({found['ratio_low']:.2f} to {found['ratio_high']:.2f})"
            milliseconds, peak = 1e3 * found["seconds"], found["peak_bytes"] / 2**30
            lines.append(
                f"| {shape['name']}, {shape['layers']} layers | {WORKS[name]} | {ratio} | {milliseconds:.2f} | {peak:.2f} |"
            )
    lines += ["", "Fused kernel: " + "; ".join(json.dumps(said) for said in report["kernel"]), ""]
    return "\n".join(lines)


def write(report: dict[str, Any], folder: Path) -> None:
    """Both files, and what we would like to happen to them."""
    (folder / "gpu_report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "gpu_report.md").write_text(as_markdown(report))
    print(as_markdown(report))
    print(f"Written to {folder / 'gpu_report.json'} and gpu_report.md. Please attach both to an issue of the project:")
    print("until somebody does, docs/performance_gpu.md holds an estimate.")


# ---- estimating ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """What a card's maker states, and the shares of it that we count on."""

    name: str
    full: float  # operations a second in float32, without tensor cores
    half: float  # in bfloat16, by tensor cores
    bytes: float  # of memory, a second
    host_bytes: float  # to the host
    reached: float = 0.6  # of operations, in ordinary products
    streamed: float = 0.75  # of bytes, in ordinary element-wise work
    shortest: float = 3e-6  # seconds of any launch on the device
    launch: float = 7e-6  # seconds of the host for each, PyTorch's and ours
    wait: float = 15e-6  # seconds of each wait of the host


CARDS = (
    Card("A100 SXM 80 GB", 19.5e12, 312e12, 2.04e12, 25e9),
    Card("H100 SXM", 67e12, 989e12, 3.35e12, 50e9),
)
Counted = dict[str, Any]  # work: one row per launch (operations, bytes, half); waits, copied


def seconds(counted: Counted, card: Card) -> float:
    """How long these launches take."""
    work = np.asarray(counted["work"], dtype=float).reshape(-1, 3)
    peak = np.where(work[:, 2] > 0, card.half, card.full) * card.reached
    device = np.maximum.reduce(
        [work[:, 0] / peak, work[:, 1] / (card.bytes * card.streamed), np.full(len(work), card.shortest)]
    ).sum()
    host, travel = len(work) * card.launch, counted["copied"] / card.host_bytes
    return float(max(device, host, travel) + counted["waits"] * card.wait)


def at_length(three: list[tuple[int, Counted]], length: int) -> Counted:
    """What the same launches do at another length: each number is a polynomial of degree two through three lengths."""
    lengths = np.array([n for n, _ in three], dtype=float)
    basis = [np.prod([(length - m) / (n - m) for m in lengths if m != n]) for n in lengths]

    def carried(values: list[Any]) -> Any:
        return sum(factor * np.asarray(value, dtype=float) for factor, value in zip(basis, values, strict=True))

    counts = [counted for _, counted in three]
    if len({len(counted["work"]) for counted in counts}) > 1:
        raise RuntimeError(f"lengths must launch alike: {[len(counted['work']) for counted in counts]} launches")
    work = carried([counted["work"] for counted in counts])
    work[:, 2] = np.asarray(counts[0]["work"], dtype=float).reshape(-1, 3)[:, 2]
    copied = float(carried([counted["copied"] for counted in counts]))
    return {"work": work, "waits": counts[0]["waits"], "copied": copied}


#: Lengths at which a shape that is too long for a CPU is counted; above 64 positions, from where on the proof goes along
#: directions.
SHORT = (72, 96, 120)


def count(shape: Shape, layers: int, length: int, names: tuple[str, ...]) -> dict[str, Counted]:
    """What each work asks of a pretended device."""
    from tests.devices import pretend

    lens = Lens(shape.model(layers).to("cuda"))
    found = {}
    for name, work in works(lens, shape, length, "cuda").items():
        if name in names:
            work()
            with pretend.counting() as counts:
                work()
            waits = sum(counts.waits.values())
            found[name] = {"work": counts.work, "waits": waits, "copied": counts.bytes_copied}
    return found


def count_in_child(shape: Shape, layers: int, length: int, names: tuple[str, ...]) -> dict[str, Counted]:
    """The same in a process that pretends a device."""
    from tests.devices import pretend

    asked = json.dumps([asdict(shape), layers, length, names])
    variables = {**os.environ, **pretend.environment("cuda"), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--count", asked]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"counting failed: {done.stderr[-2000:]}")
    found: dict[str, Counted] = json.loads(done.stdout.splitlines()[-1])
    return found


def estimate_rows(shapes: tuple[Shape, ...], names: tuple[str, ...]) -> list[tuple[str, str, list[str]]]:
    """Of each shape and work, a layer's launches and waits, and what it costs over a layer's plain pass on each card."""
    rows = []
    for shape in shapes:
        lengths = SHORT if shape.family == "llama" else (shape.length,)
        by_layers: dict[int, dict[str, Counted]] = {}
        for layers in (1, 2):
            counted = [(length, count_in_child(shape, layers, length, names)) for length in lengths]
            by_layers[layers] = {
                name: at_length([(n, found[name]) for n, found in counted], shape.length)
                if len(lengths) > 1
                else counted[0][1][name]
                for name in names
            }
        for name in names:
            one, two = by_layers[1][name], by_layers[2][name]
            cells = [f"{len(two['work']) - len(one['work'])}", f"{two['waits'] - one['waits']}"]
            for card in CARDS:
                layer, plain = (
                    seconds(by_layers[2][what], card) - seconds(by_layers[1][what], card) for what in (name, "plain")
                )
                cells += [f"{1e3 * layer:.2f}", f"{layer / plain:.1f}"]
            rows.append((shape.name, WORKS[name], cells))
    return rows


def estimate_page(rows: list[tuple[str, str, list[str]]]) -> str:
    """The page of the documentation."""
    cards = " | ".join(f"{card.name}, ms | over plain" for card in CARDS)
    lines = [
        "# What an analysis costs on a GPU",
        "",
        "**Estimated, not measured**: no GPU was at hand. `make bench-gpu` measures it on yours in a few minutes, downloads",
        "nothing, and writes `gpu_report.json` and `gpu_report.md`. We would like to receive them: please attach them to an",
        "issue.",
        "",
        "Written by `python -m benchmarks.gpu --estimate`, which counts launches, operations and bytes of one layer",
        "on a device that does not exist (`tests/devices`). Each launch takes as long as its operations or its bytes,",
        "whichever is longer:",
        "",
        "| assumed | " + " | ".join(card.name for card in CARDS) + " |",
        "|---|" + "---|" * len(CARDS),
        "| TFLOPS, float32 / bfloat16, 60 % of it reached | "
        + " | ".join(f"{card.full / 1e12:.1f} / {card.half / 1e12:.0f}" for card in CARDS)
        + " |",
        "| memory, TB/s, 75 % of it reached | " + " | ".join(f"{card.bytes / 1e12:.2f}" for card in CARDS) + " |",
        "| to the host, GB/s | " + " | ".join(f"{card.host_bytes / 1e9:.0f}" for card in CARDS) + " |",
        "| a launch at least, on the device / on the host, µs; a wait, µs | "
        + " | ".join(f"{1e6 * card.shortest:.0f} / {1e6 * card.launch:.0f}; {1e6 * card.wait:.0f}" for card in CARDS)
        + " |",
        "",
        f"| model and batch, one layer | work | launches | waits | {cards} |",
        "|---|---|---|---|" + "---|---|" * len(CARDS),
        *(f"| {name} | {work} | {' | '.join(cells)} |" for name, work, cells in rows),
        "",
        "Our own products run in float32 without TF32, whatever the model's dtype: beside a model in bfloat16 they",
        "weigh more. For long sequences the passes over the weights of all pairs count, and the maps on their way to",
        "the host; mixing ratios alone have neither. The fused kernel (`experimental/triton`) has no such",
        "passes and is not in this estimate. What Llama does at 4,096 positions follows from three short lengths.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, or estimate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path(), help="where the report goes")
    parser.add_argument("--estimate", action="store_true", help="count on a device that does not exist")
    parser.add_argument("--count", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        from tests.devices import pretend

        pretend.install()
        torch.set_num_threads(1)
        shape, layers, length, names = json.loads(arguments.count)
        print(json.dumps(count(Shape(**shape), layers, length, tuple(names))))
        return 0
    if arguments.estimate:
        rows = estimate_rows(SHAPES[:2], tuple(WORKS)) + estimate_rows(SHAPES[2:], ("plain", "maps", "mixing"))
        page = estimate_page(rows)
        (ROOT / "docs" / "performance_gpu.md").write_text(page)
        print(page)
        return 0
    if not torch.cuda.is_available():
        print(
            f"a GPU is measured where PyTorch sees one: here it sees none (torch {torch.__version__}); run this on a "
            "machine with CUDA, or estimate (python -m benchmarks.gpu --estimate)",
            file=sys.stderr,
        )
        return 2
    write(measure(SHAPES, arguments.rounds), arguments.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
