"""Aligner: word alignments from a translation model, or from two that translate in opposite directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from normlens.alignment.direction import Direction
from normlens.alignment.extract import (
    EXTRACTIONS,
    Joint,
    Map,
    combine,
    extract,
    extract_joint,
    link_shares,
    shares,
)
from normlens.alignment.forcing import ForcedPair
from normlens.alignment.layers import SETTINGS, Agreement
from normlens.alignment.links import Link, Links, swap
from normlens.alignment.symmetrize import HEURISTICS, symmetrize
from normlens.errors import InputError
from normlens.lens import Lens, load
from normlens.provenance import describe_model, versions

#: Pairs that are sorted by length together; their alignments leave in the order of the input.
WINDOW = 512
SOFT = ("product", "sum")
LayerChoice = str | int | Sequence[int]


@dataclass(frozen=True)
class Choices:
    """Every choice that decides which links come out; the names are the command line's."""

    setting: str = "awi"
    measure: str = "attn_n"
    layer: str | tuple[int, ...] = "auto"
    head: int | None = None
    symmetrize: str | None = None
    extract: str = "argmax"
    threshold: float = 0.5
    raw: bool = False

    def check(self) -> None:
        """Refuse names that do not exist and combinations that have no meaning."""
        known = (*SOFT, *HEURISTICS)
        for name, value, allowed in (
            ("setting", self.setting, SETTINGS),
            ("extraction", self.extract, EXTRACTIONS),
            ("symmetrization", self.symmetrize or known[0], known),
        ):
            if value not in allowed:
                raise InputError(f"A {name} is one of {', '.join(allowed)}: {value!r} is none of them.")
        if self.symmetrize in SOFT and self.extract not in ("mutual", "share"):
            raise InputError(
                f"Combined maps have no null column, so links are extracted by mutual or share: got {self.extract}."
            )
        if not 0 <= self.threshold < 1:
            raise InputError(f"A threshold is a share, at least 0 and below 1: got {self.threshold}.")


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

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {
            "source": list(self.source),
            "target": list(self.target),
            "links": [[s, t, round(self.scores[s, t], 6)] for s, t in sorted(self.links)],
            **({"problem": self.problem} if self.problem else {}),
        }


class Aligner:
    """Aligns the words of sentence pairs with a translation model (2020, Section 5).

    `reverse` is a model that translates in the opposite direction; the two maps are then multiplied, or their links
    symmetrized. `layer` is `auto` (see `layers`), `best`, a layer, or several.

    >>> aligner = Aligner("opus-mt-en-fr", reverse="opus-mt-fr-en")          # doctest: +SKIP
    >>> aligner.align_pair("the little house", "la petite maison").links     # doctest: +SKIP
    frozenset({(0, 0), (1, 1), (2, 2)})
    """

    def __init__(
        self,
        model: str | Path | Lens,
        reverse: str | Path | Lens | None = None,
        *,
        setting: str = "awi",
        measure: str = "attn_n",
        layer: LayerChoice = "auto",
        head: int | None = None,
        symmetrize: str | None = None,
        extract: str | None = None,
        threshold: float = 0.5,
        raw: bool = False,
        batch_tokens: int = 4096,
        source_prefix: str = "",
        reverse_source_prefix: str = "",
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> None:
        how = symmetrize or ("product" if reverse is not None else None)
        self.choices = Choices(
            setting=setting,
            measure=measure,
            layer=layer if isinstance(layer, str) else (layer,) if isinstance(layer, int) else tuple(layer),
            head=head,
            symmetrize=how,
            extract=extract or ("mutual" if how in SOFT else "argmax"),
            threshold=threshold,
            raw=raw,
        )
        self.choices.check()
        common: dict[str, Any] = {"measure": measure, "head": head, "batch_tokens": batch_tokens, "raw": raw}
        self.forward = Direction(
            model if isinstance(model, Lens) else load(model),
            **common,
            source_prefix=source_prefix,
            source_language=source_language,
            target_language=target_language,
        )
        self.reverse: Direction | None = None
        if reverse is not None:
            self.reverse = Direction(
                reverse if isinstance(reverse, Lens) else load(reverse),
                **common,
                source_prefix=reverse_source_prefix,
                source_language=target_language,
                target_language=source_language,
            )
        #: Filled when the first text is seen: the layers of each direction, and how far each layer's readings agree.
        self.layers: dict[str, tuple[int, ...]] = {}
        self.agreements: dict[str, Agreement] = {}

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
                f"Links from a file are symmetrized with one model's by {', '.join(HEURISTICS)}: got "
                f"{self.choices.symmetrize or 'no symmetrization'}{' and a reverse model' if self.reverse else ''}."
            )
        stream, others, done = iter(pairs), iter(reverse_links) if reverse_links is not None else None, 0
        while window := list(islice(stream, WINDOW)):
            given = list(islice(others, len(window))) if others is not None else None
            if given is not None and len(given) < len(window):
                raise InputError(
                    f"The reverse links must have a line for every pair: they end after {done + len(given)}."
                )
            yield from self._align_window(window, given)
            done += len(window)
            if progress is not None:
                progress(done)

    def choose_layers(self, pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[int, ...]]:
        """Settle the layers on this text; `align` does it on the first pairs it sees."""
        directions = self._directions(pairs)
        for name, (direction, forced) in directions.items():
            if isinstance(self.choices.layer, tuple):
                self.layers[name] = _existing(self.choices.layer, direction)
                continue
            if self.choices.layer not in ("auto", "best"):
                raise InputError(f"A layer is auto, best, or numbers from 1: got {self.choices.layer!r}.")
            if not any(pair.problem is None for pair in forced):
                continue  # nothing to align here, so nothing to choose on: the next window may have text
            agreement = direction.cached_agreement(forced)
            self.agreements[name] = agreement
            best = (agreement.best(self.choices.setting),)
            self.layers[name] = best if self.choices.layer == "best" else agreement.auto(self.choices.setting)
        return dict(self.layers)

    def _directions(self, pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[Direction, list[ForcedPair]]]:
        directions = {"forward": (self.forward, [self.forward.forcing(s, t) for s, t in pairs])}
        if self.reverse is not None:
            directions["reverse"] = self.reverse, [self.reverse.forcing(t, s) for s, t in pairs]
        return directions

    def _align_window(self, window: Sequence[tuple[str, str]], given: Sequence[Links] | None) -> Iterator[AlignedPair]:
        if not self.layers:
            self.choose_layers(window)
        directions = self._directions(window)
        maps: dict[str, list[Map | None]] = {}
        # Both directions must be able to align a pair: half an alignment would look like a whole one.
        problems = [
            next((pair.problem for pair in both if pair.problem), None)
            for both in zip(*(forced for _, forced in directions.values()), strict=True)
        ]
        for name, (direction, forced) in directions.items():
            usable = [i for i, problem in enumerate(problems) if problem is None]
            maps[name] = [None] * len(window)
            if usable:
                found = direction.maps([forced[i] for i in usable], self.layers[name], self.choices.setting)
                for i, one in zip(usable, found, strict=True):
                    maps[name][i] = one
        for i, pair in enumerate(directions["forward"][1]):
            forward = maps["forward"][i]
            if forward is None:
                words = pair.source.words, pair.target.words
                yield AlignedPair(*words, frozenset(), frozenset(), {}, problems[i])
                continue
            reverse = maps["reverse"][i] if self.reverse is not None else None
            yield self._links(pair, forward, reverse, None if given is None else given[i])

    def _links(self, pair: ForcedPair, forward: Map, reverse: Map | None, given: Links | None) -> AlignedPair:
        choices = self.choices
        joint: Joint = shares(forward)[:, :-1]
        certain: Links | None = None
        if choices.symmetrize in SOFT:
            assert reverse is not None
            joint = combine(forward, reverse, choices.symmetrize or "product")
            links = extract_joint(joint, choices.extract, choices.threshold)
        else:
            links = extract(forward, choices.extract, choices.threshold)
            other = given
            if reverse is not None:
                other = swap(extract(reverse, choices.extract, choices.threshold))
                joint = combine(forward, reverse)
            if other is not None and choices.symmetrize is not None:
                certain = links & other
                links = symmetrize(choices.symmetrize, links, other)
        strength = joint if reverse is None else link_shares(joint)
        scores = {(s, t): float(strength[t, s]) for s, t in links}
        return AlignedPair(
            pair.source.words, pair.target.words, links, links if certain is None else certain & links, scores
        )

    # ---- what was done -------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Every choice and where it comes from, for the record beside an output."""
        models = {"forward": self.forward.lens}
        if self.reverse is not None:
            models["reverse"] = self.reverse.lens
        return {
            "choices": asdict(self.choices),
            "layers": {name: list(layers) for name, layers in self.layers.items()},
            "agreement": {
                name: {setting: agreement.scores(setting) for setting in SETTINGS} | {"pairs": agreement.pairs}
                for name, agreement in self.agreements.items()
            },
            "models": {name: describe_model(lens.model, _name(lens), lens.family) for name, lens in models.items()},
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
            f"extract:{choices.extract}"
            + (f",{choices.threshold:g}" if choices.extract in ("share", "threshold") else ""),
            f"words:{'raw' if choices.raw else 'spaces'}",
            f"normlens:{versions()['normlens']}",
        ]
        return "|".join(["align", *parts])


def _existing(layers: Sequence[int], direction: Direction) -> tuple[int, ...]:
    for layer in layers:
        if layer not in direction.layers:
            raise InputError(
                f"A layer of {direction.lens.family} is one of {', '.join(map(str, direction.layers))}: got {layer}."
            )
    return tuple(layers)


def _name(lens: Lens) -> str | None:
    """The model's name without the folders around it, which are the user's own."""
    return Path(str(getattr(lens.model.config, "_name_or_path", ""))).name or None
