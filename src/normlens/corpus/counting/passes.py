"""Batches through the model: sequences share a forward pass only where that changes no bit of their numbers.

A corpus run promises the same numbers for every batch size and order. Most libraries for matrix products keep that
promise row by row, except for a handful of rows, where they take another path; none documents it. So it is tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normlens.corpus.counting.batches import Batch
from normlens.decompose.attention import WHOLE_NUMBERS
from normlens.inputs.encoding import padding_id
from normlens.measures.request import Request
from normlens.measures.run import SiteResult

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Shorter sequences always go alone, on one thread: products of a few rows are rounded in their own way, and by threads.
FEWEST_POSITIONS = 16
_ROWS = (16, 23, 64, 100, 128, 257, 512)
_MOST = 640


class ForwardPasses:
    """Runs batches through a model so that a sequence's numbers depend on nothing but itself.

    Sequences of one length go through the model together where that changes no bit of them (the first batch is run both
    ways to see it), else one by one. `batched` runs whole batches in any case; then numbers may depend on the batch
    in their last digits.
    """

    def __init__(self, lens: Lens, request: Request, *, batched: bool) -> None:
        self._lens, self._request, self._whole_batches = lens, request, batched
        self._device = next(lens.model.parameters()).device
        self._pad = padding_id(lens.model, lens.tokenizer)
        self._share: bool | None = True if batched else None  # None: not tried yet

    def run(self, batch: Batch, handle: Callable[[SiteResult], None]) -> None:
        """Hand each site's numbers of the batch to `handle`, in the order of the sites."""
        if len(batch.sequences) == 1 or (self._share and self._may_share(batch)):
            self._pass(batch, handle)
            return
        alone: list[list[SiteResult]] = []
        for sequence in batch.sequences:
            alone.append([])
            self._pass(Batch([sequence]), alone[-1].append)
        apart = [_joined(results) for results in zip(*alone, strict=True)]
        if self._share is None and self._may_share(batch):
            at_once: list[SiteResult] = []
            if rows_stand_alone(self._lens.model):
                self._pass(batch, at_once.append)
            self._share = bool(at_once) and all(map(_same_bits, at_once, apart))
        for result in apart:
            handle(result)

    def _pass(self, batch: Batch, handle: Callable[[SiteResult], None]) -> None:
        inputs = batch.inputs(self._pad, self._device)
        with _steady_rounding(min(side.ids.size for side in batch.sides)):
            self._lens.run(inputs, self._request, lambda result, block: handle(result))

    def _may_share(self, batch: Batch) -> bool:
        """Not where a product has few rows, nor where attention would be cut into other blocks than for one sequence."""
        lengths = [side.ids.shape[1] for side in batch.sides]
        heads = max(site.heads for site in self._request.sites)
        fits = len(batch.sequences) * heads * max(lengths) ** 2 <= WHOLE_NUMBERS
        return self._whole_batches or (min(lengths) >= FEWEST_POSITIONS and fits)


@torch.inference_mode()
def rows_stand_alone(model: nn.Module) -> bool:
    """Whether each row of the model's linear maps comes out bit for bit alike, alone and among others."""
    for linear in _one_of_each_shape(model):
        inputs = torch.randn(_MOST, linear.in_features, generator=torch.Generator().manual_seed(0))
        inputs = inputs.to(linear.weight.device, linear.weight.dtype)
        whole: Tensor = linear(inputs)
        for rows in _ROWS:
            for start in (0, _MOST - rows):
                if not torch.equal(linear(inputs[start : start + rows]), whole[start : start + rows]):
                    return False
    return True


def _one_of_each_shape(model: nn.Module) -> Iterator[nn.Linear]:
    met = set()
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.is_floating_point():
            shape = (*module.weight.shape, module.bias is None)
            if shape not in met:
                met.add(shape)
                yield module


@contextmanager
def _steady_rounding(positions: int) -> Iterator[None]:
    """Inside, so few positions are rounded the same whatever number of threads the process has."""
    threads = torch.get_num_threads()
    if positions >= FEWEST_POSITIONS or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _same_bits(one: SiteResult, other: SiteResult) -> bool:
    groups = ((one.values, other.values), (one.mixing, other.mixing), (one.residual, other.residual))
    return all(torch.equal(a[name], b[name]) for a, b in groups for name in a)


def _joined(results: Sequence[SiteResult]) -> SiteResult:
    """One site's results of several sequences of one length, as one batch."""

    def stacked(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return SiteResult(
        results[0].kind,
        results[0].layer,
        stacked([result.values for result in results]),
        stacked([result.mixing for result in results]),
        stacked([result.residual for result in results]),
        torch.cat([result.query_mask for result in results]),
        torch.cat([result.key_mask for result in results]),
        torch.cat([result.proof for result in results]),
    )
