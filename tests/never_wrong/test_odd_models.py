"""Explanations of models with odd code: embeddings that move tokens, states that are cut off, settings that change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import Tensor, nn
from torch.nn import functional as nnf

from normlens import Lens
from normlens.anatomy.scope import PassScope, all_modules
from normlens.errors import AnatomyError, InputError, NormlensError
from normlens.families.tiny import tiny_model
from normlens.provenance import content_hash
from tests.never_wrong.test_explanations import llama, randomized
from tests.never_wrong.test_restored import model_state

IDS = torch.tensor([[5, 9, 12, 7]])


class Embedding(nn.Module):
    """A table that is looked up by code of its own."""

    def __init__(self, table: nn.Embedding, look_up: Callable[[nn.Embedding, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.look_up = table, look_up

    def forward(self, ids: Tensor) -> Tensor:
        return self.look_up(self.table, ids)


def with_embedding(look_up: Callable[[nn.Embedding, Tensor], Tensor]) -> Any:
    model = llama()
    model.model.embed_tokens = Embedding(model.model.embed_tokens, look_up)
    return model


def tokens(model: nn.Module, ids: Tensor = IDS, **options: Any) -> np.ndarray:
    (found,) = Lens(model).explain_inputs({"input_ids": ids}, output=7, **options)
    return found["tokens"].values


def written_into_a_view(table: nn.Embedding, ids: Tensor) -> Tensor:
    shifted = torch.zeros_like(ids)
    shifted[:, 1:].copy_(ids[:, :-1])
    return table(shifted)


REVERSED = torch.tensor([[3, 2, 1, 0]])
MOVING: dict[str, Callable[[nn.Embedding, Tensor], Tensor]] = {
    "padded on the left": lambda e, i: e(nnf.pad(i, (1, -1))),
    "written into a view": written_into_a_view,
    "split and joined": lambda e, i: e(torch.cat([i.new_zeros(1, 1), i.split([3, 1], 1)[0]], 1)),
    "taken along": lambda e, i: e(torch.take_along_dim(i, REVERSED, 1)),
    "scattered": lambda e, i: e(torch.zeros_like(i).scatter(1, REVERSED, i)),
    "unbound": lambda e, i: e(torch.stack(i.unbind(1)[::-1], 1)),
    "sorted": lambda e, i: e(i.sort(1).values),
    "through a list": lambda e, i: e(torch.tensor([row[::-1] for row in i.tolist()])),
    "chosen by position": lambda e, i: e(torch.where(torch.arange(4) < 2, i, i.flip(1))),
    "in two pieces": lambda e, i: torch.cat([e(i[:, :2]), e(i[:, 2:])], 1),
    "one by one": lambda e, i: torch.cat([e(i[:, k : k + 1]) for k in range(4)], 1),
    "with its neighbour": lambda e, i: e(i) + e(i.roll(1, 1)),
    "as a sum of neighbours": lambda e, i: e((i + i.flip(1)) % 40),
}


@pytest.mark.parametrize("name", MOVING)
def test_tokens_that_the_models_code_moves_are_refused(name: str) -> None:
    with pytest.raises(AnatomyError, match="belong to no token"):
        tokens(with_embedding(MOVING[name]))


KEEPING: dict[str, Callable[[nn.Embedding, Tensor], Tensor]] = {
    "by index": lambda e, i: e.weight[i],
    "from a copy": lambda e, i: e(i.clone().view(1, -1).to(torch.int64)),
    "with padding hidden": lambda e, i: e(torch.where(i == 39, torch.zeros_like(i), i)),
    "transposed": lambda e, i: e(i.T.contiguous()).transpose(0, 1),
}


@pytest.mark.parametrize("name", KEEPING)
def test_tokens_that_stay_have_the_terms_of_the_plain_model(name: str) -> None:
    np.testing.assert_allclose(tokens(with_embedding(KEEPING[name])), tokens(llama()), atol=1e-12)


def test_positions_of_the_shape_of_ids_are_no_tokens() -> None:
    settings: dict[str, Any] = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "vocab_size": 40}
    config = tf.DistilBertConfig(**settings, max_position_embeddings=30)
    model: Any = randomized(tf.DistilBertForSequenceClassification(config))
    table = model.distilbert.embeddings.word_embeddings.weight.data
    table[:] = table[:1].clone()  # all words are the same
    del model.distilbert.embeddings.position_ids  # then positions are made with `expand_as(input_ids)`
    (found,) = Lens(model).explain_inputs({"input_ids": IDS}, output=1)
    np.testing.assert_allclose(found["tokens"], 0.0, atol=1e-12)


@pytest.mark.parametrize("family", ["fnet", "funnel", "convbert"])
@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_what_padding_gave_is_no_tokens(family: str, baseline: Any) -> None:
    model = tiny_model(family).double()
    ids, mask = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": mask}
    for found in Lens(model).explain_inputs(inputs, output=7, position=1, baseline=baseline, parts=["biases"]):
        total = float(found["tokens"].sum() + found["biases"].sum())
        assert total == pytest.approx(float(found.value), abs=1e-5)


# ---- states that are cut off -----------------------------------------------------------------------------------------


class Detached(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.detach())
        return y


def test_a_detached_state_holds_the_same_numbers() -> None:
    model = llama()
    model.model.layers[1].mlp = Detached(model.model.layers[1].mlp)
    np.testing.assert_allclose(tokens(model), tokens(llama()), atol=1e-12)


def test_states_that_left_torch_are_refused() -> None:
    model = llama(3)

    def through_numpy(module: nn.Module, args: Any, output: Any) -> Any:
        return torch.from_numpy(output.detach().numpy().copy())

    model.model.layers[1].register_forward_hook(through_numpy)
    with pytest.raises(AnatomyError, match="layer 3 takes vectors that were cut off"):
        tokens(model)


def test_gradients_that_the_models_code_asks_for_change_nothing() -> None:
    model = llama()
    model.enable_input_require_grads()  # a hook on the embeddings, as for gradient checkpointing
    np.testing.assert_allclose(tokens(model.train()), tokens(llama()), atol=1e-12)


# ---- nothing of another model ----------------------------------------------------------------------------------------


def with_activation(activation: nn.Module) -> np.ndarray:
    model = llama()
    for layer in model.model.layers:
        layer.mlp.act_fn = activation
    return tokens(model)


class Plain(nn.Module):
    """A function that is no activation module of anybody's."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_an_activation_is_known_by_all_of_its_settings() -> None:
    with_activation(nn.LeakyReLU(np.float32(0.1)))  # type: ignore[arg-type]
    expected = with_activation(Plain(lambda x: nnf.leaky_relu(x, 0.75)))
    np.testing.assert_allclose(with_activation(nn.LeakyReLU(np.float32(0.75))), expected, atol=1e-9)  # type: ignore[arg-type]
    with_activation(nn.SiLU())
    changed = nn.SiLU()
    changed.forward = lambda x: nnf.silu(x) + 0.5 * torch.relu(x)  # type: ignore[method-assign]
    expected = with_activation(Plain(lambda x: nnf.silu(x) + 0.5 * torch.relu(x)))
    np.testing.assert_allclose(with_activation(changed), expected, atol=1e-7)


# ---- locks and scopes ------------------------------------------------------------------------------------------------


def test_a_model_and_its_part_wait_for_each_other() -> None:
    model: Any = tiny_model("t5").double()
    whole, part = Lens(model), Lens(model.encoder)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]}
    before, failures = model_state(model), []

    def work(call: Callable[[], Any]) -> None:
        try:
            for _ in range(6):
                call()
        except BaseException as error:
            failures.append(error)

    calls = (
        lambda: whole.explain_inputs(inputs, output=3, position=1),
        lambda: part.explain_inputs({"input_ids": IDS}, direction=[1.0] * model.config.d_model),
        lambda: whole.analyze_inputs(inputs),
    )
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert model_state(model) == before


def test_a_scope_is_entered_once() -> None:
    model = nn.Linear(2, 2).train()
    scope = PassScope(model)
    with scope, pytest.raises(RuntimeError, match="entered once"):
        scope.__enter__()
    assert model.training


def test_a_module_that_refers_back() -> None:
    model = llama()
    model.model.layers[0].self_attn.owner = model.model
    assert len(all_modules(model)) == len(list(model.modules()))


# ---- hashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, 3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.randn(4, 4).T,
        torch.tensor(3.0),
    ],
)
def test_any_tensor_has_a_hash(tensor: Tensor) -> None:
    model = nn.Module()
    model.register_buffer("odd", tensor)
    assert content_hash(model) == content_hash(model)


def test_a_stream_is_closed_by_its_reader() -> None:
    lens = Lens(llama())
    stream = lens.stream_inputs({"input_ids": IDS})
    next(stream)
    with pytest.raises((InputError, NormlensError), match="still open in this thread"):
        lens.explain_inputs({"input_ids": IDS}, output=7)
    stream.close()  # type: ignore[attr-defined]
    assert tokens(lens.model).shape == (4,)
