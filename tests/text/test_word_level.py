"""Word level against the slow reference: columns added as norms or as vectors, rows averaged, own subwords are self."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normlens import Lens
from tests import tiny
from tests.reference import measures as slow
from tests.reference.blocks import blocks
from tests.test_reference import assert_close

TEXT = "The cats sat slowly , the dogs sat ."
TARGET = "Fastly it was a reded tree"


def words_of(tokens: list[str]) -> np.ndarray:
    numbers: list[int] = []
    for token in tokens:
        goes_on = token.startswith("##")
        numbers.append(numbers[-1] if goes_on else (numbers[-1] + 1 if numbers else 0))
    return np.array(numbers)


@pytest.mark.parametrize("how", ["norms", "vectors"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama_bias", "gemma2", "t5", "marian"])
def test_words_against_the_reference(family: str, how: str) -> None:
    model, tokenizer = tiny.make(family), tiny.tokenizer_for(family)
    lens = Lens(model, tokenizer)
    target = TARGET if family in tiny.TWO_SIDED else None
    # A longer text in the same batch, so that the one looked at is padded.
    batch = [TEXT, TEXT + " and the reded dogs sat slowly"]
    targets = None if target is None else [target, target + " and sat"]
    analysis = lens.analyze(batch, target=targets, words=how)[0]
    tokens = lens.analyze(TEXT, target=target)
    assert analysis.provenance["words"] == how

    inputs = {"input_ids": torch.tensor([tokenizer(TEXT)["input_ids"]])}
    if target is not None:
        labels = tokenizer(text_target=target)["input_ids"]
        inputs["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id, *labels[:-1]]])
    for block in blocks(family, model, inputs):
        site, per_token = analysis.site(block.kind), tokens.site(block.kind)
        query_words, key_words = words_of(per_token.query_tokens), words_of(per_token.key_tokens)
        assert key_words.max() + 1 < len(key_words), "the text must have words of several subwords"
        parts = slow.parts_of(block, 0, np.arange(len(query_words)), np.arange(len(key_words)))
        where = f"{family} {block.kind} layer {block.layer}, {how}"
        for name, expected in slow.by_word(parts, query_words, key_words, how).items():
            assert_close(site[name].sel(layer=block.layer).values, expected, 1e-5, f"{where}: {name}")
        for name, by_query in slow.mixing_ratios(parts, query_words, key_words).items():
            expected = slow.average_rows(by_query, query_words)
            assert_close(site.mixing_ratio(name).sel(layer=block.layer).values, expected, 1e-5, f"{where}: {name}")
        if block.kind == "cross":
            for name, by_query in slow.residual_norms(parts).items():
                expected = slow.average_rows(by_query, query_words)
                assert_close(site.residual_norm(name).sel(layer=block.layer).values, expected, 1e-5, f"{where}: {name}")


def test_word_labels_and_sums() -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer())
    tokens, words = lens.analyze(TEXT), lens.analyze(TEXT, words="norms")
    assert words.site("encoder").key_tokens == [
        "[CLS]",
        "the",
        "cats",
        "sat",
        "slowly",
        ",",
        "the",
        "dogs",
        "sat",
        ".",
        "[SEP]",
    ]
    # Adding columns keeps every row's sum; a row of weights by word still sums to one.
    np.testing.assert_allclose(words["alpha"].sum("key"), 1, atol=1e-6)
    summed = tokens["attn_n"].sum("key").values
    groups = words_of(tokens.site("encoder").query_tokens)
    for word in range(groups.max() + 1):
        np.testing.assert_allclose(
            words["attn_n"].sum("key").values[:, word], summed[:, groups == word].mean(1), rtol=1e-5
        )
    np.testing.assert_allclose(words["f_norm"].sum("key"), tokens["f_norm"].sum("key"), rtol=1e-5)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from(tiny.WORDS), min_size=2, max_size=12))
def test_words_of_one_subword_change_nothing(chosen: list[str]) -> None:
    lens = _shared_lens()
    text = " ".join(chosen)
    tokens = lens.analyze(text)
    for how in ("norms", "vectors"):
        words = lens.analyze(text, words=how)
        for name in tokens.measures:
            np.testing.assert_allclose(words[name].values, tokens[name].values, rtol=1e-5, atol=1e-6)
        for name in ("attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n"):
            np.testing.assert_allclose(words.mixing_ratio(name).values, tokens.mixing_ratio(name).values, atol=1e-6)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from(["cats", "slowly", "the", "reded", "dogs", "fastlys"]), min_size=1, max_size=8))
def test_a_word_of_added_vectors_is_no_longer_than_its_added_norms(chosen: list[str]) -> None:
    lens = _shared_lens()
    vectors, norms = (lens.analyze(" ".join(chosen), words=how) for how in ("vectors", "norms"))
    for name in ("f_norm", "af_norm", "x_norm", "attn_n", "attnres_n", "attnresln_n"):
        assert (vectors[name] <= norms[name] * (1 + 1e-5) + 1e-6).all(), name


_LENS: list[Lens] = []


def _shared_lens() -> Lens:
    if not _LENS:
        _LENS.append(Lens(tiny.make("bert"), tiny.tokenizer()))
    return _LENS[0]
