"""The cost of images: five maps over the forward pass, and terms over gradient x input, for ViT-base with 8 x 197 positions.

python -m benchmarks.images
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.explain import TOKENS
from benchmarks.speed import ALL, Spread, in_turns
from normlens.attribution.proof import ProofSettings, check_sums
from normlens.attribution.terms import Run
from normlens.lens import Lens
from normlens.measures.request import Request

#: The targets of the five maps and of the terms.
MAPS, TERMS = 1.3, 1.2


def vit(layers: int = 12) -> nn.Module:
    """ViT-base with random weights."""
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(transformers.ViTConfig(num_hidden_layers=layers)).eval()


def pixels(rows: int = 8) -> dict[str, Tensor]:
    """Noise of 224 x 224 pixels."""
    return {"pixel_values": torch.randn(rows, 3, 224, 224, generator=torch.Generator().manual_seed(0))}


def _first_logits(output: Any) -> Tensor:
    found: Tensor = output.logits[:, 0]
    return found


def _gradient_times_input(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """One forward and one backward pass to the vectors that enter the first layer, no rule."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    kept: list[Tensor] = []

    def hold(module: nn.Module, args: Any, output: Any) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[0]

    hook = model.vit.embeddings.register_forward_hook(hold)
    try:
        _first_logits(model(**inputs)).sum().backward()
    finally:
        hook.remove()
    assert kept[0].grad is not None
    return (kept[0] * kept[0].grad).sum(-1)


def _terms(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    found = Run(model, inputs, TOKENS, integrated=False).explain(_first_logits)
    check_sums(found, ProofSettings("benchmark", torch.float32, "fixed"))


def ratios(rounds: int, layers: int = 12, clock: Callable[[], float] = time.perf_counter) -> tuple[Spread, Spread]:
    """Five maps with their ratios over the forward pass, and tokens over gradient x input."""
    model, inputs = vit(layers), pixels()
    lens = Lens(model)
    request = Request.of(lens.traced.anatomy_for(inputs), measures=ALL)

    def plain() -> None:
        with torch.no_grad():
            model(**inputs)

    works: dict[str, Callable[[], Any]] = {
        "plain": plain,
        "maps": lambda: lens.run(inputs, request, lambda result, block: None),
        "gradient": lambda: _gradient_times_input(model, inputs),
        "tokens": lambda: _terms(model, inputs),
    }
    times = in_turns(works, rounds, clock)
    return Spread.of(times["maps"], times["plain"]), Spread.of(times["tokens"], times["gradient"])


if __name__ == "__main__":
    for name, spread, target in zip(("five maps", "explain, tokens"), ratios(5), (MAPS, TERMS), strict=True):
        print(f"ViT-base 8 x 197, {name}: {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f}), target {target}")
