"""Gradient baselines on the same model: how much does the probability of y_t move with the source embeddings?

    li    Σ_d |∂p(y_t) / ∂e_d|          (Li et al. 2016)
    ding  max(0, Σ_d e_d ∂p(y_t) / ∂e_d)  (gradient x input; Ding et al. 2019)

With `samples` above 1 the gradients are averaged over noisy embeddings (SmoothGrad, Smilkov et al. 2017), the noise
being `noise` times the range of the sentence's embeddings, as Ding et al. do with 30 samples of 0.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.anatomy.interface import use_implementation
from normlens.anatomy.scope import PassScope
from normlens.errors import InputError

METHODS = ("li", "ding")
#: Target positions whose gradients are taken in one sweep; bounds memory, changes no number.
_SWEEP = 16


def check_methods(names: Iterable[str]) -> None:
    """Refuse a gradient that nobody knows."""
    for name in names:
        if name not in METHODS:
            raise InputError(f"a gradient method must be one of {', '.join(METHODS)}, got {name!r}")


def saliency(
    model: Any,
    inputs: Mapping[str, Tensor],
    method: str = "ding",
    *,
    samples: int = 1,
    noise: float = 0.15,
    seed: int = 1,
) -> Float[Tensor, "batch query key"]:
    """Saliency of every source token for the token that each decoder step puts out (so rows are read as `awo`).

    One forward pass per sample serves all target positions: the output layer is differentiated once, and the steps'
    gradients are swept back together.
    """
    check_methods([method])
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples}")
    generator = torch.Generator().manual_seed(seed)
    total: Tensor | None = None
    with PassScope(model, grad=True) as scope:
        use_implementation(scope, "eager")  # the gradients of several steps are swept back together
        embeddings = _Embeddings(scope)
        for _ in range(samples):
            embeddings.noise = (noise, generator) if samples > 1 else None
            gradients, vectors = _gradients(model, inputs, embeddings)
            one = gradients.abs().sum(-1) if method == "li" else (gradients * vectors.unsqueeze(1)).sum(-1)
            total = one if total is None else total + one
    assert total is not None
    return (total / samples).clamp(min=0)


class _Embeddings:
    """The source's embedded tokens as a leaf of the graph, with noise where asked; and what enters the output layer."""

    def __init__(self, scope: PassScope) -> None:
        self.noise: tuple[float, torch.Generator] | None = None
        self.vectors: Tensor | None = None
        self.hidden: Tensor | None = None
        model: Any = scope.model
        scope.after(model.get_encoder().get_input_embeddings(), self._embedded)
        scope.before(model.get_output_embeddings(), self._entering)

    def _embedded(self, module: Any, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
        if self.vectors is not None:  # the decoder may share the module: only the first call is the source
            return None
        vectors = output.detach()
        if self.noise is not None:
            share, generator = self.noise
            spread = vectors.amax((1, 2), keepdim=True) - vectors.amin((1, 2), keepdim=True)
            drawn = torch.randn(vectors.shape, generator=generator).to(vectors)
            vectors = vectors + share * spread * drawn
        self.vectors = vectors.requires_grad_(True)
        return self.vectors

    def _entering(self, module: Any, args: Any, kwargs: Any) -> None:
        self.hidden = args[0]


def _gradients(
    model: Any, inputs: Mapping[str, Tensor], embeddings: _Embeddings
) -> tuple[Float[Tensor, "batch query key model"], Float[Tensor, "batch key model"]]:
    embeddings.vectors = embeddings.hidden = None
    logits = model(**inputs, use_cache=False).logits
    vectors, hidden = embeddings.vectors, embeddings.hidden
    assert vectors is not None and hidden is not None
    labels = inputs["decoder_input_ids"].roll(-1, dims=1)  # the last step's label is no word: its row is never read
    probability = logits.softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    # A step's probability depends on its own state alone, so one pass differentiates all steps' output layers.
    (at_output,) = torch.autograd.grad(probability.sum(), hidden, retain_graph=True)
    steps = hidden.shape[1]
    swept = []
    for start in range(0, steps, _SWEEP):
        chosen = torch.arange(start, min(start + _SWEEP, steps))
        alone = torch.zeros(len(chosen), *hidden.shape, dtype=hidden.dtype, device=hidden.device)
        alone[torch.arange(len(chosen)), :, chosen] = at_output[:, chosen].transpose(0, 1)
        (gradient,) = torch.autograd.grad(hidden, vectors, alone, retain_graph=True, is_grads_batched=True)
        swept.append(gradient)
    return torch.cat(swept).transpose(0, 1).detach(), vectors.detach()
