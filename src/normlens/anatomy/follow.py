"""Find attention that a model's own code does: follow the weights from the softmax to the product with the values.

Many families do not hand their attention to transformers' interface. At the level of PyTorch's dispatcher they all do
the same: a softmax, perhaps a mask or a copy, and one batched product with the values. `SoftmaxFollower` watches operations
as they run and gives a `AttentionProduct` for each such one; the same class serves the traced pass and every later run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from normlens.anatomy.operations import LAYOUT
from normlens.errors import AnatomyError

_SOFTMAX = {"aten::_softmax", "aten::_safe_softmax", "aten::softmax"}
_PRODUCT = {"aten::bmm", "aten::mm", "aten::matmul"}
#: What may stand between the softmax and the product beside other layouts of the same weights: their masking.
_MASKS = {f"aten::{name}" for name in ["mul", "mul_", "div", "masked_fill", "masked_fill_", "where", "nan_to_num"]}


@dataclass(frozen=True)
class AttentionProduct:
    """One product of attention weights and values, as it ran and in the common layout."""

    product: Tensor  # what the operation gave
    value: Tensor  # what it was given as values
    alpha: Float[Tensor, "batch head query key"]
    values: Float[Tensor, "batch head key width"]
    heads: Float[Tensor, "batch query head width"]


class SoftmaxFollower:
    """Watches operations; one for each region in which attention is looked for."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        #: Weights by identity, with the tensor itself (so that no other can take its identity) and batch x heads.
        self._weights: dict[int, tuple[Tensor, tuple[int, int] | None]] = {}
        #: Softmax results that have not met values yet, by identity; and from which one each copy comes.
        self.waiting: dict[int, Tensor] = {}
        self._origin: dict[int, int] = {}

    def see(self, name: str, args: Any, result: Any) -> AttentionProduct | None:
        """Take note of one operation; the product with the values ends the way."""
        if name in _SOFTMAX:
            if result.ndim >= 3:
                self._weights[id(result)] = result, self._layout(result)
                self._origin[id(result)] = id(result)
                self.waiting[id(result)] = result
            return None
        if not self._weights or not isinstance(result, Tensor):
            return None
        if name in _PRODUCT:
            return self._product(args, result)
        if name in LAYOUT or name in _MASKS:
            for argument in args:
                known = self._weights.get(id(argument)) if isinstance(argument, Tensor) else None
                if known is None or known[0] is not argument:
                    continue
                if name in _MASKS and result.shape != argument.shape:
                    continue
                self._weights[id(result)] = result, known[1]
                self._origin[id(result)] = self._origin[id(argument)]
        return None

    def _layout(self, weights: Tensor) -> tuple[int, int] | None:
        if weights.ndim == 4:
            return weights.shape[0], weights.shape[1]
        if weights.ndim == 3 and weights.shape[0] % self._batch == 0:
            return self._batch, weights.shape[0] // self._batch
        return None

    def _product(self, args: Any, result: Tensor) -> AttentionProduct | None:
        left, right = args[0], args[1]
        for weights, values, turned in ((left, right, False), (right, left, True)):
            known = self._weights.get(id(weights))
            if known is None or known[0] is not weights:
                continue
            if known[1] is None or weights.ndim != 3 or weights.shape[0] != known[1][0] * known[1][1]:
                raise AnatomyError(
                    f"attention weights of shape {tuple(weights.shape)} met values of shape "
                    f"{tuple(values.shape)}, so this attention does not look at all keys at once; see "
                    "docs/adding_a_family.md"
                )
            self.waiting.pop(self._origin[id(weights)], None)
            by_head, product = (values, result) if not turned else (values.mT, result.mT)
            alpha = (weights.mT if turned else weights).unflatten(0, known[1])
            return AttentionProduct(
                result, values, alpha, by_head.unflatten(0, known[1]), product.unflatten(0, known[1]).transpose(1, 2)
            )
        return None
