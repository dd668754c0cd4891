"""Gram matrices of heads: the norm of a weighted sum of vectors without ever building the sum.

For one key `j` let `F_j` be the `head x model` matrix of its transformed vectors `f_h(x_j)` and `G_j = F_j F_j^T`.
With `a` the attention weights of one (query, key) pair over the heads, `‖sum_h a_h f_h‖^2 = a^T G_j a`: the norm of a
vector in the model's width costs one small quadratic form, and no `[head, query, key, model]` tensor exists.

`F_j` itself is built for a block of keys at a time, once for all stages: what stands between the attention output and
the residual stream scales and centres its rows, which is cheap. While it is there, the part that a position gives
itself, `sum_h alpha_hjj f_h(x_j)`, is taken from it too. So everything together costs one product of the model's width
squared per position, out of the layer's twelve.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.attention import Scratch
from normlens.decompose.process import run_compiled
from normlens.decompose.steps import Normalization, Scaling, Step, linear

#: Where heads cancel below this share of `(sum_h a_h ‖f_h‖)^2` the quadratic form has lost digits: see `Grams.norms`.
CANCELLATION = 1 / 200
#: Numbers of transformed vectors that exist at once: they stay in a processor's cache, or keep another device busy.
BLOCK_NUMBERS = {"cpu": 2_400_000}
OTHER_BLOCK_NUMBERS = 32_000_000


def split_heads(weight: Float[Tensor, "heads_width model"], heads: int) -> Float[Tensor, "head width model"]:
    """Each head's own rows of the output projection."""
    by_head: Tensor = weight.unflatten(0, (heads, -1))
    return by_head


def repeat_values(
    values: Float[Tensor, "batch kv_head key width"], heads: int
) -> Float[Tensor, "batch head key width"]:
    """The value vectors by *query* head: heads of one group stand side by side and share their values."""
    return values if values.shape[1] == heads else values.repeat_interleave(heads // values.shape[1], dim=1)


def f_norms(
    values: Float[Tensor, "batch kv_head key width"], weight: Float[Tensor, "head width model"]
) -> Float[Tensor, "batch head key"]:
    """`‖f_h(x_j)‖` alone, as `v_h (W_h W_h^T) v_h^T`: no vector of the model's width is built."""
    by_head = repeat_values(values, weight.shape[0])
    squared: Tensor = torch.linalg.vecdot(by_head @ (weight @ weight.mT), by_head)
    return squared.clamp_min(0).sqrt()


class Grams:
    """The Gram matrices of one site's keys at several stages, worked out as far as queries look.

    `lower` holds the lower triangles, with all that stands below the diagonal doubled, so that `a^T lower_j a` is the
    whole quadratic form; `lengths` are the norms of the transformed vectors. With `diagonal`, each position's weight on
    itself, `own` gets what each position gives itself at the attention output; positions from `late` on must be worked
    out otherwise, since their vectors were gone before their weight was known.
    """

    def __init__(
        self,
        values: Float[Tensor, "batch kv_head key width"],
        weight: Float[Tensor, "head width model"],
        stages: Sequence[tuple[Step, ...]],
        diagonal: Float[Tensor, "batch head query"] | None = None,
        *,
        compiled: bool = False,
        scratch: Scratch | None = None,
    ) -> None:
        batch, _, keys, _ = values.shape
        heads, _, model = weight.shape
        self._values, self._weight, self._stages = values, weight, stages
        self._scratch = Scratch() if scratch is None else scratch
        self._compiled = compiled
        self._rows = _as_one_step(stages, weight) if compiled else None
        self._diagonal = diagonal
        self._done = 0
        self.lower = values.new_zeros(len(stages), batch, heads, heads, keys)
        self.lengths = values.new_zeros(len(stages), batch, heads, keys)
        self.own = None if diagonal is None else values.new_empty(batch, keys, model)
        self.late = 0

    def reach(self, keys: int, known: int) -> None:
        """Work out the keys before `keys`; the diagonal is known for the positions before `known`."""
        first = self._done
        if keys <= first:
            return
        self._done = keys
        heads, _, model = self._weight.shape
        new = repeat_values(self._values[:, :, first:keys], heads).transpose(0, 1).flatten(1, 2)  # head row width
        step = max(1, BLOCK_NUMBERS.get(new.device.type, OTHER_BLOCK_NUMBERS) // (heads * model))
        owned = min(known, keys) if self.own is not None and self.late == first else first
        for start in range(0, new.shape[1], step):
            rows = new[:, start : start + step]
            f = self._scratch.take("vectors", (heads, rows.shape[1], model), rows)
            torch.bmm(rows, self._weight, out=f)
            self._block(f, start, first, keys - first, owned)
        self.late = max(self.late, owned)

    def _block(self, f: Tensor, start: int, first: int, count: int, owned: int) -> None:
        """`f` is (head, row, model); rows are pairs of sequence and key from `start` on, `count` keys a sequence."""
        if self._rows is not None:
            factors, centred, changed = self._rows
            run_compiled(
                "grams",
                f=f,
                factors=factors,
                centred=centred,
                changed=changed,
                start=start,
                first=first,
                count=count,
                lower=self.lower,
                lengths=self.lengths,
                diagonal=f.new_empty(1, f.shape[0], 1) if self._diagonal is None else self._diagonal,
                owned=owned,
                own=f.new_empty(1, 1, f.shape[2]) if self.own is None else self.own,
            )
            return
        # Whole sequences are laid down in one piece each; a block that cuts one is laid down row by row.
        rows = f.shape[1]
        pieces = [(start // count, 0, count, rows // count)] if start % count == 0 and rows % count == 0 else []
        if not pieces:
            pieces = [(row // count, row % count, 1, 1) for row in range(start, start + rows)]
        taken = 0
        for batch, offset, width, sequences in pieces:
            here = f[:, taken : taken + width * sequences].unflatten(1, (sequences, width))  # head batch key model
            taken += width * sequences
            to, keys = slice(batch, batch + sequences), slice(first + offset, first + offset + width)
            for n, steps in enumerate(self._stages):
                vectors = linear(steps, here).permute(1, 2, 0, 3)  # batch key head model
                gram = vectors @ vectors.mT
                self.lower[n, to, :, :, keys] = (gram.tril() + gram.tril(-1)).permute(0, 2, 3, 1)
                self.lengths[n, to, :, keys] = gram.diagonal(dim1=2, dim2=3).clamp_min(0).sqrt().transpose(1, 2)
            mine = min(owned, keys.stop) - keys.start  # leading keys whose weight on themselves is known
            if mine > 0 and self.own is not None and self._diagonal is not None:
                weights = self._diagonal[to, :, keys.start : keys.start + mine]
                self.own[to, keys.start : keys.start + mine] = torch.einsum("bhk,hbkd->bkd", weights, here[:, :, :mine])

    def norms(
        self,
        weights: Float[Tensor, "batch head block seen"],
        start: int,
        out: Float[Tensor, "stage batch query key"],
    ) -> None:
        """`‖sum_h a_h f_h(x_j)‖` for each pair of query and key (2021, Equation 5), once for each stage.

        `weights` holds the queries from `start` on and the keys that they see, which must have been reached; the result
        goes to their place in `out`. The quadratic form's rounding error is at most about
        `eps (sum_h |a_h| ‖f_h‖)^2`. Where the heads cancel so far that this shows in the root (below `CANCELLATION` of
        that square), the pair is worked out again from its vectors in float64; everywhere else the relative error of
        the norm stays below `eps / (2 CANCELLATION)`, 6e-6 in float32.
        """
        batch, _, queries, keys = weights.shape
        any_lost = True
        if self._compiled:
            lost = torch.zeros(batch, queries, dtype=torch.int64)
            run_compiled(
                "quadratic",
                alpha=weights.contiguous(),
                lower=self.lower,
                lengths=self.lengths,
                cancellation=CANCELLATION,
                start=start,
                norms=out,
                lost=lost,
            )
            any_lost = bool(lost.any())
        else:
            for gram, length, norms in zip(self.lower, self.lengths, out, strict=True):
                _quadratic_norms(
                    weights, gram[..., :keys], length[..., :keys], norms[:, start : start + queries, :keys]
                )
        if any_lost:
            for steps, norms in zip(self._stages, out, strict=True):
                _recompute(weights, self._values, self._weight, steps, norms[:, start : start + queries, :keys])


def _as_one_step(stages: Sequence[tuple[Step, ...]], weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Each stage's steps as one, `factor * (vector - its mean, if centred)`: the factors, whether it centres, and whether
    it does anything at all. None where a stage is more than that: its mean is taken after a scaling by coordinate.
    """
    factors, centring = [], []
    for steps in stages:
        centred, factor, uniform = False, weight.new_ones(weight.shape[-1]), True
        for step in steps:
            scale: float | Tensor | None = None
            if isinstance(step, Normalization):
                if step.centred and not uniform:
                    return None
                centred, scale = centred or step.centred, step.weight
            elif isinstance(step, Scaling):
                scale = step.factor
            if scale is not None:
                factor, uniform = factor * scale, uniform and (isinstance(scale, float) or scale.numel() == 1)
        factors.append(factor)
        centring.append(centred)
    return torch.stack(factors), torch.tensor(centring), torch.tensor([bool(steps) for steps in stages])


def _quadratic_norms(
    weights: Float[Tensor, "batch head block seen"],
    lower: Float[Tensor, "batch head head seen"],
    length: Float[Tensor, "batch head seen"],
    out: Float[Tensor, "batch block seen"],
) -> None:
    """The same as the compiled loop, for every device; lost pairs become negative."""
    by_key = weights.permute(0, 3, 1, 2).contiguous()  # batch key head query
    square = ((lower.permute(0, 3, 1, 2) @ by_key) * by_key).sum(2)
    most = (length.mT.unsqueeze(2) @ by_key.abs()).squeeze(2).square()
    out.copy_(square.clamp_min(0).sqrt().masked_fill(square < CANCELLATION * most, -1.0).mT)


def _recompute(
    weights: Float[Tensor, "batch head block seen"],
    values: Float[Tensor, "batch kv_head key width"],
    weight: Float[Tensor, "head width model"],
    steps: tuple[Step, ...],
    out: Float[Tensor, "batch block seen"],
) -> None:
    """Work out the pairs whose digits were lost, from their vectors in float64."""
    lost = (out < 0).nonzero()
    if not len(lost):
        return
    heads = weights.shape[1]
    kv_head = torch.arange(heads, device=weights.device) // (heads // values.shape[1])
    matrix, steps = weight.double().flatten(0, 1), tuple(step.to(torch.float64) for step in steps)
    for pairs in lost.split(256):
        batch, query, key = pairs.unbind(-1)
        v = values[batch[:, None], kv_head, key[:, None]].double()
        parts = (weights[batch, :, query, key].double().unsqueeze(-1) * v).flatten(1) @ matrix
        out[batch, query, key] = linear(steps, parts).norm(dim=-1).to(out.dtype)
