"""The data of the alignment view: the links that `align` takes from a pair, or those that an `Aligner` gave.

A pair that carries marks shows them, too: in the source as they came, in the target where `project` placed them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normlens.alignment.extraction import cell_shares, extract_joint_links, joined_views
from normlens.alignment.layer_choice import Agreement
from normlens.alignment.links import Annotation, Link
from normlens.alignment.marked_text import MarkedText, Piece, ProjectedText
from normlens.alignment.projection import covered_words
from normlens.alignment.scoring import Counts
from normlens.errors import InputError
from normlens.inputs.tokens import is_special, readable_tokens, words_by_marks
from normlens.inputs.words import Span
from normlens.measures.table import MAPS, MEASURES
from normlens.types import Json
from normlens.viewer.packed_arrays import pack_layers

if TYPE_CHECKING:
    from normlens.alignment.aligner import Aligner
    from normlens.options import Pieces, WordRule

#: Gold links of one pair: sure and possible ones, or a plain set of sure ones.
Gold = Annotation | Iterable[Link]


def suggested_alignment(cross: xr.Dataset) -> Json | None:
    """The links of one pair as `align` takes them from one direction: ATTN-N, the token that is read, layers that agree.

    None where there is nothing to take them from: no map, no words on a side, or a difference of two runs.
    """
    measure = next((name for name in ("attn_n", *MAPS) if name in cross), None)
    source, target = _words(cross, "key"), _words(cross, "query")
    # The first position of the target has no row before it, so a word that begins there cannot be read both ways.
    if measure is None or not source or not target or any(min(places) == 0 for _, places in target):
        return None
    maps = np.asarray(cross[measure].transpose("layer", "query", "key").values, dtype=np.float64)
    if maps.min(initial=0.0) < 0:
        return None
    inside = {place for _, places in source for place in places}
    special = [place for place in range(maps.shape[-1]) if place not in inside]
    columns = [maps[..., places].sum(-1) for _, places in source]
    null = maps[..., special].max(-1) if special else np.zeros(maps.shape[:2])
    joined = np.stack([*columns, null], axis=-1)
    awi = np.stack([joined[:, places].mean(1) for _, places in target], axis=1)
    awo = np.stack([joined[:, [place - 1 for place in places]].mean(1) for _, places in target], axis=1)
    layers = tuple(int(layer) for layer in cross["layer"].values)
    chosen = Agreement.of(layers, awi, awo).auto("awi")
    joint = joined_views(awi[[layers.index(layer) for layer in chosen]])
    links = extract_joint_links(joint, "share")
    how = (
        f"As align reads this pair in one direction: {MEASURES[measure].title}, rows of the token that is read, "
        f"{_layers(chosen)}, subwords joined to words, special tokens left out. A corpus chooses layers better, and a "
        "second model for the other direction gives better links: see Aligner."
    )
    return _document([word for word, _ in source], [word for word, _ in target], cell_shares(joint), links, None, how)


def aligner_page(aligner: Aligner, source: str, target: str, gold: Gold | None = None) -> Json:
    """The page's data for a pair that an aligner aligned; `gold` links are framed and scored."""
    aligned = aligner.align_pair(source, target)
    if aligned.problem is not None:
        raise InputError(f"this pair cannot be aligned: {aligned.problem}")
    choices = aligner.choices
    encoded = {"forward": aligner.forward.encoder(source, target)}
    if aligner.reverse is not None:
        encoded["reverse"] = aligner.reverse.encoder(target, source)
    found_maps: Json = {"reverse": None}
    for name, mapper in (("forward", aligner.forward), ("reverse", aligner.reverse)):
        if mapper is not None:
            of = mapper.views if choices.combine == "views" else mapper.maps
            (found_maps[name],) = of([encoded[name]], aligner.layers[name], choices.setting)
    strength = aligner.strength(found_maps["forward"], found_maps["reverse"])
    annotation = None if gold is None else gold if isinstance(gold, Annotation) else Annotation.of(gold)
    if annotation is not None:
        outside = [
            link
            for link in annotation.possible
            if not (link[0] < len(aligned.source) and link[1] < len(aligned.target))
        ]
        if outside:
            raise InputError(
                f"the gold link {sorted(outside)[0]} is outside of the {len(aligned.source)} source and "
                f"{len(aligned.target)} target words"
            )
    from normlens.viewer.page_data import analysis_page, plain  # which shows suggested links, and so comes after this

    analysis = aligner.forward.lens.analyze(source, target=target)
    found = _document(aligned.source, aligned.target, strength, aligned.links, annotation, aligner.signature())
    return analysis_page(analysis) | {"alignment": plain(found), "opens": "alignment"}


def projection_page(
    aligner: Aligner,
    texts: Sequence[MarkedText],
    target: str,
    gold: Gold | None = None,
    *,
    words: WordRule = "text",
    pieces: Pieces = "one",
) -> Json:
    """The page's data for a text with marks and its translation: the aligned pair, and where each mark came to stand.

    `texts` is one text, or, where spans cross, the same text once for each of them. Links are between the words that
    `words` finds; `gold` counts by them.
    """
    if not texts:
        raise InputError("the text has no marks to show")
    from normlens.alignment.aligner import spaced, word_rule
    from normlens.viewer.page_data import plain, utf8

    source, spans_of = texts[0].text, word_rule(words)
    own = texts[0].words(spans_of)
    page = aligner_page(aligner, spaced(source, own), spaced(target, spans_of(target)), gold)
    found = list(aligner.project([(text, target) for text in texts], words=words, pieces=pieces))
    carried = _marks(texts, found) | {"words": _marks_of_words(texts, own)}
    title = utf8(" ".join(f"{source} → {target}".split()))
    return page | {"title": title, "alignment": page["alignment"] | {"marks": plain(carried)}}


def _marks(texts: Sequence[MarkedText], found: Sequence[ProjectedText]) -> Json:
    """All marks, numbered from 0 through all texts, and the two texts of each as trees of characters and marks.

    A tree needs no offsets: Python counts characters, a browser counts UTF-16 units.
    """
    marks, trees = list[Json](), list[Json]()
    for text, projected in zip(texts, found, strict=True):
        # By identity, since two elements may be equal in all that they hold.
        numbers = {id(mark): number for number, mark in enumerate(text.marks, start=len(marks))}
        lost = {id(mark) for mark in projected.unplaced}
        marks += [
            {
                "name": mark.name,
                "markup": mark.opening,
                "text": text.text[mark.start : mark.end],
                "placed": id(mark) not in lost,
            }
            for mark in text.marks
        ]
        source, target = _as_they_came(text, None), _without(projected.pieces, lost)
        trees.append(
            {
                "source": _tree(text.text, (0, len(text.text)), source, numbers),
                "target": _tree(projected.text, (0, len(projected.text)), target, numbers),
            }
        )
    return {"marks": marks, "texts": trees}


def _marks_of_words(texts: Sequence[MarkedText], words: Sequence[Span]) -> list[int | None]:
    """For each word of the source the innermost mark that covers it; where spans cross, the last one."""
    found: list[int | None] = [None] * len(words)
    first = 0
    for text in texts:
        for number, covered in enumerate(covered_words(text, words), start=first):
            for word in np.flatnonzero(covered):
                found[word] = number
        first += len(text.marks)
    return found


def _as_they_came(text: MarkedText, parent: int | None) -> list[Piece]:
    """The marks of a text as pieces of itself."""
    marks = [(text.marks[place], place) for place in text.children(parent)]
    return [Piece(mark, mark.start, mark.end, 1.0, tuple(_as_they_came(text, place))) for mark, place in marks]


def _without(pieces: Iterable[Piece], lost: Container[int]) -> list[Piece]:
    """The pieces that have a place; what stands inside of a lost one stands where that would."""
    found = list[Piece]()
    for piece in pieces:
        inside = _without(piece.children, lost)
        found += inside if id(piece.mark) in lost else [replace(piece, children=tuple(inside))]
    return found


def _tree(text: str, room: Span, pieces: Iterable[Piece], numbers: Mapping[int, int]) -> list[Any]:
    """Characters and marks in the order in which they stand, with what is inside of each mark."""
    found, place = list[Any](), room[0]
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.end)):
        if piece.start < place:
            raise InputError(f"the mark {piece.mark.name!r} begins before another one ends")
        inside = _tree(text, (piece.start, piece.end), piece.children, numbers)
        found += [text[place : piece.start], {"mark": numbers[id(piece.mark)], "score": piece.score, "inside": inside}]
        place = piece.end
    return [part for part in (*found, text[place : room[1]]) if part != ""]


def _document(
    source: Iterable[str],
    target: Iterable[str],
    scores: NDArray[np.float64],
    links: Iterable[Link],
    gold: Annotation | None,
    how: str,
) -> Json:
    chosen = frozenset(links)
    document: Json = {
        "source": list(source),
        "target": list(target),
        "scores": pack_layers(scores[None]),
        "links": sorted([s, t, float(scores[t, s])] for s, t in chosen),
        "how": how,
    }
    if gold is not None:
        document["gold"] = {
            "sure": sorted(map(list, gold.sure)),
            "possible": sorted(map(list, gold.possible - gold.sure)),
            "aer": float(Counts.of(chosen, gold).aer),
        }
    return document


def _words(data: xr.Dataset, axis: str) -> list[tuple[str, list[int]]]:
    """The words of an axis with their places; special tokens belong to none."""
    tokens = [str(token) for token in data[f"{axis}_token"].values]
    texts = readable_tokens(tokens)
    special = {token for token in tokens if is_special(token)}
    known = f"{axis}_word" in data.coords
    numbers = data[f"{axis}_word"].values.tolist() if known else words_by_marks(tokens, special)
    words: dict[Any, tuple[list[str], list[int]]] = {}
    for place, (token, text, number) in enumerate(zip(tokens, texts, numbers, strict=True)):
        if token not in special and number is not None and number >= 0:
            parts, places = words.setdefault(number, ([], []))
            parts.append(text)
            places.append(place)
    # A word's first token may be a bare mark for the space before it.
    return [("".join(parts).lstrip("␣") or "".join(parts), places) for parts, places in words.values()]


def _layers(layers: tuple[int, ...]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {', '.join(map(str, layers))}"
