from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import normlens
from normlens.alignment.aligner import Aligner
from normlens.alignment.direction import Direction
from normlens.alignment.links import swap
from normlens.errors import InputError
from tests.alignment.models_for_tests import FAMILIES, SENTENCES, lens
from tests.reference import alignment as reference


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("setting", ["awi", "awo"])
@pytest.mark.parametrize("family", FAMILIES)
def test_maps_of_a_batch_are_what_the_definition_gives_one_by_one(family: str, setting: str) -> None:
    direction = Direction(lens(family))
    pairs = [direction.forcing(source, target) for source, target in SENTENCES[1:4]]
    found = direction.maps(pairs, [1, 3], setting)
    for pair, batched in zip(pairs, found, strict=True):
        (analysis,) = lens(family).analyze_inputs(
            direction.forcing.inputs([pair], direction.device), measures=["attn_n"]
        )
        site = analysis.site("cross")["attn_n"]
        rows = [[place - (setting == "awo") for place in places] for places in pair.rows]
        owned = {place for places in pair.columns for place in places}
        special = [place for place in range(len(pair.source_ids)) if place not in owned]
        expected = 0
        for layer in (1, 3):
            one = reference.word_map(site.sel(layer=layer).values, rows, [list(c) for c in pair.columns], special)
            expected = expected + one / one.sum(-1, keepdims=True) / 2
        assert batched is not None
        np.testing.assert_allclose(batched, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_takes_start_language_and_target(family: str) -> None:
    """What is forced must be what the model itself would be trained on: labels shifted by one."""
    import torch

    mine = lens(family)
    pair = Direction(mine).forcing(*SENTENCES[0])
    labels = torch.tensor([mine.tokenizer(text_target=SENTENCES[0][1])["input_ids"]])
    if family == "m2m_100":
        from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

        shifted = shift_tokens_right(labels, mine.tokenizer.pad_token_id, mine.model.config.decoder_start_token_id)
    else:
        shifted = mine.model.prepare_decoder_input_ids_from_labels(labels)  # type: ignore[operator]
    assert [list(pair.decoder_ids)] == shifted.tolist()
    assert list(pair.source_ids) == mine.tokenizer(SENTENCES[0][0])["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_pair_has_its_line_whatever_it_holds(family: str) -> None:
    long = "house " * 300
    pairs = [SENTENCES[0], ("", "une maison"), SENTENCES[1], ("a house", "  "), ("", ""), (long, long), SENTENCES[3]]
    results = list(Aligner(lens(family), batch_tokens=30).align(pairs))
    assert len(results) == len(pairs)
    for (source, target), result in zip(pairs, results, strict=True):
        assert list(result.source) == source.split() and list(result.target) == target.split()
        assert all(s < len(result.source) and t < len(result.target) for s, t in result.links)
    assert [bool(r.problem) for r in results[:5]] == [False, True, False, True, True]
    if family != "t5":  # relative positions have no end
        assert "the model takes" in (results[5].problem or "")
    if family != "bart":  # a byte-level tokenizer has subwords for everything
        assert not any(s == 1 for s, _ in results[-1].links)


def test_the_budget_of_a_batch_does_not_change_the_links() -> None:
    small, large = (Aligner(lens("marian"), layer=[1, 2, 3], batch_tokens=n) for n in (1, 4096))
    assert [r.links for r in small.align(SENTENCES)] == [r.links for r in large.align(SENTENCES)]


def test_two_directions() -> None:
    there, back = lens("marian"), lens("marian", seed=1)
    turned = [(target, source) for source, target in SENTENCES]
    forward = [r.links for r in Aligner(there, layer=2).align(SENTENCES)]
    reverse = [swap(r.links) for r in Aligner(back, layer=2).align(turned)]
    both = {
        name: list(Aligner(there, back, layer=2, symmetrize=name).align(SENTENCES))
        for name in ("intersection", "union", "grow-diag", "product", "sum")
    }
    for i, (one, other) in enumerate(zip(forward, reverse, strict=True)):
        assert both["intersection"][i].links == one & other
        assert both["union"][i].links == one | other
        assert both["grow-diag"][i].certain == one & other
        assert len({s for s, _ in both["product"][i].links}) == len(both["product"][i].links)  # mutual: one to one
        assert all(0 < score <= 1 for score in both["product"][i].scores.values())
    given = Aligner(there, layer=2, symmetrize="union").align(SENTENCES, reverse_links=reverse)
    assert [r.links for r in given] == [one | other for one, other in zip(forward, reverse, strict=True)]
    with pytest.raises(InputError, match="end after 4"):
        list(Aligner(there, layer=2, symmetrize="union").align(SENTENCES, reverse_links=reverse[:4]))


def test_heads_and_weights_can_be_asked_for() -> None:
    assert Aligner(lens("marian"), measure="alpha", head=2, layer=1).align_pair(*SENTENCES[0]).source
    for wrong in ({"measure": "alpha"}, {"head": 1}, {"measure": "f_norm"}, {"measure": "af_norm", "head": 5}):
        with pytest.raises(InputError, match=r"head|measure"):
            Aligner(lens("marian"), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 4}, "one of 1, 2, 3: got 4"),
        ({"layer": "last"}, "auto, best, or numbers"),
        ({"setting": "in"}, "awi, awo"),
        ({"extract": "viterbi"}, "extraction"),
        ({"symmetrize": "grow"}, "symmetrization"),
        ({"symmetrize": "product", "extract": "argmax"}, "mutual or share"),
        ({"threshold": 2.0}, "threshold"),
    ],
)
def test_what_cannot_be_is_refused_with_the_choices(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Aligner(lens("marian"), **options).align_pair(*SENTENCES[0])


def test_layers_are_chosen_on_text_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Aligner(lens("marian"))
    list(first.align([("", ""), *SENTENCES]))
    assert first.agreements["forward"].pairs == len(SENTENCES)
    assert set(first.layers["forward"]) <= {1, 2, 3}
    counted = []
    original = Direction.agreement
    monkeypatch.setattr(Direction, "agreement", lambda self, pairs: counted.append(len(pairs)) or original(self, pairs))
    list(Aligner(lens("marian")).align(SENTENCES[:2]))
    assert counted == []  # there was more text before
    list(Aligner(lens("marian")).align(SENTENCES * 2))
    assert counted == [2 * len(SENTENCES)]  # now there is more than there was
    list(Aligner(lens("marian"), measure="attn_w").align(SENTENCES))
    assert counted[1:] == [len(SENTENCES)]  # another measure, another choice


def test_a_prefix_belongs_to_no_word() -> None:
    aligner = Aligner(lens("t5"), layer=1, source_prefix="the big hill :")
    pair = aligner.forward.forcing(*SENTENCES[1])
    assert len(pair.columns) == 3 and min(pair.columns[0]) >= 4
    assert max(s for s, _ in aligner.align_pair(*SENTENCES[1]).links) <= 2


def test_raw_text_is_aligned_by_the_tokenizers_words() -> None:
    result = Aligner(lens("bart"), layer=1, raw=True).align_pair("The house, now!", "La maison, là!")
    assert result.source == ("The", "house", ",", "now", "!")
    assert "".join(result.target) == "Lamaison,là!"


def test_languages_are_set_where_there_are_any() -> None:
    aligner = Aligner(lens("m2m_100"), layer=1, source_language="fr", target_language="de")
    codes = lens("m2m_100").tokenizer
    assert aligner.forward.forcing.head == (codes.get_lang_id("fr"),)
    assert aligner.forward.forcing.start == (codes.eos_token_id, codes.get_lang_id("de"))
    with pytest.raises(InputError, match="knows no languages"):
        Aligner(lens("t5"), source_language="fr")


def test_a_model_without_cross_attention_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20))
    with pytest.raises(InputError, match="cross-attention"):
        normlens.Aligner(normlens.Lens(model))


def test_the_record_names_every_choice() -> None:
    aligner = Aligner(lens("marian"), layer=2)
    aligner.align_pair(*SENTENCES[0])
    assert aligner.record()["choices"]["setting"] == "awi"
    assert aligner.record()["models"]["forward"]["content"].startswith("blake2b")
    assert aligner.signature().startswith("align|setting:awi|measure:attn_n|layer:given(forward=2)|symmetrize:none|")
