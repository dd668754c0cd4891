"""Gram matrices of heads: the norm of a weighted sum of vectors without ever building the sum.

For one key `j` let `F_j` be the `head x model` matrix of its transformed vectors `f_h(x_j)` and `G_j = F_j F_j^T`.
With `a` the attention weights of one (query, key) pair over the heads, `‖sum_h a_h f_h‖^2 = a^T G_j a`: the norm of a
vector in the model's width costs one small quadratic form, and no `[head, query, key, model]` tensor exists.

`F_j` itself is built for a block of keys at a time, once for all places: what stands between the attention output and
the residual stream scales and centres its rows, which is cheap. While it is there, the part that a position gives
itself, `sum_h alpha_hjj f_h(x_j)`, is taken from it too. So everything together costs one product of the model's width
squared per position, out of the layer's twelve.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose import kernels
from normlens.decompose.heads import Projection, repeat_values
from normlens.decompose.workspace import Workspace

#: Where heads cancel below this share of `(sum_h a_h ‖f_h‖)^2` the quadratic form has lost digits: see `Grams.norms`.
CANCELLATION = 1 / 200
#: Numbers of transformed vectors that exist at once: they stay in a processor's cache, or keep another device busy.
BLOCK_NUMBERS = {"cpu": 2_400_000}
OTHER_BLOCK_NUMBERS = 32_000_000


class Grams:
    """The Gram matrices of one site's keys as several projections see them, worked out as far as queries look.

    `lower` holds the lower triangles, with all that stands below the diagonal doubled, so that `a^T lower_j a` is the
    whole quadratic form; `lengths` are the norms of the transformed vectors. Vectors are made as `built` sees them: the one
    projection that is looked through, or that of the attention output, from which the others follow by their steps. `own`
    holds what each position gives itself, as `built` sees it, for the positions before `owned`.
    """

    def __init__(
        self,
        values: Float[Tensor, "batch kv_head key width"],
        projections: Sequence[Projection],
        built: Projection,
        own: Float[Tensor, "batch query model"] | None = None,
        space: Workspace | None = None,
    ) -> None:
        batch, _, keys, _ = values.shape
        heads = projections[0].at_attention.shape[0]
        self._values = values
        self._projections = projections
        self._built = built
        self._space = Workspace() if space is None else space
        self.lower = values.new_zeros(len(projections), batch, heads, heads, keys)
        self.lengths = values.new_zeros(len(projections), batch, heads, keys)
        self._simple = _simple(projections, built)
        self.own = own
        self.owned = 0
        self._done = 0

    def reach(self, keys: int, diagonal: Float[Tensor, "batch head query"] | None = None, known: int = 0) -> None:
        """Work out the keys before `keys`; `diagonal` holds each position's weight on itself, before `known`."""
        first = self._done
        if keys <= first:
            return
        self._done = keys
        weight = self._built.weight
        heads, _, model = weight.shape
        new = repeat_values(self._values[:, :, first:keys], heads).transpose(0, 1).flatten(1, 2)  # head row width
        most = BLOCK_NUMBERS.get(new.device.type, OTHER_BLOCK_NUMBERS)
        step = max(1, most // (heads * model))
        owned = min(known, keys) if self.own is not None and diagonal is not None and self.owned == first else first
        for start in range(0, new.shape[1], step):
            rows = new[:, start : start + step]
            f = self._space.take("vectors", (heads, rows.shape[1], model), rows)
            torch.bmm(rows, weight, out=f)
            self._block(f, start, first, keys - first, diagonal, owned)
        self.owned = max(self.owned, owned)

    def _block(self, f: Tensor, start: int, first: int, count: int, diagonal: Tensor | None, owned: int) -> None:
        """`f` is (head, row, model); rows are pairs of sequence and key from `start` on, `count` keys a sequence."""
        if self._simple is not None and kernels.usable(f.numel() * f.shape[0], f):
            kernels.run(
                "grams",
                f,
                *self._simple,
                start,
                first,
                count,
                self.lower,
                self.lengths,
                f.new_empty(1, f.shape[0], 1) if diagonal is None else diagonal,
                owned,
                f.new_empty(1, 1, f.shape[2]) if self.own is None else self.own,
            )
            return
        row = torch.arange(start, start + f.shape[1], device=f.device)
        batch, key = row // count, first + row % count
        for n, projection in enumerate(self._projections):
            vectors = (f if projection is self._built else projection.carry(f)).transpose(0, 1)  # row head model
            gram = vectors @ vectors.transpose(1, 2)
            self.lower[n, batch, :, :, key] = gram.tril() + gram.tril(-1)
            self.lengths[n, batch, :, key] = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        if owned > first and self.own is not None and diagonal is not None:
            mine = key < owned
            batch, key = batch[mine], key[mine]
            self.own[batch, key] = torch.einsum("rh,hrd->rd", diagonal[batch, :, key], f[:, mine])

    def norms(
        self,
        alpha: Float[Tensor, "batch head block seen"],
        start: int,
        out: Float[Tensor, "projection batch query key"],
    ) -> None:
        """`‖sum_h alpha_h f_h(x_j)‖` for each pair of query and key (2021, Equation 5), once for each projection.

        `alpha` holds the queries from `start` on and the keys that they see, which must have been reached; the result
        goes to their place in `out`. The quadratic form's rounding error is at most about
        `eps (sum_h |a_h| ‖f_h‖)^2`. Where the heads cancel so far that this shows in the root (below `CANCELLATION` of
        that square), the pair is worked out again from its vectors in float64; everywhere else the relative error of
        the norm stays below `eps / (2 CANCELLATION)`, 6e-6 in float32.
        """
        batch, heads, queries, keys = alpha.shape
        if kernels.usable(batch * queries * keys * heads * heads, alpha):
            lost = torch.zeros(batch, queries, dtype=torch.int64)
            kernels.run("quadratic", alpha.contiguous(), self.lower, self.lengths, CANCELLATION, start, out, lost)
            any_lost = bool(lost.any())
        else:
            for gram, length, norms in zip(self.lower, self.lengths, out, strict=True):
                _quadratic_norms(alpha, gram[..., :keys], length[..., :keys], norms[:, start : start + queries, :keys])
            any_lost = True
        if any_lost:
            for projection, norms in zip(self._projections, out, strict=True):
                _recompute(alpha, self._values, projection, norms[:, start : start + queries, :keys])


def _simple(projections: Sequence[Projection], built: Projection) -> tuple[Tensor, Tensor, Tensor] | None:
    """The steps from `built` to each projection as one: factors, whether it centres, whether it does anything at all."""
    steps = [projection.one_step for projection in projections]
    found = [step for step in steps if step is not None]
    if len(found) < len(steps):
        return None
    changed = torch.tensor([projection is not built and bool(projection.steps) for projection in projections])
    centred = torch.tensor([centres for centres, _ in found]) & changed
    return torch.stack([factor for _, factor in found]), centred, changed


def _quadratic_norms(
    alpha: Float[Tensor, "batch head block seen"],
    lower: Float[Tensor, "batch head head seen"],
    length: Float[Tensor, "batch head seen"],
    out: Float[Tensor, "batch block seen"],
) -> None:
    """The same as the compiled loop, for every device; lost pairs become negative."""
    for b in range(alpha.shape[0]):
        weights = alpha[b].permute(2, 0, 1).contiguous()  # key head query
        square = ((lower[b].permute(2, 0, 1) @ weights) * weights).sum(1)
        most = (length[b].T.unsqueeze(1) @ weights.abs()).squeeze(1).square()
        out[b] = square.clamp_min(0).sqrt().masked_fill(square < CANCELLATION * most, -1.0).T


def _recompute(
    alpha: Float[Tensor, "batch head block seen"],
    values: Float[Tensor, "batch kv_head key width"],
    projection: Projection,
    out: Float[Tensor, "batch block seen"],
) -> None:
    """Work out the pairs whose digits were lost, from their vectors in float64."""
    lost = (out < 0).nonzero()
    if not len(lost):
        return
    heads = alpha.shape[1]
    kv_head = torch.arange(heads, device=alpha.device) // (heads // values.shape[1])
    weight = projection.weight.double().flatten(0, 1)
    for pairs in lost.split(256):
        batch, query, key = pairs.unbind(-1)
        v = values[batch[:, None], kv_head, key[:, None]].double()
        parts = (alpha[batch, :, query, key].double().unsqueeze(-1) * v).flatten(1) @ weight
        out[batch, query, key] = parts.norm(dim=-1).to(out.dtype)
