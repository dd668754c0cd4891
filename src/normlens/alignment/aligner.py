"""Aligner: word alignments from a translation model, or from two that translate in opposite directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from normlens.alignment.extraction import (
    COMBINATIONS,
    EXTRACTIONS,
    JOININGS,
    JointMap,
    WordMap,
    cell_shares,
    confidence,
    extract_joint_links,
    extract_links,
    join_directions,
    join_view_directions,
    row_shares,
)
from normlens.alignment.layer_choice import SETTINGS, Agreement, SavedChoice
from normlens.alignment.links import Link, Links, swap
from normlens.alignment.long_pairs import LONGEST_WINDOW, LongPair, Sizes
from normlens.alignment.marked_text import MarkedText, ProjectedText
from normlens.alignment.markup import read_markup, write_markup
from normlens.alignment.pair_encoding import EncodedPair, PairFormat
from normlens.alignment.projection import project_marks
from normlens.alignment.symmetrize import HEURISTICS, symmetrize
from normlens.alignment.word_maps import WordMapper
from normlens.errors import InputError
from normlens.inputs.words import Span, sentence_ends, spaced_spans, word_spans
from normlens.lens import Lens, load
from normlens.options import Combination, Extraction, Joining, Markup, Pieces, Setting, Symmetrization, WordRule
from normlens.provenance import version_of, versions
from normlens.types import Json

if TYPE_CHECKING:
    from normlens.viewer.alignment_page import Gold
    from normlens.viewer.display import View

#: Pairs that are sorted by length together; their alignments leave in the order of the input.
WINDOW = 512
LayerChoice = Literal["auto", "best"] | int | Sequence[int]
#: How words are found in a text that carries marks: in running text, or between spaces.
WORD_RULES: dict[WordRule, Callable[[str], list[Span]]] = {"text": word_spans, "spaces": spaced_spans}
#: A text, one with its marks, or the same text once for each of its marks where they cross each other.
MarkedSource = str | MarkedText | Sequence[MarkedText]


class TextOptions(TypedDict, total=False):
    """What the models of an `Aligner` read beside the sentences; all of it is empty by default."""

    source_prefix: str  # text before every source sentence
    reverse_source_prefix: str  # the same for the reverse model
    source_language: str | None  # a code, where the tokenizer has them
    target_language: str | None
    prompt: str  # of a decoder-only model, with {source} and {target} in it
    reverse_prompt: str


@dataclass(frozen=True)
class Choices:
    """Every choice that decides which links come out; the names are the command line's."""

    setting: Setting = "awi"
    measure: str = "attn_n"
    layer: Literal["auto", "best"] | tuple[int, ...] = "auto"
    head: int | None = None
    symmetrize: Joining | Symmetrization | None = None
    combine: Combination = "views"
    extract: Extraction = "share"
    threshold: float = 0.5
    raw: bool = False

    def check(self) -> None:
        """Refuse names that do not exist and combinations that have no meaning."""
        known = (*JOININGS, *HEURISTICS)
        for name, value, allowed in (
            ("setting", self.setting, SETTINGS),
            ("combine", self.combine, COMBINATIONS),
            ("extract", self.extract, EXTRACTIONS),
            ("symmetrize", self.symmetrize or known[0], known),
        ):
            if value not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        if isinstance(self.layer, str) and self.layer not in ("auto", "best"):
            raise InputError(f"layer must be auto, best, or numbers from 1, got {self.layer!r}")
        if (self.joins or self.combine == "views") and self.extract not in ("mutual", "share"):
            raise InputError(
                f"extract must be mutual or share for joined maps, which have no null column, got {self.extract}"
            )
        if self.combine == "views" and self.symmetrize not in (None, "product"):
            raise InputError(f"combine='views' joins directions by product, got symmetrize={self.symmetrize!r}")
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold must be at least 0 and below 1, got {self.threshold}")

    @property
    def joins(self) -> bool:
        """Return True if the maps of two directions are joined before links are taken."""
        return self.symmetrize in JOININGS


@dataclass(frozen=True)
class AlignedPair:
    """The links of one pair: (source word, target word) from 0, with a score between 0 and 1 each.

    `certain` holds the links that each direction has by itself (all of them where there is one direction).
    A pair that could not be aligned has no links and says why in `problem`.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links
    certain: Links
    scores: dict[Link, float]
    problem: str | None = None

    @property
    def confidences(self) -> dict[Link, float]:
        """The probability that each link is right; calibrated for shares of joined views (see `extraction.confidence`)."""
        return {link: confidence(score) for link, score in self.scores.items()}

    def to_dict(self) -> Json:
        """Everything as plain JSON values."""
        return {
            "source": list(self.source),
            "target": list(self.target),
            "links": [[s, t, round(self.scores[s, t], 6)] for s, t in sorted(self.links)],
            "confidences": [round(self.confidences[link], 4) for link in sorted(self.links)],
            **({"problem": self.problem} if self.problem else {}),
        }


class Aligner:
    """Aligns the words of sentence pairs with a translation model (2020, Section 5).

    Every layer of every model is a view of the alignment; the views are multiplied, and a link is a pair of words that
    holds the majority of its row and column on average (`combine="views"`, `extract="share"`). `reverse` is a model that
    translates in the opposite direction: more views. `combine="mean"` averages layers instead, for arg-max links and
    heuristics over the links of two directions. A decoder-only model takes a `prompt` with `{source}` and `{target}`;
    with the languages turned round, it is its own `reverse`. `layer` is `auto` (see `layer_choice`), `best`, a layer,
    or several.

    >>> aligner = Aligner("opus-mt-en-fr", reverse="opus-mt-fr-en")          # doctest: +SKIP
    >>> aligner.align_pair("the little house", "la petite maison").links     # doctest: +SKIP
    frozenset({(0, 0), (1, 1), (2, 2)})
    """

    def __init__(
        self,
        model: str | Path | Lens,
        reverse: str | Path | Lens | None = None,
        *,
        setting: Setting = "awi",
        measure: str = "attn_n",
        layer: LayerChoice = "auto",
        head: int | None = None,
        symmetrize: Joining | Symmetrization | None = None,
        combine: Combination | None = None,
        extract: Extraction | None = None,
        threshold: float = 0.5,
        raw: bool = False,
        layers_from: str | Path | None = None,
        batch_tokens: int = 4096,
        **text: Unpack[TextOptions],
    ) -> None:
        how: Joining | Symmetrization | None = symmetrize or (None if reverse is None else "product")
        # Views have no null column and no heuristic over links: whoever asks for one combines layers by the mean.
        plain = how in (None, "product") and extract in (None, "share", "mutual")
        combined: Combination = combine or ("views" if plain else "mean")
        usual: Extraction = "share" if combined == "views" else "mutual" if how in JOININGS else "argmax"
        self.choices = Choices(
            setting=setting,
            measure=measure,
            layer=layer if isinstance(layer, str) else (layer,) if isinstance(layer, int) else tuple(layer),
            head=head,
            symmetrize=how,
            combine=combined,
            extract=extract or usual,
            threshold=threshold,
            raw=raw,
        )
        self.choices.check()
        if reverse is None and self.choices.joins:
            raise InputError(f"symmetrize={how!r} needs a reverse model; pass reverse=…, or another symmetrization")

        def mapper(model: str | Path | Lens, form: PairFormat) -> WordMapper:
            lens = model if isinstance(model, Lens) else load(model)
            return WordMapper(lens, form, measure=measure, head=head, batch_tokens=batch_tokens)

        source, target = text.get("source_language"), text.get("target_language")
        self.forward = mapper(
            model, PairFormat(raw, text.get("source_prefix", ""), source, target, text.get("prompt", ""))
        )
        self.reverse: WordMapper | None = None
        if reverse is not None:
            prefix, prompt = text.get("reverse_source_prefix", ""), text.get("reverse_prompt", "")
            self.reverse = mapper(reverse, PairFormat(raw, prefix, target, source, prompt))
        #: Filled when the first text is seen: the layers of each direction, and how far each layer's readings agree.
        self.layers: dict[str, tuple[int, ...]] = {}
        self.agreements: dict[str, Agreement] = {}
        if layers_from is not None:
            if layer != "auto":
                raise InputError(f"layer and layers_from exclude each other, got {layer!r} and {layers_from}")
            saved = SavedChoice.read(Path(layers_from))
            saved.check(self.choice())
            self.layers = {name: _existing(saved.layers[name], mapper) for name, mapper in self._mappers().items()}

    # ---- aligning ------------------------------------------------------------------------------------------------

    def align_pair(self, source: str, target: str) -> AlignedPair:
        """Align one pair; an automatic choice of layers is better made on more text, see `choose_layers`."""
        return next(self.align([(source, target)]))

    def align(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        reverse_links: Iterable[Links] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[AlignedPair]:
        """Align a stream of pairs, one result per pair and in their order.

        `reverse_links` are the other direction's links from elsewhere, already (source, target); they are symmetrized
        with this model's. `progress` is called with the number of pairs finished.
        """
        if reverse_links is not None and (self.reverse is not None or self.choices.symmetrize not in HEURISTICS):
            raise InputError(
                f"reverse links from a file need one model and a symmetrization of {', '.join(HEURISTICS)}, got "
                f"{self.choices.symmetrize or 'no symmetrization'}{(' and a reverse model' if self.reverse else '')}"
            )
        stream, others, done = iter(pairs), iter(reverse_links) if reverse_links is not None else None, 0
        while window := list(islice(stream, WINDOW)):
            given = list(islice(others, len(window))) if others is not None else None
            if given is not None and len(given) < len(window):
                raise InputError(f"the reverse links end after {done + len(given)} lines; give a line for every pair")
            yield from self._align_window(window, given)
            done += len(window)
            if progress is not None:
                progress(done)

    def choose_layers(self, pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[int, ...]]:
        """Settle the layers on this text; `align` does it on the first pairs it sees."""
        directions = self._directions([self._first_window(*pair) for pair in pairs])
        for name, (mapper, encoded) in directions.items():
            if isinstance(self.choices.layer, tuple):
                self.layers[name] = _existing(self.choices.layer, mapper)
                continue
            if not any(pair.problem is None for pair in encoded):
                continue  # nothing to align here, so nothing to choose on: the next window may have text
            agreement = mapper.agreement_on_first(encoded)
            self.agreements[name] = agreement
            best = (agreement.best(self.choices.setting),)
            self.layers[name] = best if self.choices.layer == "best" else agreement.auto(self.choices.setting)
        return dict(self.layers)

    def choice(self) -> SavedChoice:
        """The layers as they are settled, and what they were chosen by."""
        return SavedChoice(
            dict(self.layers),
            self.choices.setting,
            self.choices.measure + ("" if self.choices.head is None else f" head {self.choices.head}"),
            {name: mapper.describe().get("content") for name, mapper in self._mappers().items()},
            {name: agreement.pairs for name, agreement in self.agreements.items()},
        )

    def _mappers(self) -> dict[str, WordMapper]:
        return {"forward": self.forward} | ({} if self.reverse is None else {"reverse": self.reverse})

    def _directions(self, pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[WordMapper, list[EncodedPair]]]:
        directions = {"forward": (self.forward, [self.forward.encoder(s, t) for s, t in pairs])}
        if self.reverse is not None:
            directions["reverse"] = self.reverse, [self.reverse.encoder(t, s) for s, t in pairs]
        return directions

    def _align_window(self, window: Sequence[tuple[str, str]], given: Sequence[Links] | None) -> Iterator[AlignedPair]:
        if not self.layers:
            self.choose_layers(window)
        long = {} if given is not None else {i: found for i, pair in enumerate(window) if (found := self._long(*pair))}
        documents = iter(self._align_documents(list(long.values())))
        whole = iter(self._align_whole([pair for i, pair in enumerate(window) if i not in long], given))
        for i in range(len(window)):
            yield next(documents) if i in long else next(whole)

    def _align_whole(self, window: Sequence[tuple[str, str]], given: Sequence[Links] | None) -> Iterator[AlignedPair]:
        """Align pairs as they are; one that is too long, or has an empty side, has a problem."""
        if not window:
            return
        directions = self._directions(window)
        # Both directions must be able to align a pair: half an alignment would look like a whole one.
        problems = [
            next((pair.problem for pair in both if pair.problem), None)
            for both in zip(*(encoded for _, encoded in directions.values()), strict=True)
        ]
        usable = [i for i, problem in enumerate(problems) if problem is None]
        maps: dict[str, dict[int, WordMap | JointMap | None]] = {}
        for name, (mapper, encoded) in directions.items():
            chosen = [encoded[i] for i in usable]
            of = mapper.views if self.choices.combine == "views" else mapper.maps
            found = of(chosen, self.layers[name], self.choices.setting) if usable else []
            maps[name] = dict(zip(usable, found, strict=True))
        for i, pair in enumerate(directions["forward"][1]):
            forward = maps["forward"].get(i)
            if forward is None:
                yield AlignedPair(pair.source.words, pair.target.words, frozenset(), frozenset(), {}, problems[i])
                continue
            reverse = maps["reverse"].get(i) if self.reverse is not None else None
            yield self._links(pair, forward, reverse, None if given is None else given[i])

    # ---- pairs beyond the models' length: see `long_pairs` --------------------------------------------------------

    def _long(self, source: str, target: str) -> LongPair | None:
        """The pair as a document to be cut, if it is too long for a model, or for a window, and every word of it fits."""
        encoded = [both[1][0] for both in self._directions([(source, target)]).values()]
        if self.choices.raw or not any(pair.too_long or _many_sentences(pair) for pair in encoded):
            return None
        sides: list[list[tuple[tuple[int, ...], ...]]] = [[], []]
        fits = [LONGEST_WINDOW, LONGEST_WINDOW]
        for turned, mapper in enumerate(self._mappers().values()):
            room, pair = mapper.encoder.room, encoded[turned]
            for side, text in enumerate((pair.source, pair.target)):
                sides[side ^ turned].append(text.spans)
                if room is not None:
                    fits[side ^ turned] = min(fits[side ^ turned], room[side])
        words = encoded[0].source.words, encoded[0].target.words
        sizes = []
        for side, spans in enumerate(sides):
            counts = tuple(max(map(len, places)) for places in zip(*spans, strict=True))
            if max(counts) > fits[side]:
                return None
            sizes.append(Sizes(words[side], counts, fits[side]))
        return LongPair(*sizes)

    def _first_window(self, source: str, target: str) -> tuple[str, str]:
        """The text on which layers are chosen: the pair, or of a document its beginning."""
        document = self._long(source, target)
        window = None if document is None else document.window
        return (source, target) if document is None or window is None else document.text_of(window)

    def _align_documents(self, documents: Sequence[LongPair]) -> list[AlignedPair]:
        """Cut documents by the links of their windows, one window of each at a time, then align all pieces."""
        while open_ones := [(one, window) for one in documents if (window := one.window) is not None]:
            texts = [document.text_of(window) for document, window in open_ones]
            for (document, window), aligned in zip(open_ones, self._align_whole(texts, None), strict=True):
                document.advance(window, aligned.scores, aligned.certain)
        pieces = [(document, piece) for document in documents for piece in document.pieces()]
        for start in range(0, len(pieces), WINDOW):
            some = pieces[start : start + WINDOW]
            texts = [document.text_of(piece) for document, piece in some]
            for (document, piece), aligned in zip(some, self._align_whole(texts, None), strict=True):
                document.add(piece, aligned.scores, aligned.certain)
        return [
            AlignedPair(one.source.words, one.target.words, frozenset(one.scores), frozenset(one.certain), one.scores)
            for one in documents
        ]

    def _links(
        self, pair: EncodedPair, forward: WordMap | JointMap, reverse: WordMap | JointMap | None, given: Links | None
    ) -> AlignedPair:
        how, choices = self.choices.symmetrize, self.choices
        strength = self.strength(forward, reverse)
        certain: Links | None = None
        if choices.combine == "views" or how in JOININGS:
            links = extract_joint_links(self.joint(forward, reverse), choices.extract, choices.threshold)
        else:
            links = extract_links(forward, choices.extract, choices.threshold)
            other = given
            if reverse is not None:
                other = swap(extract_links(reverse, choices.extract, choices.threshold))
            if other is not None and how is not None and how not in JOININGS:
                certain = links & other
                links = symmetrize(how, links, other)  # type: ignore[arg-type]
        scores = {(s, t): float(strength[t, s]) for s, t in links}
        return AlignedPair(
            pair.source.words, pair.target.words, links, links if certain is None else certain & links, scores
        )

    def joint(self, forward: WordMap | JointMap, reverse: WordMap | JointMap | None) -> JointMap:
        """The maps of all directions as one; `forward` and `reverse` as `WordMapper.views` or `.maps` gives them."""
        if self.choices.combine == "views":
            return forward if reverse is None else join_view_directions(forward, reverse)
        if reverse is None:
            return row_shares(forward)[:, :-1]
        return join_directions(forward, reverse, "sum" if self.choices.symmetrize == "sum" else "product")

    def strength(self, forward: WordMap | JointMap, reverse: WordMap | JointMap | None) -> JointMap:
        """The score of a link: its share of its row and column; of its row, where one direction's layers are averaged."""
        joint = self.joint(forward, reverse)
        return joint if reverse is None and self.choices.combine == "mean" else cell_shares(joint)

    # ---- carrying marks across -----------------------------------------------------------------------------------

    def project(
        self,
        pairs: Iterable[tuple[MarkedText, str]],
        *,
        words: WordRule = "text",
        pieces: Pieces = "one",
    ) -> Iterator[ProjectedText]:
        """Carry the marks of each source text into its translation, by the rules of `projection`.

        Words are found in running text (`words="text"`) or stand between spaces (`"spaces"`).
        """
        if self.choices.raw:
            raise InputError(
                "marks cannot be projected with raw=True, which has words without known characters; leave out raw"
            )
        spans_of = word_rule(words)
        stream = iter(pairs)
        while window := list(islice(stream, WINDOW)):
            spans = [(marked.words(spans_of), spans_of(target)) for marked, target in window]
            lines = [
                (spaced(marked.text, own), spaced(target, other))
                for (marked, target), (own, other) in zip(window, spans, strict=True)
            ]
            for (marked, target), (own, other), aligned in zip(window, spans, self.align(lines), strict=True):
                if aligned.problem is not None:
                    yield ProjectedText(target, (), marked.marks, aligned.problem)
                else:
                    yield project_marks(marked, own, target, other, aligned.scores, pieces)

    def project_markup(self, source: str, target: str, markup: Markup = "html", *, pieces: Pieces = "one") -> str:
        """Return the translation of a line with its inline markup; what has no place there is an error.

        Args:
            source: The line with its markup.
            target: Its translation as plain text.
            markup: The kind of markup.
            pieces: `one` keeps an element in one piece, `many` repeats it where its words part.

        >>> aligner.project_markup("a <b>red</b> car", "une voiture rouge")  # doctest: +SKIP
        'une voiture <b>rouge</b>'
        """
        (found,) = self.project([(read_markup(source, markup), target)], pieces=pieces)
        if found.problem is not None:
            raise InputError(f"the pair cannot be aligned: {found.problem}")
        if found.unplaced:
            lost = ", ".join(mark.opening or mark.name for mark in found.unplaced)
            raise InputError(f"{lost} has no place in the translation ({found.problem or 'no link leads there'})")
        return write_markup(found, markup)

    # ---- seeing it -----------------------------------------------------------------------------------------------

    def show(
        self,
        source: MarkedSource,
        target: str,
        *,
        gold: Gold | None = None,
        words: WordRule = "text",
        pieces: Pieces = "one",
        view: str = "view=alignment",
    ) -> View:
        """Show the links of one pair: the viewer in a notebook, a page in the browser elsewhere.

        Args:
            source: The source sentence. A `MarkedText` (see `read_markup`) is shown with its marks, and its translation
                with the marks as `project` carries them there.
            target: Its translation.
            gold: An `Annotation`, or sure links `(source word, target word)` from 0; they are framed and scored.
            words: The rule that finds words, for marked texts.
            pieces: The pieces of an element, for marked texts.
            view: The state in which the page opens.
        """
        from normlens.viewer.display import show

        return show(self._page(source, target, gold, words, pieces), view)

    def save_html(
        self,
        path: str | Path,
        source: MarkedSource,
        target: str,
        *,
        gold: Gold | None = None,
        words: WordRule = "text",
        pieces: Pieces = "one",
    ) -> Path:
        """Write the page of one pair as one HTML file that opens offline.

        Args:
            path: The file.
            source: The source sentence, marked or not (see `show`).
            target: Its translation.
            gold: Reference links, framed and scored.
            words: The rule that finds words, for marked texts.
            pieces: The pieces of an element, for marked texts.
        """
        from normlens.viewer.page import save_html

        return save_html(self._page(source, target, gold, words, pieces), path)

    def save_pairs_html(
        self, path: str | Path, pairs: Sequence[tuple[str, str]], gold: Sequence[Gold | None] | None = None
    ) -> Path:
        """Write several pairs as one HTML file with a list to choose from.

        Args:
            path: The file.
            pairs: Source and target sentences.
            gold: Reference links for each pair, framed and scored.

        Returns:
            The path.

        Raises:
            InputError: A pair cannot be aligned, or `gold` has another length than `pairs`.
        """
        from normlens.viewer.alignment_page import aligner_page
        from normlens.viewer.page import save_html

        gold = [None] * len(pairs) if gold is None else gold
        if not pairs or len(gold) != len(pairs):
            raise InputError(f"gold must have one entry for each of {len(pairs)} pairs, got {len(gold)}")
        documents = [aligner_page(self, *pair, known) for pair, known in zip(pairs, gold, strict=True)]
        return save_html({"title": f"{len(pairs)} sentence pairs", "pages": documents}, path)

    def _page(self, source: MarkedSource, target: str, gold: Gold | None, words: WordRule, pieces: Pieces) -> Json:
        from normlens.viewer.alignment_page import aligner_page, projection_page

        if isinstance(source, str):
            return aligner_page(self, source, target, gold)
        texts = [source] if isinstance(source, MarkedText) else list(source)
        return projection_page(self, texts, target, gold, words=words, pieces=pieces)

    # ---- what was done -------------------------------------------------------------------------------------------

    def record(self) -> Json:
        """Every choice and where it comes from, for the record beside an output."""
        mappers = self._mappers()
        return {
            "choices": asdict(self.choices),
            "layers": {name: list(layers) for name, layers in self.layers.items()},
            "agreement": {
                name: {setting: agreement.scores(setting) for setting in SETTINGS} | {"pairs": agreement.pairs}
                for name, agreement in self.agreements.items()
            },
            "models": {name: mapper.describe() for name, mapper in mappers.items()},
            "versions": versions(),
        }

    def signature(self) -> str:
        """The choices in one line."""
        choices = self.choices
        layers = ";".join(f"{name}={','.join(map(str, numbers))}" for name, numbers in self.layers.items())
        parts = [
            f"setting:{choices.setting}",
            f"measure:{choices.measure}" + (f",head{choices.head}" if choices.head else ""),
            f"layer:{choices.layer if isinstance(choices.layer, str) else 'given'}({layers})",
            f"symmetrize:{choices.symmetrize or 'none'}",
            f"combine:{choices.combine}",
            f"extract:{choices.extract}"
            + (f",{choices.threshold:g}" if choices.extract in ("share", "threshold") else ""),
            f"words:{'raw' if choices.raw else 'spaces'}",
            f"normlens:{version_of('normlens')}",
        ]
        return "|".join(["align", *parts])


def word_rule(name: WordRule) -> Callable[[str], list[Span]]:
    """The rule that finds words, by its name."""
    if name not in WORD_RULES:
        raise InputError(f"words must be one of {', '.join(WORD_RULES)}, got {name!r}")
    return WORD_RULES[name]


def spaced(text: str, spans: Sequence[Span]) -> str:
    """The words of a text with spaces between them, as the models are given them."""
    return " ".join(text[start:end] for start, end in spans)


def _many_sentences(pair: EncodedPair) -> bool:
    """Return True if a pair that a model takes is still better cut: longer than a window, with sentences on both sides.

    Models that were trained on sentences lose their way in what is as long as they can just take.
    """
    if max(len(pair.source.ids), len(pair.target.ids)) <= LONGEST_WINDOW:
        return False
    return all(any(end < len(side.words) for end in sentence_ends(side.words)) for side in (pair.source, pair.target))


def _existing(layers: Sequence[int], mapper: WordMapper) -> tuple[int, ...]:
    for layer in layers:
        if layer not in mapper.layers:
            raise InputError(
                f"layer must be one of {', '.join(map(str, mapper.layers))} for {mapper.lens.family}, got {layer}"
            )
    return tuple(layers)
