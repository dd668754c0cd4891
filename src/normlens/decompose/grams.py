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
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.attention import Scratch
from normlens.decompose.process import run_compiled
from normlens.decompose.steps import Normalization, Scaling, Step, linear

#: Where heads cancel below this share of `(sum_h a_h ‖f_h‖)^2` the quadratic form has lost digits: see `Grams.norms`.
CANCELLATION = 1 / 200
#: Numbers of transformed vectors that exist at once on a CPU: they stay in its cache.
CPU_BLOCK_NUMBERS = 2_400_000


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
    values: Float[Tensor, "batch kv_head key width"], w_o: Float[Tensor, "head width model"]
) -> Float[Tensor, "batch head key"]:
    """`‖f_h(x_j)‖` alone, as `v_h (W_h W_h^T) v_h^T`: no vector of the model's width is built."""
    by_head = repeat_values(values, w_o.shape[0])
    squared: Tensor = torch.linalg.vecdot(by_head @ (w_o @ w_o.mT), by_head)
    return squared.clamp_min(0).sqrt()


class Grams:
    """The Gram matrices of one site's keys at several stages, worked out as far as queries look.

    With `diagonal`, each position's weight on itself, `own` gets what each position gives itself at the attention output;
    positions from `late` on must be worked out otherwise, since their vectors were gone before their weight was known.
    The compiled loops and PyTorch lay the matrices out differently, each as it reads them.
    """

    def __init__(
        self,
        values: Float[Tensor, "batch kv_head key width"],
        w_o: Float[Tensor, "head width model"],
        stages: Sequence[tuple[Step, ...]],
        diagonal: Float[Tensor, "batch head query"] | None = None,
        *,
        compiled: bool = False,
        scratch: Scratch | None = None,
    ) -> None:
        batch, _, keys, _ = values.shape
        heads, _, model = w_o.shape
        self._values, self._w_o, self._stages = values, w_o, stages
        self._scratch = Scratch() if scratch is None else scratch
        self._rows = _as_one_step(stages, w_o) if compiled else None
        self._compiled = compiled = self._rows is not None
        self._diagonal = diagonal
        self._done = 0
        count = len(stages)
        if compiled:
            # Lower triangles with all below the diagonal doubled: `a^T lower_j a` is the whole quadratic form.
            self._matrices = values.new_empty(count, batch, heads, heads, keys)
            self._lengths = values.new_empty(count, batch, heads, keys)  # ‖f_h(x_j)‖ at each stage
        else:
            self._matrices = values.new_empty(batch, keys, count, heads, heads)
            self._lengths = values.new_empty(batch, keys, count, heads)
        self.own = None if diagonal is None else values.new_empty(batch, keys, model)
        self.late = 0
        self._lost: Tensor | None = None  # whether digits were lost since somebody asked; off the CPU

    def lengths(self, stage: int) -> Float[Tensor, "batch head key"]:
        """`‖f_h(x_j)‖` at a stage, for the keys that were reached."""
        if self._compiled:
            return self._lengths[stage]
        return self._lengths[:, :, stage].mT

    def extend_to(self, keys: int, known: int) -> None:
        """Compute the matrices of the keys before `keys`; the diagonal is known for the positions before `known`."""
        first = self._done
        if keys <= first:
            return
        self._done = keys
        owned = min(known, keys) if self.own is not None and self.late == first else first
        if self._rows is not None:
            self._loop_over_rows(first, keys, owned)
        else:
            self._build(first, keys, owned)
        self.late = max(self.late, owned)

    def _loop_over_rows(self, first: int, keys: int, owned: int) -> None:
        """The keys from `first` on by the compiled loop; a row is one key of one sequence."""
        assert self._rows is not None
        factors, centred, changed = self._rows
        heads, _, model = self._w_o.shape
        new = repeat_values(self._values[:, :, first:keys], heads).transpose(0, 1).flatten(1, 2)  # head row width
        step = max(1, CPU_BLOCK_NUMBERS // (heads * model))
        for start in range(0, new.shape[1], step):
            rows = new[:, start : start + step]
            f = self._scratch.take("vectors", (heads, rows.shape[1], model), rows)
            torch.bmm(rows, self._w_o, out=f)
            run_compiled(
                "grams",
                f=f,
                factors=factors,
                centred=centred,
                changed=changed,
                start=start,
                first=first,
                count=keys - first,
                lower=self._matrices,
                lengths=self._lengths,
                diagonal=f.new_empty(1, heads, 1) if self._diagonal is None else self._diagonal,
                owned=owned,
                own=f.new_empty(1, 1, model) if self.own is None else self.own,
            )

    def _build(self, first: int, keys: int, owned: int) -> None:
        """The keys from `first` on by PyTorch, some keys of all sequences at a time: a row is a key of one sequence."""
        (heads, _, model), batch = self._w_o.shape, self._values.shape[0]
        device = self._values.device
        most = CPU_BLOCK_NUMBERS if device.type == "cpu" else self._scratch.block_numbers(device)
        step = max(1, most // (heads * model * batch))
        for start in range(first, keys, step):
            stop = min(keys, start + step)
            values = repeat_values(self._values[:, :, start:stop], heads).transpose(0, 1).flatten(1, 2)
            f = torch.bmm(values, self._w_o).unflatten(1, (batch, -1))  # head batch key model
            for n, steps in enumerate(self._stages):
                vectors = linear(steps, f).flatten(1, 2).transpose(0, 1)  # row head model
                self._matrices[:, start:stop, n] = torch.bmm(vectors, vectors.mT).unflatten(0, (batch, -1))
            mine = min(owned, stop) - start  # leading keys whose weight on themselves is known
            if mine > 0 and self.own is not None and self._diagonal is not None:
                weights = self._diagonal[:, :, start : start + mine].mT.unsqueeze(2)  # batch key 1 head
                self.own[:, start : start + mine] = (weights @ f[:, :, :mine].movedim(0, 2)).squeeze(2)
        squares = self._matrices[:, first:keys].diagonal(dim1=-2, dim2=-1)
        self._lengths[:, first:keys] = squares.clamp_min(0).sqrt_()

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
        that square), the pair is worked out again from its vectors in float64 (on another device it is -1 until
        `recompute_cancelled`). Elsewhere the relative error stays below `eps / (2 CANCELLATION)`, 6e-6 in float32.
        """
        batch, _, queries, keys = weights.shape
        here = out[:, :, start : start + queries, :keys]
        if self._compiled:
            lost = torch.zeros(batch, queries, dtype=torch.int64)
            run_compiled(
                "quadratic",
                alpha=weights.contiguous(),
                lower=self._matrices,
                lengths=self._lengths,
                cancellation=CANCELLATION,
                start=start,
                norms=out,
                lost=lost,
            )
        else:
            lost = _quadratic_norms(weights, self._matrices[:, :keys], self._lengths[:, :keys], here)
        if lost.device.type == "cpu":
            if bool(lost.any()):
                self.recompute_cancelled(weights, start, out)
        else:
            found = lost.any()
            self._lost = found if self._lost is None else self._lost | found

    def has_cancellation(self) -> bool:
        """Return True if pairs lost digits since the last call; of another device, one wait for all blocks."""
        lost, self._lost = self._lost, None
        return lost is not None and bool(lost)

    def recompute_cancelled(
        self,
        weights: Float[Tensor, "batch head block seen"],
        start: int,
        out: Float[Tensor, "stage batch query key"],
    ) -> None:
        """Compute the pairs that lost digits in `norms` of the same block from their vectors.

        This is done in float64 on the host: not every device has it.
        """
        block = out[:, :, start : start + weights.shape[2], : weights.shape[3]]
        heads, groups = self._w_o.shape[0], self._values.shape[1]
        kv_head = torch.arange(heads, device=out.device) // (heads // groups)
        for steps, norms in zip(self._stages, block, strict=True):
            lost = (norms < 0).nonzero()
            if not len(lost):
                continue
            on_host = [step.to(torch.float64, torch.device("cpu")) for step in steps]
            matrix = self._w_o.cpu().double().flatten(0, 1)
            for pairs in lost.split(256):
                batch, query, key = pairs.unbind(-1)
                v = self._values[batch[:, None], kv_head, key[:, None]].cpu().double()
                a = weights[batch, :, query, key].cpu().double()
                parts = (a.unsqueeze(-1) * v).flatten(1) @ matrix
                norms[batch, query, key] = linear(on_host, parts).norm(dim=-1).to(norms)


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
    matrices: Float[Tensor, "batch seen stage head head"],
    lengths: Float[Tensor, "batch seen stage head"],
    out: Float[Tensor, "stage batch block seen"],
) -> Bool[Tensor, "row stage block"]:
    """The same as the compiled loop, for every device and all stages at once; lost pairs become -1 and are returned."""
    batch, heads, queries, keys = weights.shape
    by_row = weights.permute(0, 3, 1, 2).reshape(batch * keys, heads, queries)
    forms = torch.bmm(matrices.reshape(batch * keys, -1, heads), by_row).view(batch * keys, -1, heads, queries)
    square = forms.mul_(by_row.unsqueeze(1)).sum(2)  # row stage query
    most = torch.bmm(lengths.reshape(batch * keys, -1, heads), by_row.abs()).square_()
    lost: Tensor = square < most.mul_(CANCELLATION)
    norms = square.clamp_min_(0).sqrt_().masked_fill_(lost, -1.0)
    out.copy_(norms.view(batch, keys, -1, queries).permute(2, 0, 3, 1))
    return lost
