"""Single rules: gates to 1e-7, activations however they are written, and operations without a rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor, nn
from torch.nn import functional

from normlens.attribution import integrated as chosen
from normlens.attribution.observer import TermSelection
from normlens.attribution.terms import Run
from normlens.decompose.activations import mean_activation
from normlens.errors import AnatomyError, NormlensError
from normlens.families.tiny import tiny_inputs, tiny_model
from normlens.lens import Lens


@pytest.mark.parametrize(
    ("name", "act"),
    [("silu", functional.silu), ("gelu", functional.gelu), ("sigmoid", torch.sigmoid), ("relu", torch.relu)],
)
def test_the_share_of_a_gate_to_1e_7(name: str, act: object) -> None:
    a = torch.tensor([-40.0, -7.3, -0.51, -1e-3, 0.0, 2e-4, 0.33, 1.0, 6.1, 31.9, 55.0])
    found = mean_activation(act, ("test", name), a)  # type: ignore[arg-type]
    for x, c in zip(a.tolist(), found.tolist(), strict=True):
        assert c == pytest.approx(_integral(act, x), abs=1e-7 * max(1.0, abs(x))), x


def _integral(act: object, x: float) -> float:
    def at(t: float) -> float:
        return float(act(torch.tensor(t * x, dtype=torch.float64)))  # type: ignore[operator]

    return float(integrate.quad(at, 0, 1, epsabs=1e-12, limit=400)[0])


def _frozen(function: object, x: Tensor) -> tuple[Tensor, Tensor, float]:
    """What a function of one tensor gives, its terms, and its constants."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.eye(x.shape[-1])), nn.Parameter(torch.eye(x.shape[-1]))

        def forward(self, vectors: Tensor) -> Tensor:
            return function(vectors)  # type: ignore[operator, no-any-return]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer()])

        def forward(self, vectors: Tensor) -> tuple[Tensor]:
            return (self.layers[0](vectors),)

    run = Run(Model(), {"vectors": x}, TermSelection(), integrated=False)
    value = run.output[0].detach()
    terms = run.explain(lambda output: output[0].sum((1, 2)))
    return value, terms.tokens[0], float(sum(v.sum() for v in terms.constants.values()))


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), functional.gelu),
        (lambda x: x * torch.sigmoid(x), functional.silu),
        (lambda x: x / (1 + x.abs()), functional.softsign),
        (lambda x: torch.relu(x) ** 2, lambda x: torch.relu(x).square()),
        (lambda x: torch.where(x > 0, 0.8 * x * x + 0.5 * x, (torch.expm1(x) - x) * 0.3 + 0.5 * x), None),
    ],
)
def test_an_activation_is_known_however_it_is_written(written: object, plain: object) -> None:
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    value, tokens, constants = _frozen(written, x)
    # By its slope, all of g(z) belongs to z: each position has the sum of its own entries, and nothing is constant.
    np.testing.assert_allclose(tokens[0], value[0].sum(-1).double(), rtol=1e-5)
    assert constants == 0
    if plain is not None:
        np.testing.assert_allclose(_frozen(plain, x)[1], tokens, atol=3e-3 * float(value.abs().max()))


def test_what_an_activation_is_at_zero_belongs_to_no_input() -> None:
    x = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0))
    value, tokens, constants = _frozen(torch.sigmoid, x)
    assert constants == pytest.approx(0.5 * 24, rel=1e-6)
    np.testing.assert_allclose(tokens[0], (value[0] - 0.5).sum(-1), atol=1e-6)


def test_a_product_of_two_parts_is_shared_half_and_half() -> None:
    x = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(0))
    value, tokens, _ = _frozen(lambda v: v[:, :1] * v[:, 1:], x)
    np.testing.assert_allclose(tokens[0], [float(value.sum()) / 2] * 2, rtol=1e-5)


def test_changes_in_place_are_seen() -> None:
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))

    def change(vectors: Tensor) -> Tensor:
        out = torch.ones_like(vectors)
        out += vectors
        out[:, 0] = 2 * vectors[:, 1]
        return out.mul_(3.0)

    value, tokens, constants = _frozen(change, x)
    assert float(tokens.sum()) + constants == pytest.approx(float(value.sum()), rel=1e-5)
    assert constants == pytest.approx(3.0 * 8)
    np.testing.assert_allclose(tokens[0], [0.0, 9 * float(x[0, 1].sum()), 3 * float(x[0, 2].sum())], rtol=1e-5)


def test_memory_that_nobody_wrote_yet_is_no_number() -> None:
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))

    def copied(vectors: Tensor) -> Tensor:
        whole, pieces = (torch.full_like(vectors, torch.nan) for _ in range(2))
        whole.copy_(vectors[:, :1])
        pieces[..., :2], pieces[..., 2:] = vectors[..., 2:], 3 * vectors[..., :2]
        return whole + pieces

    value, tokens, constants = _frozen(copied, x)
    assert constants == 0
    assert float(tokens.sum()) == pytest.approx(float(value.sum()), rel=1e-5)


def test_an_operation_without_a_rule_is_named() -> None:
    with pytest.raises(AnatomyError, match="`lgamma` has no rule"):
        _frozen(torch.lgamma, torch.rand(1, 3, 4) + 1)


#: What a first prototype lacked: state spaces, linear attention, activations and convolutions of a family's own.
HARD = (
    "mamba", "mamba2", "bamba", "falcon_h1", "jamba", "zamba", "qwen3_next", "kimi_linear", "minimax", "rwkv", "xlstm",
    "recurrent_gemma", "apertus", "bloom", "squeezebert", "gpt_oss", "gemma3n_text", "xlm", "xlnet", "fsmt", "reformer",
)  # fmt: skip


@pytest.mark.parametrize("family", HARD)
def test_families_that_are_hard(family: str) -> None:
    model = tiny_model(family)
    for padded in (False, True):
        for found in Lens(model).explain_inputs(tiny_inputs(model, padded=padded), output=17, position=2):
            assert found.proof.gap < 1e-5
            assert found.proof.replay < 1e-4


@pytest.mark.parametrize(("family", "says"), [("perceiver", "64 positions for 9 input positions"), ("yoso", "`acos`")])
def test_families_that_are_refused(family: str, says: str) -> None:
    model = tiny_model(family)
    with pytest.raises(NormlensError, match=says):
        Lens(model).explain_inputs(tiny_inputs(model, padded=False), output=17, position=2)


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min])
def test_the_path_of_a_softmax_in_closed_form(masked: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, outer = (5 * torch.randn(2, 3, 40, 40, generator=generator) for _ in range(2))
    scores = scores.masked_fill(~torch.ones(40, 40, dtype=torch.bool).tril(), masked)
    if masked > -torch.inf:
        scores[0, :, 7] = masked  # a row of padding looks at everything alike
    plain = chosen._path(lambda x: torch.softmax(x, -1), scores, outer)
    for block in (64, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chosen, "_BLOCK", block)
            for one, other in zip(chosen._softmax_path(scores, outer), plain, strict=True):
                torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("span", [0.1, 1.0, 6.0, 15.0, 30.0, 60.0])
def test_sharper_rows_are_visited_more_often(span: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, outer = (torch.rand(4, 50, generator=generator, dtype=torch.float64) for _ in range(2))
    scores = scores**4 * span
    found = chosen._softmax_path(scores, outer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen, "nodes_for", lambda span: chosen.nodes(200, 2))
        exact = chosen._softmax_path(scores, outer)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6 if span < 20 else 1e-5, rtol=0)
    assert len(chosen.nodes_for(1.0)) < len(chosen.nodes_for(8.0)) < len(chosen.nodes_for(30.0))
