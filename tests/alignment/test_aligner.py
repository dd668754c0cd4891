from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import normlens
from normlens.alignment.aligner import Aligner
from normlens.alignment.links import swap
from normlens.alignment.word_maps import WordMapper
from normlens.errors import InputError
from tests.alignment.models_for_tests import FAMILIES, SENTENCES, lens
from tests.text.tokenizers_for_tests import tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))


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
    assert results[5].problem is None  # beyond the model's length: in windows
    if family != "bart":  # a byte-level tokenizer has subwords for everything
        assert not any(s == 1 for s, _ in results[-1].links)


def test_the_budget_of_a_batch_does_not_change_the_links() -> None:
    small, large = (Aligner(lens("marian"), layer=[1, 2, 3], batch_tokens=n) for n in (1, 4096))
    assert [r.links for r in small.align(SENTENCES)] == [r.links for r in large.align(SENTENCES)]


def test_two_directions() -> None:
    there, back = lens("marian"), lens("marian", seed=1)
    turned = [(target, source) for source, target in SENTENCES]
    forward = [r.links for r in Aligner(there, layer=2, extract="argmax").align(SENTENCES)]
    reverse = [swap(r.links) for r in Aligner(back, layer=2, extract="argmax").align(turned)]
    both = {
        name: list(Aligner(there, back, layer=2, symmetrize=name, extract=extract).align(SENTENCES))
        for name, extract in {
            "intersection": None,
            "union": None,
            "grow-diag": None,
            "product": "mutual",
            "sum": None,
        }.items()
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
        ({"layer": 4}, "one of 1, 2, 3 for marian, got 4"),
        ({"layer": "last"}, "auto, best, or numbers"),
        ({"setting": "in"}, "awi, awo"),
        ({"extract": "viterbi"}, "extract must be"),
        ({"symmetrize": "grow"}, "symmetrize must be"),
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
    original = WordMapper.agreement
    monkeypatch.setattr(
        WordMapper, "agreement", lambda self, pairs: counted.append(len(pairs)) or original(self, pairs)
    )
    list(Aligner(lens("marian")).align([("", ""), *SENTENCES]))
    assert counted == []  # the same text is not counted again
    again = Aligner(lens("marian"))
    list(again.align(SENTENCES[:2]))
    assert counted == [2] and again.agreements["forward"].pairs == 2  # what another run saw has no part in it
    list(Aligner(lens("marian"), measure="attn_w").align(SENTENCES))
    assert counted[1:] == [len(SENTENCES)]  # another measure, another choice


def test_a_saved_choice_is_taken_over_for_what_it_was_chosen_for(tmp_path: Path) -> None:
    first = Aligner(lens("marian"), lens("marian", seed=1))
    first.choose_layers(SENTENCES)
    first.choice().write(tmp_path / "choice.json")
    second = Aligner(lens("marian"), lens("marian", seed=1), layers_from=tmp_path / "choice.json")
    assert second.layers == first.layers
    assert next(second.align(SENTENCES[4:])).links == [*first.align(SENTENCES)][4].links
    assert json.loads((tmp_path / "choice.json").read_text())["pairs"] == {"forward": 5, "reverse": 5}
    for settings, message in (
        ({"setting": "awo"}, "chosen for setting awi"),
        ({"measure": "attn_w"}, "chosen for measure attn_n"),
        ({"layer": 2}, "exclude each other"),
    ):
        with pytest.raises(InputError, match=message):
            Aligner(lens("marian"), lens("marian", seed=1), layers_from=tmp_path / "choice.json", **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="chosen for models"):
        Aligner(lens("marian"), layers_from=tmp_path / "choice.json")
    for content in ("", "{}", "[]", '{"normlens_layers": 1, "layers": 3}'):
        (tmp_path / "bad").write_text(content)
        with pytest.raises(InputError, match="--save-choice wrote"):
            Aligner(lens("marian"), layers_from=tmp_path / "bad")


def test_views_have_no_null_column() -> None:
    for settings in ({"combine": "views", "extract": "argmax"}, {"combine": "views", "symmetrize": "union"}):
        with pytest.raises(InputError, match=r"mutual or share|joins directions by product"):
            Aligner(lens("marian"), lens("marian", seed=1), **settings)  # type: ignore[arg-type]
    assert Aligner(lens("marian"), extract="argmax").choices.combine == "mean"


def test_a_model_without_cross_attention_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20))
    with pytest.raises(InputError, match="cross-attention"):
        normlens.Aligner(normlens.Lens(model))


def test_the_record_names_every_choice() -> None:
    aligner = Aligner(lens("marian"), layer=2)
    aligner.align_pair(*SENTENCES[0])
    assert aligner.record()["choices"]["setting"] == "awi"
    assert aligner.record()["models"]["forward"]["content"].startswith("sha256-tree:")
    assert aligner.signature().startswith("align|setting:awi|measure:attn_n|layer:given(forward=2)|symmetrize:none|")


def test_maps_of_one_model_cannot_be_joined() -> None:
    with pytest.raises(InputError, match="needs a reverse model"):
        Aligner(lens("marian"), symmetrize="product")


def test_a_decoder_only_model_aligns_in_a_prompt() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    words = tokenizer("byte-level")
    sizes = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=len(words), n_positions=120, initializer_range=0.4)
    model = normlens.Lens(GPT2LMHeadModel(sizes).eval(), words)
    prompts = {"prompt": "a:\n{source}\nb:\n{target}", "reverse_prompt": "b:\n{source}\na:\n{target}"}
    aligner = Aligner(model, model, layer=[1, 2], extract="mutual", **prompts)  # type: ignore[arg-type]
    alone = [next(aligner.align([pair])) for pair in SENTENCES]
    together = list(aligner.align(SENTENCES))
    assert [pair.links for pair in together] == [pair.links for pair in alone]  # a batch changes nothing
    assert all(pair.links for pair in together)
    encoded = aligner.forward.encoder(*SENTENCES[0])
    (found,) = aligner.forward.maps([encoded], [1], "awi")
    assert found is not None and found.shape == (len(SENTENCES[0][1].split()), len(SENTENCES[0][0].split()) + 1)
    late = aligner.forward.encoder("a house", " ".join(["maison"] * 150))
    assert late.problem is not None and "the model takes 120" in late.problem
    for prompt in ("no places", "{target} {source}", "{source}{target}"):
        with pytest.raises(InputError, match="prompt must hold"):
            Aligner(model, prompt=prompt)
    with pytest.raises(InputError, match="in its prompt"):
        Aligner(lens("marian"), prompt=prompts["prompt"])
