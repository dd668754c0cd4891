"""Documents: segments are found, translations are put in, and every other byte stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens import lens as lens_module
from normlens.alignment.documents import document_format, read_document
from normlens.errors import InputError
from tests.alignment.models_for_tests import lens
from tests.alignment.test_project_command import run

XLIFF_1 = """\ufeff<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
 <file source-language="en" target-language="fr" datatype="plaintext" original="a > b"><body>
  <trans-unit id="1"><source>the <g id="1">little</g> house<x id="2"/></source>
   <target state="new">la petite maison</target></trans-unit>
  <trans-unit id="2"><source>a <ph id="1">&lt;br&gt;</ph> garden</source><alt-trans><source>x</source><target>y</target></alt-trans></trans-unit>
  <trans-unit id="3" translate="no"><source>CODE</source><target>CODE</target></trans-unit>
  <trans-unit id="4"><source>the hill</source><target/></trans-unit>
 </body></file>
</xliff>
"""  # noqa: E501
XLIFF_2 = """<xliff version="2.0" srcLang="en" trgLang="fr" xmlns="urn:oasis:names:tc:xliff:document:2.0">
<file id="f"><unit id="u">
<segment id="1"><source>the <pc id="1">little</pc> house</source><target>la petite maison</target></segment>
<ignorable><source> </source></ignorable>
</unit></file></xliff>
"""
TMX = """<?xml version="1.0"?>
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>the <hi>little</hi> house</seg></tuv><tuv xml:lang="fr"><seg>la petite maison</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>the hill</seg></tuv></tu>
</body></tmx>
"""
PAGE = """<!DOCTYPE html>
<html><head><title>The house</title><style>b { color: red }</style></head>
<body><p class="a">the <b>little</b> house</p><!-- note --><ul><li>a garden<li>the hill</ul>
<div>one <i>big</i> house<p>the garden</p></div><script>var x = "<p>no</p>";</script></body></html>
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lens_module, "load", lambda name: lens("marian", seed=int(name)))


def test_segments_of_xliff(tmp_path: Path) -> None:
    path = tmp_path / "a.xlf"
    path.write_text(XLIFF_1, encoding="utf-8")
    document = read_document(path, "xliff")
    sources = [document.source(segment) for segment in document.segments]
    assert [source.text for source in sources] == ["the little house", "a  garden", "the hill"]
    assert [mark.opening for mark in sources[1].marks] == ['<ph id="1">&lt;br&gt;</ph>']
    assert [document.target(segment) for segment in document.segments] == ["la petite maison", None, None]
    written = document.with_targets(['la <g id="1">petite</g> maison', "un jardin", "colline"]).decode()
    expected = XLIFF_1.replace(">la petite maison<", '>la <g id="1">petite</g> maison<')
    expected = expected.replace("garden</source>", "garden</source><target>un jardin</target>")
    assert written == expected.replace("<target/>", "<target>colline</target>")
    marked = document.with_targets(["@1", "@2", "@3"]).decode()
    undone = marked.replace("@1", "la petite maison").replace("<target>@2</target>", "")
    assert undone.replace("<target>@3</target>", "<target/>") == XLIFF_1, "every other byte is as it was"


def test_segments_of_xliff_2_and_tmx(tmp_path: Path) -> None:
    (tmp_path / "b.xlf").write_text(XLIFF_2, encoding="utf-8")
    document = read_document(tmp_path / "b.xlf", "xliff")
    assert [document.source(segment).text for segment in document.segments] == ["the little house"]
    (tmp_path / "c.tmx").write_text(TMX, encoding="utf-8")
    with pytest.raises(InputError, match="--target-language"):
        read_document(tmp_path / "c.tmx", "tmx")
    document = read_document(tmp_path / "c.tmx", "tmx", "fr")
    assert [document.target(segment) for segment in document.segments] == ["la petite maison", None]
    tree = ElementTree.fromstring(document.with_targets([None, "la colline"]))
    assert [seg.text for seg in tree.iter("seg")][-1] == "la colline"


@pytest.mark.parametrize(
    ("languages", "source_language", "asked", "expected"),
    [
        (("en", "de", "fr"), "en", "fr", ("en", "fr")),
        (("de", "en"), "en", None, ("en", "de")),
        (("en-GB", "fr-FR"), "en", "fr", ("en-GB", "fr-FR")),
        (("en", "de", "fr"), "en", None, "choose one with --target-language"),
    ],
)
def test_languages_of_tmx(
    languages: tuple[str, ...], source_language: str, asked: str | None, expected: object, tmp_path: Path
) -> None:
    units = "".join(f'<tuv xml:lang="{language}"><seg>{language}</seg></tuv>' for language in languages)
    path = tmp_path / "d.tmx"
    path.write_text(f'<tmx><header srclang="{source_language}"/><body><tu>{units}</tu></body></tmx>')
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            read_document(path, "tmx", asked)
        return
    document = read_document(path, "tmx", asked)
    (segment,) = document.segments
    assert (document.source(segment).text, document.target(segment)) == expected


def test_documents_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.xlf"
    path.write_text('<?xml version="1.0" encoding="ISO-8859-1"?><xliff/>')
    with pytest.raises(InputError, match="declares the encoding ISO-8859-1"):
        read_document(path, "xliff")
    path.write_text(TMX)
    with pytest.raises(InputError, match="looks like tmx"):
        read_document(path, "xliff")
    path.write_text(
        '<xliff version="1.2"><file><group translate="no"><trans-unit translate="yes"><source>a</source>'
        "<seg-source>a</seg-source></trans-unit></group></file></xliff>"
    )
    written = read_document(path, "xliff").with_targets(["b"]).decode()
    assert "</seg-source><target>b</target></trans-unit>" in written


@pytest.mark.parametrize(
    ("form", "content", "expected"),
    [
        ("tmx", '<tmx><header srclang="en"/><tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>'
         "</tmx>",
         '<tuv xml:lang="de"><seg>Té</seg></tuv>'),
        ("xliff", "<xliff><trans-unit><source>a</source><seg-source/></trans-unit></xliff>",
         "<seg-source/><target>Té</target></trans-unit>"),
        ("xliff", "<xliff><trans-unit><source>a <x:ph xmlns:x='y'>&lt;b/></x:ph></source></trans-unit></xliff>",
         "</source><target>Té</target></trans-unit>"),
        ("xliff", "<xliff xmlns:m='y'><trans-unit><source>a</source><m:target>b</m:target></trans-unit></xliff>",
         "<source>a</source><target>Té</target><m:target>b</m:target>"),
        ("html-document", '<p>x<br title="a>b"/>Hello</p>', "<p>Té</p>"),
        ("html-document", '<p title="a>b"/>Hello</p>', '<p title="a>b"/>Té</p>'),
        ("html-document", '<p><b translate="no">X</b></p><p>Hello</p>', '<b translate="no">X</b></p><p>Té</p>'),
    ],
)  # fmt: skip
def test_odd_documents_stay_what_they_are(form: Any, content: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_text(content, encoding="utf-8")
    document = read_document(path, form, "de" if form == "tmx" else None)
    assert len(document.segments) == 1
    assert expected in document.with_targets(["Té"]).decode()


@pytest.mark.parametrize(
    "content",
    ['<META CHARSET="ISO-8859-1"><p>a</p>', "<p>a</p><?php if ($a > 1) echo 1; ?>", "<p>a</p><!-- x <p>b</p>"],
)
def test_pages_that_would_be_damaged_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text(content, encoding="utf-8")
    with pytest.raises(InputError):
        read_document(tmp_path / "p.html", "html-document")


def test_segments_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text(PAGE, encoding="utf-8")
    document = read_document(tmp_path / "p.html", "html-document")
    texts = [document.source(segment).text for segment in document.segments]
    assert texts == ["The house", "the little house", "a garden", "the hill", "one big house", "the garden"]
    marked = [f"{number}" for number in range(len(texts))]
    changed = document.with_targets(marked).decode()
    assert '<p class="a">1</p><!-- note --><ul><li>2<li>3</ul>' in changed and '"<p>no</p>"' in changed
    own = [document.content[slice(*segment.source)].decode() for segment in document.segments]
    assert document.with_targets(own).decode() == PAGE


@given(st.text(alphabet="<>/=\"' pbdivté&;!-", max_size=40))
def test_any_page_without_translations_is_unchanged(text: str) -> None:
    from normlens.alignment.documents import Document, _PageReader

    try:
        segments = _PageReader(text).segments
    except InputError:  # an open comment
        return
    document = Document(Path("x"), "html-document", text.encode(), segments)
    own = [document.content[slice(*segment.source)].decode() for segment in document.segments]
    assert document.with_targets(own) == text.encode()
    assert all(text.encode()[slice(*segment.source)].decode().strip() for segment in document.segments)


@pytest.mark.parametrize(
    ("content", "format", "right"),
    [(XLIFF_1, "xml", "xliff"), (TMX, "xml", "tmx"), (PAGE, "html", "html-document"), (XLIFF_2, "html", "xliff")],
)
@pytest.mark.usefixtures("models")
def test_a_document_is_not_read_line_by_line(content: str, format: str, right: str, tmp_path: Path) -> None:
    (tmp_path / "document").write_text(content, encoding="utf-8")
    code, _, error = run("--model", "0", "--source", str(tmp_path / "document"), "--format", format, "--translate")
    assert code == 2 and f"use --format {right}" in error
    assert document_format(content) == right


@pytest.mark.usefixtures("models")
def test_a_document_comes_out_as_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.xlf").write_text(XLIFF_1.replace("<target/>", "<target>la colline</target>"), encoding="utf-8")
    out = tmp_path / "a.fr.xlf"
    arguments = ["--model", "0", "--source", str(tmp_path / "a.xlf"), "--format", "xliff", "--out", str(out)]
    code, _, error = run(*arguments)
    assert code == 2 and "has no translation" in error and not out.exists()
    complete = XLIFF_1.replace("<target/>", "<target>la colline</target>").replace(
        "garden</source>", "garden</source><target>un jardin</target>"
    )
    (tmp_path / "a.xlf").write_text(complete, encoding="utf-8")
    code, _, notes = run(*arguments)
    assert code == 0, notes
    assert "3 of 3 segments" in notes
    tree = ElementTree.fromstring(out.read_bytes())
    name = "{urn:oasis:names:tc:xliff:document:1.2}"
    targets = ["".join(t.itertext()) for t in tree.iter(f"{name}target")]
    assert targets[0] == "la petite maison" and targets[-1] == "la colline" and "CODE" in targets
    unit = next(tree.iter(f"{name}trans-unit"))
    assert {child.tag.removeprefix(name) for child in next(unit.iter(f"{name}target"))} == {"g", "x"}


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    from normlens.alignment.parallel_files import read_lines

    (tmp_path / "lines").write_text("\ufeffle chat\n", encoding="utf-8")
    assert list(read_lines(tmp_path / "lines")) == ["le chat"]
