from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from normlens.alignment.formats import AlignmentFile, read_alignments
from normlens.alignment.links import Annotation
from normlens.alignment.scoring import Counts, bootstrap, corpus_counts, score
from normlens.cli.commands.aer import aer
from normlens.cli.groups import spread
from normlens.errors import InputError
from tests.alignment.data import GOLD, needs_gold
from tests.reference import alignment as reference

links = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)
gold_lines = st.builds(Annotation.of, links, links)
corpora = st.lists(st.tuples(links, gold_lines), min_size=1, max_size=8).filter(lambda c: any(g.sure for _, g in c))


@given(corpora)
def test_aer_is_counted_link_by_link(corpus: list) -> None:
    hypotheses, gold = zip(*corpus, strict=True)
    expected = reference.error_rate(
        [set(h) for h in hypotheses], [set(g.sure) for g in gold], [set(g.possible) for g in gold]
    )
    assert math.isclose(corpus_counts(hypotheses, gold).aer, expected, abs_tol=1e-12)


@given(corpora, st.integers(0, 8))
def test_counts_of_any_split_add_up(corpus: list, cut: int) -> None:
    parts = [sum((Counts.of(h, g) for h, g in part), Counts()) for part in (corpus[:cut], corpus[cut:])]
    assert parts[0] + parts[1] == corpus_counts(*zip(*corpus, strict=True))


@given(gold_lines.filter(lambda g: g.sure))
def test_sure_links_alone_are_perfect_and_possible_ones_do_no_harm(gold: Annotation) -> None:
    for hypothesis in (gold.sure, gold.possible):
        assert Counts.of(hypothesis, gold).aer == 0
        assert Counts.of(hypothesis, gold).errors == 0


def test_no_links_is_a_full_error_and_no_precision() -> None:
    counts = Counts.of(frozenset(), Annotation.of([(0, 0)]))
    assert counts.aer == 1
    assert math.isnan(counts.precision)
    with pytest.raises(InputError, match="no sure link"):
        corpus_counts([frozenset()], [Annotation.of([])])


def test_the_bootstrap_is_seeded_and_covers_the_score() -> None:
    sentences = [Counts(4, 4, k % 5, k % 5) for k in range(60)]
    first = bootstrap(sentences, samples=400, seed=3)
    assert first == bootstrap(sentences, samples=400, seed=3)
    assert first != bootstrap(sentences, samples=400, seed=4)
    low, high = first["aer"]
    assert low < sum(sentences, Counts()).aer < high
    assert bootstrap([Counts(4, 4, 2, 2)] * 9, samples=50, seed=1)["aer"] == (0.5, 0.5)


def test_the_worst_sentences_come_first_with_what_is_wrong() -> None:
    def file(*lines: Annotation) -> AlignmentFile:
        return AlignmentFile("x", "talp", False, False, lines)

    gold = file(Annotation.of([(0, 0)]), Annotation.of([(0, 0), (1, 1)], [(2, 2)]))
    result = score(file(Annotation.of([(0, 0)]), Annotation.of([(0, 1), (2, 2)])), gold, samples=0)
    assert [(s.line, s.wrong, s.missed) for s in result.worst] == [
        (2, frozenset({(0, 1)}), frozenset({(0, 0), (1, 1)}))
    ]


PUBLISHED = {
    "rwth-de-en": {"fastalign": (28.46, 31.96, 27.02, 27.96), "giza": (20.96, 23.12, 21.41, 23.39)},
    "hansards-en-fr": {"fastalign": (16.39, 15.89, 10.48, 11.17), "giza": (7.99, 9.75, 5.94, 7.56)},
}
CASES = [
    (corpus, f"{method}{kind}.talp", expected)
    for corpus, methods in PUBLISHED.items()
    for method, figures in methods.items()
    for kind, expected in zip(("", ".reverse", ".grow-diagonal", ".intersection"), figures, strict=True)
] + [("hansards-en-fr", "awesome-align.talp", 4.07)]


@needs_gold
@pytest.mark.parametrize(("corpus", "name", "expected"), CASES)
def test_published_outputs_get_their_published_score(corpus: str, name: str, expected: float) -> None:
    gold = read_alignments(GOLD / corpus / "alignment.talp", one_based=True)
    hypothesis = read_alignments(GOLD / corpus / "peers" / name, swap="reverse" in name)
    assert abs(100 * score(hypothesis, gold, samples=0).counts.aer - expected) < 0.1


@needs_gold
def test_our_symmetrization_of_published_directions_is_the_published_one() -> None:
    from normlens.alignment.symmetrize import symmetrize

    for corpus in PUBLISHED:
        for method in ("fastalign", "giza"):
            peers = GOLD / corpus / "peers"
            forward = read_alignments(peers / f"{method}.talp").lines
            reverse = read_alignments(peers / f"{method}.reverse.talp", swap=True).lines
            published = read_alignments(peers / f"{method}.intersection.talp").lines
            for one, other, both in zip(forward, reverse, published, strict=True):
                assert symmetrize("intersection", one.sure, other.sure) == both.sure


def _run(*arguments: str | Path) -> tuple[int, str, str]:
    import typer

    app = typer.Typer()
    app.command()(spread(aer))
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, InputError):
        return 2, result.stdout, str(result.exception)
    return result.exit_code, result.stdout, result.stderr


def test_the_command_writes_scores_and_signature(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("1-1 2p2\n1-1\n")
    (tmp_path / "hyp").write_text("0-0 1-1\n0-1\n")
    code, out, _ = _run("--gold", tmp_path / "gold", "--gold-one-based", tmp_path / "hyp", "--worst", "1")
    assert code == 0
    assert "AER 40.00 [" in out and "precision 66.67" in out and "recall 50.00" in out
    assert "line 2: AER 100.0, wrong 0-1; missed 0-0" in out
    assert (
        "aer|gold:gold,talp,base:1|hyp:hyp,pharaoh,base:0|lines:2|sure:2|possible-only:1|bootstrap:1000,seed:1" in out
    )
    _, out, _ = _run("--gold", tmp_path / "gold", "--gold-one-based", tmp_path / "hyp", "--json")
    assert json.loads(out)["aer"] == pytest.approx(0.4)


def test_the_command_refuses_links_outside_the_sentences_and_unequal_files(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("1-1 2-3\n")
    (tmp_path / "hyp").write_text("0-0\n\n")
    (tmp_path / "source").write_text("a b\n")
    (tmp_path / "target").write_text("x y z\n")
    text = "--source", tmp_path / "source", "--target", tmp_path / "target"
    code, _, message = _run("--gold", tmp_path / "gold", tmp_path / "gold", *text)
    assert code == 2 and "--gold-one-based" in message
    code, _, message = _run("--gold", tmp_path / "gold", "--gold-one-based", tmp_path / "hyp")
    assert code == 2 and "hyp has 2 lines, the gold has 1" in message
    code, _, message = _run("--gold", tmp_path / "gold", tmp_path / "hyp", *text[:2])
    assert code == 2 and "together" in message


def test_the_command_notes_what_looks_swapped_or_one_based(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("1-2 1-3\n" * 3)
    (tmp_path / "hyp").write_text("2-1 3-1\n" * 3)
    _, _, notes = _run("--gold", tmp_path / "gold", tmp_path / "hyp")
    assert "is --swap right?" in notes and "(--one-based)" in notes and "(--gold-one-based)" in notes
