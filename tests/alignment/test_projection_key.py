"""The key that projection is scored by, and the scoring itself."""

from __future__ import annotations

from benchmarks.projection import Phrase, Result, read_key, summary


def test_the_key_has_a_hundred_phrases_with_first_words_first() -> None:
    phrases = read_key()
    assert len(phrases) == len({phrase.line for phrase in phrases}) == 100
    for phrase in phrases:
        assert all(0 <= first <= last for first, last in (phrase.source, *phrase.targets))


def test_a_phrase_counts_as_exact_in_one_piece_only() -> None:
    phrase = Phrase(1, (0, 1), ((2, 4), (3, 4)))
    results = [
        Result(phrase, ((3, 4),), 0.9), Result(phrase, ((2, 3),), 0.8), Result(phrase, ((3, 3), (4, 4)), 0.7),
        Result(phrase, (), 0.0),
    ]  # fmt: skip
    assert [result.exact for result in results] == [True, False, False, False]
    assert [round(result.f1, 2) for result in results] == [1.0, 0.8, 1.0, 0.0]
    assert summary(results)["lost"] == 1 and summary(results)["in_pieces"] == 1
