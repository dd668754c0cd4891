"""Sharing biases among the parts of a pass, in proportion to `|part_k · b|` (DecompX, Modarressi et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normlens.errors import AnatomyError

_TINY = 1e-12  # as in the released code, where no part meets the bias


class BiasShares:
    """Shares the constants of a replayed pass whose rows are parts.

    The last row holds the constants of an attention block until its output has entered the residual stream.

    Args:
        waits: For each constant in the order of the pass, whether it waits for the residual stream.
        rows: The number of rows, the last one included.
    """

    def __init__(self, waits: Sequence[bool], rows: int) -> None:
        self._waits = iter(waits)
        self._rows = rows

    @torch.no_grad()
    def constant(self, out: Tensor, value: Any) -> None:
        """Take a constant off all rows, to which it was added, and give it to the parts or to the last row."""
        rows = self._by_row(out)
        bias = self._by_row(torch.as_tensor(value, dtype=out.dtype, device=out.device).expand(out.shape))[-1].clone()
        rows[:-1] -= bias
        if not next(self._waits):
            self.share(out)

    @torch.no_grad()
    def share(self, out: Tensor) -> None:
        """Give what the last row holds to the others."""
        rows = self._by_row(out)
        bias, parts = rows[-1].clone(), rows[:-1]
        weights = (parts * bias).sum(-1, keepdim=True).abs()
        parts += weights / (weights.sum(0, keepdim=True) + _TINY) * bias
        rows[-1] = 0.0

    def _by_row(self, x: Tensor) -> Tensor:
        """A tensor with rows in front, also where (row, position) was flattened."""
        if x.shape[0] == self._rows:
            return x
        if x.shape[0] % self._rows == 0 and x.ndim == 2:
            return x.view(self._rows, -1, x.shape[1])
        raise AnatomyError(
            f"biases cannot be shared in this model: a constant is added to a tensor of shape {tuple(x.shape)}, which does "
            "not begin with the rows of the batch"
        )
