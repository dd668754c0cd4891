"""The data of a study: files of evidence, or texts; and what of them could not be asked, by reason."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from normlens.attribution.questions import Resolver, head_of
from normlens.errors import InputError
from normlens.faithfulness.items import Item, check_model, choices, item_of, own_choice, values
from normlens.io.reading import read_text

if TYPE_CHECKING:
    from normlens.lens import Lens

#: The columns of an evidence file: what comes before, the right and the wrong next word, and the word that decides.
PREFIX, GOOD, BAD = "one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad"
#: A file on subjects and verbs names the subject's noun as `target`, and its whole phrase beside it.
_NOUN = "subject_verb"

_Row = TypeVar("_Row")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Sample:
    """Items of one file; where it names evidence, the positions that decide."""

    name: str
    items: tuple[Item, ...]
    evidence: tuple[frozenset[int], ...] | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    prefers: float | None = None  # the share of items in which the model prefers the right word


def read_evidence(lens: Lens, path: str | Path, *, limit: int | None = None, skip: int = 0, seed: int = 0) -> Sample:
    """Items of an evidence file: the logit of the right next word less that of the wrong one.

    Rows are shuffled by the seed; `skip` and `limit` count those that can be asked. A row cannot be asked where both words
    begin with the same token, or where the evidence does not stand in the text as a word.
    """
    check_model(lens)
    if head_of(lens.model) != "causal":
        raise InputError(
            f"{type(lens.model).__name__} is no causal language model, which evidence about the next word needs; "
            "pass texts instead (--texts)"
        )
    rows = read_rows(Path(path))
    phrase = "target_phrase" in rows[0] and _NOUN not in (rows[0].get("UID") or "")
    target = "target_phrase" if phrase else "target"
    found, refused = _drawn(rows, lambda row: _asked(lens, row, target), limit, skip, seed)
    if not found:
        raise InputError(f"{path} has no usable row after {skip} ({refused})")
    items, evidence = zip(*found, strict=True)
    prefers = float((values(lens, items) > 0).double().mean())
    return Sample(Path(path).stem, items, evidence, refused, prefers)


def _drawn(
    rows: Sequence[_Row], ask: Callable[[_Row], _Found | str], limit: int | None, skip: int, seed: int
) -> tuple[list[_Found], dict[str, int]]:
    """Items of the rows, shuffled by the seed; and the number of refused rows, by reason."""
    found: list[_Found] = []
    refused: Counter[str] = Counter()
    for i in np.random.default_rng(seed).permutation(len(rows)):
        if limit is not None and len(found) >= skip + limit:
            break
        one = ask(rows[i])
        if isinstance(one, str):
            refused[one] += 1
        else:
            found.append(one)
    return found[skip:], dict(refused)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of an evidence file."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} is no comma-separated table in UTF-8 ({error})") from error
    needed = (PREFIX, GOOD, BAD, "target")
    missing = [name for name in needed if not rows or name not in rows[0]]
    if missing:
        raise InputError(
            f"an evidence file has the columns {', '.join(needed)}: {path} lacks {', '.join(missing)}"
            if rows
            else f"an evidence file must hold at least one row: {path} has none"
        )
    return rows


def _asked(lens: Lens, row: Mapping[str, str | None], target: str) -> tuple[Item, frozenset[int]] | str:
    """An item and the positions of its evidence, or why the row cannot be asked."""
    prefix, good, bad, decides = (row.get(name) or "" for name in (PREFIX, GOOD, BAD, target))
    if not (prefix.strip() and good.strip() and bad.strip() and decides.strip()):
        return "an empty cell"
    tokenizer = lens.tokenizer
    encoding = tokenizer(prefix, return_offsets_mapping=True)
    begins = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"][:1] for word in (good, bad)]
    if not all(begins):
        return "a word without a token"
    right, wrong = (found[0] for found in begins)
    if right == wrong:
        return "both words begin with the same token"
    spans = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(decides)}(?!\w)", prefix)]
    places = frozenset(
        k for k, (a, b) in enumerate(encoding["offset_mapping"]) for c, d in spans if a < d and b > c and b > a
    )
    if not places:
        return "the evidence does not stand in the text as a word"
    ids = tuple(int(i) for i in encoding["input_ids"])
    return Item(ids, int(right), int(wrong), len(ids) - 1), places


def read_texts(
    lens: Lens, path: str | Path, *, limit: int | None = None, skip: int = 0, seed: int = 0, longest: int = 64
) -> Sample:
    """Items of a file with a text per line (what follows a tab is left out): what does the model say of it, and why?

    A classifier is asked for its own label (of two labels: against the other), a tagger for the first token that is no
    `O`, a masked model for a word that is masked (drawn by the seed), a causal model for its next token. Texts of more than
    `longest` tokens are refused and counted.
    """
    check_model(lens)
    texts = read_lines(Path(path))
    items, refused = _drawn(texts, lambda text: _read(lens, text, seed, longest), limit, skip, seed)
    if not items:
        raise InputError(f"{path} has no usable text after {skip} ({refused})")
    return Sample(Path(path).stem, tuple(items), None, refused)


def read_lines(path: Path) -> list[str]:
    """The texts of a file, without what follows a tab."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no UTF-8 text file ({error})") from error
    texts = [line.split("\t")[0].strip() for line in lines]
    return [text for text in texts if text]


def _read(lens: Lens, text: str, seed: int, longest: int) -> Item | str:
    """The item of a text, or the reason for its refusal."""
    resolver = Resolver(lens.model, lens.tokenizer)
    head = resolver.head
    ids = tuple(int(i) for i in lens.tokenizer(text)["input_ids"])
    special = set(lens.tokenizer.all_special_ids)
    ordinary = [k for k, token in enumerate(ids) if token not in special]
    if len(ids) > longest:
        return f"more than {longest} tokens"
    if len(ordinary) < 3:
        return "fewer than three tokens"
    if head == "sequence":
        item = item_of(lens, text)
        return replace(item, against=1 - item.output) if resolver.config.num_labels == 2 else item
    if head == "causal":
        return item_of(lens, text)
    if head == "token":
        return _labelled(lens, ids, ordinary, resolver.config) or "no token with a label"
    if head == "masked":
        place = ordinary[np.random.default_rng((seed, *ids)).integers(len(ordinary))]
        masked = tuple(int(lens.tokenizer.mask_token_id) if k == place else i for k, i in enumerate(ids))
        return own_choice(lens, Item(masked, -1, None, place))
    raise InputError(f"{type(lens.model).__name__} has no head; load the model with its head")


def _labelled(lens: Lens, ids: tuple[int, ...], ordinary: Sequence[int], config: Any) -> Item | None:
    names = {int(k): str(v) for k, v in config.id2label.items()}
    labels = choices(lens, Item(ids, -1, None, 0))
    place = next((k for k in ordinary if names.get(labels[k], "") not in ("O", "LABEL_0")), None)
    return None if place is None else Item(ids, labels[place], None, place)
