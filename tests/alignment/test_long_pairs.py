"""Documents beyond a model's length: cut where sentences end and no link crosses, and no link is lost at a border."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import normlens
from normlens.alignment.aligner import Aligner
from normlens.alignment.long_pairs import LONGEST_WINDOW, LongPair, Sizes, cut_costs
from normlens.alignment.marked_text import Mark, MarkedText
from normlens.alignment.pair_encoding import PairFormat
from normlens.alignment.translating import Translator
from normlens.errors import InputError
from normlens.inputs.words import sentence_ends
from tests.alignment.data import GOLD, MODELS, needs_gold, needs_models
from tests.alignment.models_for_tests import SENTENCES, lens
from tests.text.tokenizers_for_tests import tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))


def sizes(words: list[str], fit: int) -> Sizes:
    return Sizes(tuple(words), (1,) * len(words), fit)


def walk(document: LongPair, links: set[tuple[int, int]]) -> None:
    """Take a document through its windows with an aligner that knows the links, and adds all pieces."""

    def inside(window):  # type: ignore[no-untyped-def]
        (first, last), (other, until) = window.source, window.target
        return {(s - first, t - other): 1.0 for s, t in links if first <= s < last and other <= t < until}

    while (window := document.window) is not None:
        before = document.cuts[-1]
        found = inside(window)
        document.advance(window, found, frozenset(found))
        assert sum(document.cuts[-1]) > sum(before)
    for piece in document.pieces():
        document.add(piece, inside(piece), frozenset(inside(piece)))


@given(st.integers(0, 10_000), st.integers(4, 40), st.booleans())
def test_cost_of_a_cut_is_what_it_crosses(seed: int, words: int, sparse: bool) -> None:
    draw = random.Random(seed)
    other = draw.randint(1, 40)
    links = {(draw.randrange(words), draw.randrange(other)): draw.random() for _ in range(3 if sparse else 50)}
    costs = cut_costs(links, words, other)
    for _ in range(20):
        a, b = draw.randint(0, words), draw.randint(0, other)
        crossed = sum(score for (s, t), score in links.items() if (s < a) != (t < b))
        assert costs[a, b] == pytest.approx(crossed, abs=1e-6)


@given(st.integers(0, 10_000), st.integers(8, 60))
def test_no_link_that_a_window_saw_is_lost(seed: int, fit: int) -> None:
    """A text without sentence ends, its words moved by at most an eighth of a window: all links come out."""
    draw = random.Random(seed)
    words = draw.randint(1, 6 * fit)
    order = sorted(range(words), key=lambda place: place + draw.random() * (fit // 8))
    links = {(source, target) for target, source in enumerate(order)}
    document = LongPair(sizes(["w"] * words, fit), sizes(["v"] * words, fit))
    walk(document, links)
    assert set(document.scores) == links
    assert document.certain == links


def test_sentences_are_the_pieces_even_where_one_is_missing() -> None:
    """Sentences of other lengths on both sides, words turned round inside of each, one not translated."""
    draw = random.Random(3)
    source: list[str] = []
    target: list[str] = []
    links, ends = set(), []
    for number in range(40):
        here, there = draw.randint(2, 12), draw.randint(2, 12)
        if number != 17:
            for place in range(there - 1):
                links.add((len(source) + (there - place) * (here - 1) // there, len(target) + place))
            links.add((len(source) + here - 1, len(target) + there - 1))
            target += [*["v"] * (there - 1), "."]
        source += [*["w"] * (here - 1), "."]
        ends.append((len(source), len(target)))
    document = LongPair(sizes(source, 60), sizes(target, 60))
    walk(document, links)
    assert set(document.scores) == links
    found = set(document.cuts[1:])
    assert (
        len(found & set(ends)) >= 38 and len(found - set(ends)) <= 1
    )  # around the 17th there is more than one right place


def test_a_side_that_ends_early_leaves_the_rest_without_links() -> None:
    document = LongPair(sizes(["w"] * 500, 20), sizes(["v"] * 7, 20))
    walk(document, {(place, place) for place in range(7)})
    assert set(document.scores) == {(place, place) for place in range(7)}


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("Yes . No !", [2, 4]),
        ("« Oui. » Non ? ! Si…", [3, 6, 7]),
        ("他 说 。 好 ！", [3, 5]),
        ("no end", []),
        (". .", [2]),
        ("", []),
    ],
)
def test_where_sentences_end(text: str, ends: list[int]) -> None:
    assert sentence_ends(text.split()) == ends


def _document(times: int) -> tuple[str, str]:
    pairs = SENTENCES * times
    return " . ".join(source for source, _ in pairs) + " .", " . ".join(target for _, target in pairs) + " ."


@pytest.mark.parametrize("family", ["marian", "bart", "m2m_100"])
def test_a_long_document_has_links_everywhere(family: str) -> None:
    """A random model's links are arbitrary, but each piece must hold exactly those of the piece aligned alone."""
    source, target = _document(30)
    aligner = Aligner(lens(family), lens(family, seed=1), layer=[1, 2], extract="mutual")
    results = list(aligner.align([SENTENCES[0], (source, target), SENTENCES[1], ("", "x")]))
    assert results[0].links == aligner.align_pair(*SENTENCES[0]).links
    assert results[2].links == aligner.align_pair(*SENTENCES[1]).links
    assert results[3].problem == "an empty side"
    long = results[1]
    assert long.problem is None
    assert long.source == tuple(source.split()) and long.target == tuple(target.split())
    assert len({s for s, _ in long.links}) > 100
    assert max(max(s / len(long.source), t / len(long.target)) for s, t in long.links) > 0.9  # a side is used up
    document = aligner._long(source, target)
    assert document is not None
    aligner._align_documents([document])
    assert document.cuts[0] == (0, 0) and document.cuts == sorted(document.cuts)
    for piece in document.pieces():
        alone = aligner.align_pair(*document.text_of(piece))
        inside = {
            link
            for link in long.links
            if piece.source[0] <= link[0] < piece.source[1] and piece.target[0] <= link[1] < piece.target[1]
        }
        assert inside == {piece.moved(link) for link in alone.links}


def test_sentences_beyond_a_window_are_cut_though_the_model_would_take_them() -> None:
    aligner = Aligner(lens("t5"), layer=[1, 2], extract="mutual")
    aligner.choose_layers(SENTENCES)
    source, target = _document(12)
    mapper = aligner.forward
    assert mapper.encoder(source, target).problem is None, "the model takes it"
    assert len(mapper.encoder(source, target).source.ids) > LONGEST_WINDOW
    document = aligner._long(source, target)
    assert document is not None
    aligner._align_documents([document])
    assert len(document.pieces()) > 1
    one = source.replace(" .", " ,").replace("!", ","), target.replace(" .", " ,").replace("!", ",")
    assert aligner._long(*one) is None, "one sentence, however long, stays whole where the model takes it"
    assert aligner._long(source, one[1]) is None, "a cut needs an end of a sentence on both sides"
    assert aligner._long(*_document(1)) is None, "a window holds it"


def test_layers_of_a_document_are_chosen_on_its_beginning() -> None:
    aligner = Aligner(lens("marian"))
    aligner.align_pair(*_document(30))
    assert aligner.agreements["forward"].pairs == 1


def test_what_cannot_be_cut_says_so() -> None:
    aligner = Aligner(lens("marian"), layer=2, symmetrize="union")
    document = _document(30)
    (found,) = aligner.align([document], reverse_links=[frozenset()])
    assert "the model takes" in (found.problem or "")  # links from a file belong to the whole line
    words = "house" * 100
    assert "the model takes" in (aligner.align_pair(words, words).problem or "")  # one word beyond the limit


def test_a_prompt_is_cut_too() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    words = tokenizer("byte-level")
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=len(words), n_positions=120, initializer_range=0.4)
    aligner = Aligner(
        normlens.Lens(GPT2LMHeadModel(config).eval(), words),
        layer=[1, 2],
        extract="mutual",
        prompt="a:\n{source}\nb:\n{target}",
    )
    found = aligner.align_pair(*_document(5))
    assert found.problem is None and found.links


def test_marks_are_carried_through_a_long_document() -> None:
    source, target = _document(30)
    start = source.rindex("garden")
    marked = MarkedText(source, (Mark(start, start + 6, "b", "<b>", "</b>"), Mark(0, len(source), "i", "<i>", "</i>")))
    aligner = Aligner(lens("marian"), layer=[1, 2], extract="mutual")
    (found,) = aligner.project([(marked, target)])
    assert found.problem is None
    whole = next(piece for piece in found.pieces if piece.mark.name == "i")
    assert (whole.start, whole.end) == (0, len(target))


def test_a_long_text_is_translated_by_its_sentences() -> None:
    translate = Translator(lens("marian"), PairFormat())
    sentences = [f"{source} ." for source, _ in SENTENCES[:3]]
    assert translate([" ".join(sentences * 4), sentences[0]]) == [
        " ".join(translate(sentences * 4)),
        *translate(sentences[:1]),
    ]
    with pytest.raises(InputError, match="the model takes 40"):
        translate(["house " * 100])


@pytest.mark.real
@needs_gold
@needs_models
def test_real_sentences_joined_have_the_links_of_the_sentences() -> None:
    folder = GOLD / "hansards-en-fr"
    sides = [(folder / f"test.{side}").read_text().splitlines()[100:140] for side in ("en", "fr")]
    aligner = Aligner(MODELS / "opus-mt-en-fr", MODELS / "opus-mt-fr-en", layer=[1, 2, 3, 4])
    joined: set[tuple[int, int]] = set()
    first = other = 0
    for source, target, pair in zip(*sides, aligner.align(list(zip(*sides, strict=True))), strict=True):
        joined |= {(s + first, t + other) for s, t in pair.links}
        first, other = first + len(source.split()), other + len(target.split())
    (found,) = aligner.align([(" ".join(sides[0]), " ".join(sides[1]))])
    assert found.problem is None
    agreed = 2 * len(found.links & joined) / (len(found.links) + len(joined))
    assert agreed > 0.97
