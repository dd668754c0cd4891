"""What a user may get wrong: each gets the rule, what arrived and what to do next, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from normlens import Lens
from normlens.errors import AnatomyError, InputError
from tests import tiny
from tests.test_lens import snapshot


@cache
def lens_of(family: str) -> Lens:
    return Lens(tiny.make(family), tiny.tokenizer_for(family))


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "empty": ("bert", {"text": ""}, "the text is empty; pass the sentence"),
    "blank": ("bert", {"text": " \n\t"}, "the text is empty"),
    "no texts": ("bert", {"text": []}, "the list of texts is empty"),
    "unknown tokens only": (
        "bert",
        {"text": "xyzzy plugh"},
        "unknown to the model, got 'xyzzy plugh'; is this",
    ),
    "target missing": (
        "marian",
        {"text": "the cat"},
        "target is missing for an encoder-decoder model; pass target=… .*or generate=True",
    ),
    "target where none belongs": (
        "bert",
        {"text": "the cat", "target": "a dog"},
        "target is for encoder-decoder",
    ),
    "empty target": ("t5", {"text": "the cat", "target": ""}, "the target is empty"),
    "a layer that is no list": (
        "bert",
        {"text": "the cat", "layers": 2},
        r"layers must be a list, got 2; write layers=\[2\]",
    ),
    "a number for measures": ("bert", {"text": "the cat", "measures": 5}, "measures must be a list, got 5; write"),
    "unknown measure": (
        "bert",
        {"text": "the cat", "measures": ["attn"]},
        "must be one of alpha, f_norm, .*, got 'attn'",
    ),
    "unknown map": ("bert", {"text": "the cat", "mixing": ["alpha"]}, "must be one of attn_w, .*, got 'alpha'"),
    "layer too large": (
        "bert",
        {"text": "the cat", "layers": [4]},
        r"must be among 1 to 3, got 4 \(layers count from 1\)",
    ),
    "layer zero": ("bert", {"text": "the cat", "layers": [0]}, "must be among 1 to 3, got 0"),
    "unknown word mode": ("bert", {"text": "the cat", "words": "sum"}, "one of norms, vectors, or None, got 'sum'"),
    "unknown precision": ("bert", {"text": "the cat", "precision": "int8"}, "one of float32, float64, got 'int8'"),
    "batch of none": (
        "bert",
        {"text": "the cat", "batch_size": 0},
        "whole number of at least 1, got 0",
    ),
    "too long": (
        "bert",
        {"text": "cat " * 60},
        "has 62 tokens and the model takes 40; shorten it, or pass truncate=True",
    ),
    "generate without a head": (
        "bert",
        {"text": "the cat", "generate": True},
        "has no language-modelling head",
    ),
    "pairs do not match": (
        "bert",
        {"text": ["a", "the"], "pair": ["cat"]},
        "got 2 texts and 1 pairs; each text needs its pair",
    ),
    "one pair for many": ("bert", {"text": ["a", "the"], "pair": "cat"}, "must be a list for a list of 2 texts"),
    "words unasked": ("bert", {"text": [["the", "cat"]]}, "must be a string, got list; pass pretokenized=True"),
    "empty word": ("bert", {"text": ["the", ""], "pretokenized": True}, "a list of words, none of them empty"),
}


@pytest.mark.parametrize("what", CASES)
def test_each_mistake_is_explained(what: str) -> None:
    family, arguments, message = CASES[what]
    lens = lens_of(family)
    before = snapshot(lens.model)
    with pytest.raises(InputError, match=message):
        lens.analyze(**arguments)
    assert snapshot(lens.model) == before


def test_truncation_is_asked_for_and_recorded() -> None:
    found = lens_of("bert").analyze("cat " * 60, truncate=True)
    assert len(found.site("encoder").query_tokens) == 40
    assert found.provenance["truncated"] is True


@pytest.mark.parametrize(
    "use",
    [
        Lens.analyze,
        lambda lens, text: list(lens.stream(text)),
        lambda lens, text: lens.explain(text, direction=[1.0] * tiny.WIDTH),
    ],
    ids=["analyze", "stream", "explain"],
)
def test_text_without_a_tokenizer(use: Callable[[Lens, str], Any]) -> None:
    with pytest.raises(InputError, match=r"this lens has no tokenizer; .*analyze_inputs"):
        use(Lens(tiny.make("gpt2")), "the cat")


def test_a_family_that_cannot_be_read() -> None:
    import transformers

    config = transformers.MambaConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, state_size=4)
    model = transformers.MambaModel(config)
    before = snapshot(model)
    with pytest.raises(AnatomyError, match=r"'mamba' has no attention: no softmax met values"):
        Lens(model).anatomy  # noqa: B018
    assert snapshot(model) == before


def test_a_result_that_cannot_fit_says_how_much_and_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.measures import request

    monkeypatch.setattr(request, "available_bytes", lambda: 10)
    monkeypatch.setattr(request, "_ALWAYS_THERE", 0)
    lens = Lens(tiny.make("bert"), tiny.tokenizer_for("bert"))  # a request remembers how much always fits
    with pytest.raises(InputError, match=r"GiB are free; leave out alpha and af_norm.*stream\(\)"):
        lens.analyze("the cat")


@pytest.mark.parametrize("family", ["bert", "marian"])
@pytest.mark.parametrize("asked", [{}, {"measures": [], "mixing": ["attn_n"]}, {"precision": "float64"}])
def test_texts_that_always_fit_take_less_than_anybody_is_asked_for(family: str, asked: dict[str, Any]) -> None:
    from normlens.measures import request

    some = request.Request.of(lens_of(family).anatomy, **asked)
    whole, half = some.always_fits, some.always_fits // 2
    for lengths in ([(whole, 0)], [(half, half)], [(half, 0), (half // 2, half // 2)], [(1, 1)] * half):
        assert request.kept_bytes(some, lengths) < request._ALWAYS_THERE, lengths


def test_half_a_character_is_named() -> None:
    with pytest.raises(InputError, match=r"character 4 of the text is half of a surrogate pair"):
        lens_of("bert").analyze("the \udc80 cat")
