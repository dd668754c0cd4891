from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.alignment.formats import check_indices, format_line, parse_line, read_alignments
from normlens.alignment.links import Annotation
from normlens.errors import InputError

links = st.sets(st.tuples(st.integers(0, 30), st.integers(0, 30)))
annotations = st.builds(Annotation.of, links, links)


@given(annotations, st.booleans())
def test_talp_is_read_back_as_it_was_written(annotation: Annotation, one_based: bool) -> None:
    assert parse_line(format_line(annotation, talp=True, one_based=one_based), one_based=one_based) == annotation


@given(annotations)
def test_pharaoh_knows_no_possible_links(annotation: Annotation) -> None:
    assert parse_line(format_line(annotation)).sure == annotation.possible


@given(links)
def test_scores_are_written_and_skipped(pairs: set[tuple[int, int]]) -> None:
    written = format_line(frozenset(pairs), scores=dict.fromkeys(pairs, 0.25))
    assert written.count(":0.2500") == len(pairs)
    assert parse_line(written).sure == pairs


@given(st.lists(annotations, max_size=5))
def test_naacl_is_read_back_even_where_the_last_pairs_have_no_link(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Annotation]
) -> None:
    path = tmp_path_factory.mktemp("naacl") / "gold"
    links = ((n, *link, link in line.sure) for n, line in enumerate(lines, 1) for link in sorted(line.possible))
    path.write_text("".join(f"{n} {source + 1} {target + 1} {'SP'[not sure]}\n" for n, source, target, sure in links))
    read = read_alignments(path, sentences=len(lines))
    if any(line.possible for line in lines):
        assert read.format == "naacl"
        assert list(read.lines) == lines


def test_naacl_zero_is_the_null_word_and_kind_and_confidence_may_be_absent(tmp_path: Path) -> None:
    path = tmp_path / "gold"
    path.write_text("0001 1 2 S\n0001 0 3 S\n0003 2 2 P 0.5\n0003 1 1\n")
    read = read_alignments(path)
    assert read.one_based
    assert read.lines == (Annotation.of([(0, 1)]), Annotation.of([]), Annotation.of([(0, 0)], [(1, 1)]))


def test_an_empty_line_is_a_pair_without_links_and_an_empty_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "links"
    path.write_text("0-0\n\n1-1\n")
    assert [len(line.sure) for line in read_alignments(path).lines] == [1, 0, 1]
    path.write_text("")
    assert read_alignments(path).lines == ()


@pytest.mark.parametrize("text", ["0-a", "1:2", "0-1-2", "hello", "-1-0"])
def test_what_is_not_a_link_is_named(text: str) -> None:
    with pytest.raises(InputError, match="which is no link"):
        parse_line(text)


def test_zero_in_a_one_based_file_is_an_error_that_names_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "links"
    path.write_text("1-1\n0-1\n")
    with pytest.raises(InputError, match=r"line 2 has '0-1'.*one-based flag"):
        read_alignments(path, one_based=True)


@pytest.mark.parametrize(
    ("text", "flags", "advice"),
    [
        ("1-1 2-3", {}, "--one-based"),
        ("2-0 1-1", {}, "--swap"),
        ("7-7", {}, "belong to these sentences"),
        ("3-3", {"one_based": True}, "belong to these sentences|--swap"),
    ],
)
def test_an_index_outside_the_sentence_suggests_the_flag(
    tmp_path: Path, text: str, flags: dict[str, bool], advice: str
) -> None:
    path = tmp_path / "links"
    path.write_text(text + "\n")
    with pytest.raises(InputError, match=advice):
        check_indices(read_alignments(path, **flags), [(2, 3)], "--")


def test_swap_exchanges_the_sides(tmp_path: Path) -> None:
    path = tmp_path / "links"
    path.write_text("2-0 1p1\n")
    read = read_alignments(path, swap=True)
    check_indices(read, [(2, 3)], "--")
    assert read.lines[0] == Annotation.of([(0, 2)], [(1, 1)])
