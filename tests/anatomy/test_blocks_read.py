"""What stands around an attention is read from the data, for modules that nobody has seen: streams, groups, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normlens import Lens
from normlens.errors import AnatomyError, InputError
from normlens.families.tiny import tiny_inputs, tiny_model

WIDTH, HEADS, SIZE = 12, 4, 5


class Attention(nn.Module):
    """Attention in plain code, whose heads may be added up in groups before the output projection."""

    def __init__(self, factors: tuple[float, ...]) -> None:
        super().__init__()
        self.factors = factors
        self.q, self.k, self.v = (nn.Linear(WIDTH, HEADS * SIZE) for _ in range(3))
        self.o = nn.Linear(HEADS * SIZE // max(1, len(factors)), WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (m(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for m in (self.q, self.k, self.v))
        heads = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)  # batch query head width
        if self.factors:
            first, *rest = heads.chunk(len(self.factors), dim=2)
            heads = self.factors[0] * first
            for factor, part in zip(self.factors[1:], rest, strict=True):
                heads = heads + factor * part
        result: Tensor = self.o(heads.flatten(2))
        return result


class Layer(nn.Module):
    """Pre-norm attention that is written into residual streams by weights that the input decides."""

    def __init__(self, streams: int, factors: tuple[float, ...] = (), norm_after: bool = False) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(factors)
        self.mix, self.write = nn.Linear(streams * WIDTH, streams), nn.Linear(streams * WIDTH, streams)
        self.after = nn.LayerNorm(WIDTH) if norm_after else nn.Identity()

    def forward(self, streams: Tensor) -> Tensor:  # batch position stream width
        flat = streams.flatten(2)
        x = self.norm((self.mix(flat).sigmoid().unsqueeze(-1) * streams).sum(2))
        written = self.write(flat).sigmoid().unsqueeze(-1) * self.attention(x).unsqueeze(-2)
        result: Tensor = self.after(streams + written)
        return result


class Streams(nn.Module):
    def __init__(self, streams: int, **options: Any) -> None:
        super().__init__()
        self.streams = streams
        self.layers = nn.ModuleList([Layer(streams, **options) for _ in range(2)])

    def forward(self, vectors: Tensor) -> Tensor:
        hidden = vectors.unsqueeze(2).expand(-1, -1, self.streams, -1).contiguous()
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.mean(2)


def parts(layer: Layer, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`alpha`, the parts at the attention output and at the residual sum, one vector at a time."""
    attention, flat = layer.attention, streams.flatten(1)
    weights, x = layer.mix(flat).sigmoid(), []
    for i in range(len(streams)):
        x.append(layer.norm(sum(weights[i, s] * streams[i, s] for s in range(streams.shape[1]))))
    values = attention.v(torch.stack(x)).view(-1, HEADS, SIZE)
    queries, keys = (m(torch.stack(x)).view(-1, HEADS, SIZE) for m in (attention.q, attention.k))
    alpha = torch.stack([(queries[:, h] @ keys[:, h].T).softmax(-1) for h in range(HEADS)])
    groups = attention.factors or (1.0,)
    size = HEADS // len(groups)
    written = layer.write(flat).sigmoid()
    n = len(streams)
    out, summed = torch.zeros(n, n, WIDTH).double(), torch.zeros(n, n, streams.shape[1] * WIDTH).double()
    for i in range(n):
        for j in range(n):
            for h in range(HEADS):
                columns = attention.o.weight[:, h % size * SIZE : (h % size + 1) * SIZE]
                out[i, j] += groups[h // size] * alpha[h, i, j] * (columns @ values[j, h])
            summed[i, j] = torch.cat([written[i, s] * out[i, j] for s in range(streams.shape[1])])
            if i == j:
                summed[i, j] += streams[i].flatten()
    return alpha, out, summed


@pytest.mark.parametrize("factors", [(), (1.0, -0.3), (0.5, 2.0, -1.0, 0.25)], ids=str)
@pytest.mark.parametrize("streams", [1, 3])
def test_streams_and_groups_of_heads_against_loops(streams: int, factors: tuple[float, ...]) -> None:
    torch.manual_seed(streams)
    model = Streams(streams, factors=factors).eval()
    vectors = torch.randn(2, 6, WIDTH)
    found = Lens(model).analyze_inputs({"vectors": vectors})
    reference = model.double()
    for row, analysis in enumerate(found):
        hidden = vectors[row].double().unsqueeze(1).expand(-1, streams, -1)
        for number, layer in enumerate(reference.layers, start=1):
            with torch.no_grad():
                alpha, out, summed = parts(layer, hidden)
                hidden = layer(hidden.unsqueeze(0))[0]
            site = {name: analysis[name].sel(layer=number).values for name in ("alpha", "attn_n", "attnres_n")}
            np.testing.assert_allclose(site["alpha"], alpha, atol=1e-5)
            np.testing.assert_allclose(site["attn_n"], out.norm(dim=-1), rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(site["attnres_n"], summed.norm(dim=-1), rtol=1e-4)
            own = summed.diagonal(dim1=0, dim2=1).T
            context = (summed.sum(1) - own).norm(dim=-1)
            ratio = analysis.mixing_ratio("attnres_n").sel(layer=number).values
            np.testing.assert_allclose(ratio, context / (context + own.norm(dim=-1)), rtol=1e-4, atol=1e-6)


def test_a_normalization_after_several_streams_is_refused() -> None:
    model = Streams(2, norm_after=True).eval()
    with pytest.raises(AnatomyError, match="normalization"):
        Lens(model).analyze_inputs({"vectors": torch.randn(1, 6, WIDTH)})


def test_measures_that_look_past_the_block_say_so_where_there_are_streams() -> None:
    model = Streams(2).eval()
    with pytest.raises(InputError, match="several residual streams"):
        Lens(model).analyze_inputs({"vectors": torch.randn(1, 6, WIDTH)}, measures=["enc_n"])


def test_numbers_computed_from_weights_expire_with_them() -> None:
    """DiffLlama's factor between heads is read when the model is; a change too small for the proof must show, too."""
    model = tiny_model("diffllama")
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    lens.analyze_inputs(inputs)
    model.base_model.layers[0].self_attn.lambda_q1.data.add_(1e-5)
    left, right = (one.analyze_inputs(inputs)[0]["f_norm"].values for one in (lens, Lens(model)))
    np.testing.assert_array_equal(left, right)
