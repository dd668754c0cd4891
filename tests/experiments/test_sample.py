"""Laws of the sample corpus: what the experiments rely on when they run on it."""

import os
import re
import unicodedata
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

SAMPLE = files("normlens.experiments") / "data" / "sample.txt"
MODEL = Path(os.environ.get("NORMLENS_REAL_MODELS", "../models")) / "minilm"

TEXT = SAMPLE.read_bytes().decode("utf-8")
PARAGRAPHS = TEXT.removesuffix("\n").split("\n")
PAIRS = list(zip(PARAGRAPHS[::2], PARAGRAPHS[1::2], strict=False))


def words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.lower())


def topic_words(text: str) -> set[str]:
    """Words long enough to name a topic rather than join a sentence."""
    return {word for word in words(text) if len(word) >= 5}


def overlap(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b)


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    sequence = words(text)
    return {tuple(sequence[i : i + length]) for i in range(len(sequence) - length + 1)}


def share(hold: list[bool]) -> float:
    return sum(hold) / len(hold)


def test_paragraphs_come_in_pairs():
    assert len(PARAGRAPHS) % 2 == 0
    assert len(PAIRS) == 150


def test_one_paragraph_per_line_and_no_blank_line():
    assert TEXT.endswith("\n") and not TEXT.endswith("\n\n")
    assert [p for p in PARAGRAPHS if p != p.strip() or not p or "  " in p] == []


def test_paragraphs_have_45_to_75_words():
    assert {p: len(p.split()) for p in PARAGRAPHS if not 45 <= len(p.split()) <= 75} == {}


def test_no_paragraph_and_no_run_of_eight_words_occurs_twice():
    assert len(set(PARAGRAPHS)) == len(PARAGRAPHS)
    counts = Counter(run for p in PARAGRAPHS for run in runs(p, 8))
    assert [" ".join(run) for run, n in counts.items() if n > 1] == []


def test_characters_are_composed_letters_and_plain_punctuation():
    # A control character, a mark or a typographic quote would reach some tokenizers as [UNK] or vanish.
    odd = {c for c in TEXT if not (c.isalpha() or c.isdigit() or c in "\n ,.;:?'\"()/-")}
    assert odd == set()
    assert unicodedata.normalize("NFC", TEXT) == TEXT


def test_every_paragraph_is_whole_sentences():
    assert [p for p in PARAGRAPHS if not (p[0].isupper() and p.endswith("."))] == []
    assert [p for p in PARAGRAPHS if p.count("(") != p.count(")") or p.count('"') % 2] == []


def test_commas_and_periods_are_as_frequent_as_in_prose():
    # The papers' categories include commas and periods: a sequence without them would say nothing about either.
    assert share(["," in p for p in PARAGRAPHS]) > 0.98
    assert share([p.count(".") >= 2 for p in PARAGRAPHS]) > 0.98
    assert 0.05 < TEXT.count(",") / len(TEXT.split()) < 0.10
    assert 0.04 < len(re.findall(r"\.(?:\s|$)", TEXT)) / len(TEXT.split()) < 0.08


def test_numbers_and_parentheses_occur():
    assert share([bool(re.search(r"\d", p)) for p in PARAGRAPHS]) > 0.5
    assert share(["(" in p for p in PARAGRAPHS]) > 0.08


def test_vocabulary_is_varied():
    counts = Counter(words(TEXT))
    assert len(counts) > 4000
    assert share([n == 1 for n in counts.values()]) > 0.5
    assert counts.most_common(1)[0][0] == "the"
    # Function words aside, no single word may colour the whole corpus.
    longest = max(n for word, n in counts.items() if len(word) >= 5)
    assert longest / sum(counts.values()) < 0.01


def test_sentence_lengths_vary():
    lengths = [len(s.split()) for p in PARAGRAPHS for s in re.split(r"(?<=[.?]) (?=[A-Z])", p)]
    mean = sum(lengths) / len(lengths)
    deviation = (sum((n - mean) ** 2 for n in lengths) / len(lengths)) ** 0.5
    assert 12 < mean < 25
    assert deviation > 0.3 * mean


def test_openings_follow_no_template():
    openings = Counter(tuple(words(p)[:3]) for p in PARAGRAPHS)
    assert [opening for opening, n in openings.items() if n > 1] == []
    first = Counter(words(p)[0] for p in PARAGRAPHS)
    assert first.most_common(1)[0][1] <= 0.12 * len(PARAGRAPHS)


def test_a_pair_continues_one_topic_and_no_two_pairs_share_one():
    pairs = [topic_words(f"{a} {b}") for a, b in PAIRS]
    alike = [(i, j) for i in range(len(pairs)) for j in range(i) if overlap(pairs[i], pairs[j]) > 0.2]
    assert alike == []

    # Paragraphs of one pair share more topic words than paragraphs that merely follow each other.
    within = [overlap(topic_words(a), topic_words(b)) for a, b in PAIRS]
    across = [overlap(topic_words(PAIRS[i][1]), topic_words(PAIRS[i + 1][0])) for i in range(len(PAIRS) - 1)]
    assert sum(within) / len(within) > 1.5 * sum(across) / len(across)


@pytest.mark.real
def test_pairs_fill_128_word_pieces_or_nearly():
    if not (MODEL / "vocab.txt").exists():
        pytest.skip(f"no BERT vocabulary at {MODEL}; set NORMLENS_REAL_MODELS to a folder that holds minilm")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    whole = [tokenizer(a, b, truncation=False, padding=False)["input_ids"] for a, b in PAIRS]
    lengths = [len(ids) for ids in whole]
    assert min(lengths) >= 110 and max(lengths) <= 170
    # Some pairs stay whole at the papers' limit, so that a corpus run sees rows of unequal length.
    assert 0.05 < share([n < 128 for n in lengths]) < 0.5
    assert all(ids.count(tokenizer.sep_token_id) == 2 for ids in whole)
    assert all(tokenizer.unk_token_id not in ids for ids in whole)
