from __future__ import annotations

import pytest
import torch

from normlens.alignment.gradient_baselines import saliency
from normlens.alignment.word_maps import WordMapper
from normlens.errors import InputError
from tests.alignment.models_for_tests import SENTENCES, lens


@pytest.mark.parametrize("family", ["marian", "t5", "bart"])
@pytest.mark.parametrize("method", ["li", "ding"])
def test_saliency_is_the_gradient_of_one_probability_at_a_time(family: str, method: str) -> None:
    mapper = WordMapper(lens(family))
    model = mapper.lens.model
    pairs = [mapper.encoder(*pair) for pair in SENTENCES[:2]]
    inputs = mapper.encoder.batch(pairs, mapper.device)
    swept = saliency(model, inputs, method)
    alone = mapper.encoder.batch(pairs[1:2], mapper.device)
    table = model.get_encoder().get_input_embeddings()
    for step in range(alone["decoder_input_ids"].shape[1] - 1):
        leaf = table(alone["input_ids"]).detach().requires_grad_(True)
        calls = []
        handle = table.register_forward_hook(
            lambda m, a, o, leaf=leaf, calls=calls: (calls.append(1), leaf)[1] if not calls else None
        )
        logits = model(**alone, use_cache=False).logits
        handle.remove()
        label = alone["decoder_input_ids"][0, step + 1]
        (gradient,) = torch.autograd.grad(logits[0, step].softmax(-1)[label], leaf)
        expected = gradient.abs().sum(-1) if method == "li" else (gradient * leaf).sum(-1).clamp(min=0)
        torch.testing.assert_close(swept[1, step, : expected.shape[1]], expected[0], rtol=1e-3, atol=1e-7)


def test_smoothing_is_seeded_and_leaves_the_model_as_it_was() -> None:
    mapper = WordMapper(lens("marian"))
    model = mapper.lens.model
    inputs = mapper.encoder.batch([mapper.encoder(*SENTENCES[1])], mapper.device)
    before = model.config._attn_implementation, [p.requires_grad for p in model.parameters()], len(model._forward_hooks)
    one, two = (saliency(model, inputs, samples=3, seed=seed) for seed in (1, 2))
    torch.testing.assert_close(one, saliency(model, inputs, samples=3, seed=1))
    assert not torch.allclose(one, two)
    after = model.config._attn_implementation, [p.requires_grad for p in model.parameters()], len(model._forward_hooks)
    assert before == after
    for wrong in ({"method": "integrated"}, {"samples": 0}):
        with pytest.raises(InputError):
            saliency(model, inputs, **wrong)  # type: ignore[arg-type]
