"""One number of one text, as every method and every test of faithfulness asks for it; and the model's answer.

Rows of one length share a batch, so that nothing is ever padded and no neighbour changes a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as nnf

from normlens.anatomy.examine import is_encoder_decoder
from normlens.anatomy.interface import run_arguments
from normlens.anatomy.layers import LayerFollower
from normlens.anatomy.scope import PassScope
from normlens.attribution.operands import mapped, tensors
from normlens.attribution.questions import Numbers, Question, Resolver, head_of
from normlens.errors import InputError
from normlens.inputs.encoding import TextEncoder, pad_rows, padding_id

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Positions in one batch: changes how fast a number comes, never the number.
_POSITIONS = 1024

#: Replaces input vectors (row, position, width) before the model goes on with them.
Change = Callable[[Tensor], Tensor]

#: Where input vectors are taken: as the embedding table gives them, or as they enter the first layer.
At = Literal["words", "states"]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Item:
    """The logit of `output`, less that of `against`, at a position of a text (None: a classifier of whole texts).

    `blank` are positions whose word vector is zero, which is one way to take a token away.
    """

    ids: tuple[int, ...]
    output: int
    against: int | None = None
    position: int | None = None
    segments: tuple[int, ...] | None = None
    blank: frozenset[int] = frozenset()
    padding: int = 0  # positions after the text that the model is told to leave alone: they must change nothing

    @property
    def seed(self) -> int:
        """A number that belongs to this text and question: what is drawn for it depends on nothing else."""
        asked = repr((self.ids, self.output, self.against, self.position))
        return int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=7).digest(), "big")


def item_of(lens: Lens, text: str, *, output: Any = None, against: Any = None, position: int | None = None) -> Item:
    """The item of a text; without an output, the model's own choice is asked for.

    >>> item_of(lens, "The capital of France is", output=" Paris", against=" London")  # doctest: +SKIP
    Item(ids=(504, 3575, 282, 4649, 314), output=7042, against=4610, position=4, segments=None, ...)
    """
    check_model(lens)
    if lens.tokenizer is None:
        raise InputError("this lens has no tokenizer; pass Lens(model, tokenizer), or make items of ids")
    resolver = Resolver(lens.model, lens.tokenizer)
    encoded = TextEncoder(lens.model, lens.tokenizer)(text, None, None, truncate=False, pretokenized=False)
    ids = tuple(encoded.source.ids)
    place = resolver.position(position, range(len(ids)), ids)
    found = Item(
        ids,
        -1 if output is None else resolver.one(output, "output"),
        None if against is None else resolver.one(against, "against"),
        None if resolver.head == "sequence" else place,
        encoded.inputs.get("token_type_ids"),
    )
    return found if output is not None else own_choice(lens, found)


def own_choice(lens: Lens, item: Item) -> Item:
    """The same item, asked for what the model itself would say."""
    found = choices(lens, item)
    return replace(item, output=found[0 if item.position is None else item.position])


def choices(lens: Lens, item: Item) -> list[int]:
    """The entry with the largest logit: one for each position, or one where the whole text has one output."""
    with PassScope(lens.model):
        found: list[int] = _logits(lens, [item])[0].argmax(-1).reshape(-1).tolist()
    return found


def check_model(lens: Lens) -> None:
    """Every method gives one number per token of one text: models with two sides are explained by `explain`."""
    if is_encoder_decoder(lens.model):
        raise InputError(
            f"{type(lens.model).__name__} reads one text and writes another, which no method here supports; use "
            "lens.explain(source, target=…)"
        )


def check_items(lens: Lens, items: Sequence[Item]) -> None:
    """Raise an error for an item that methods would read in different ways."""
    whole = head_of(lens.model) == "sequence"
    for item in items:
        if not item.ids:
            raise InputError("an item has no tokens")
        if item.output < 0 or (item.against is not None and item.against < 0):
            raise InputError(f"output and against must be at least 0, got {item.output} and {item.against}")
        if item.position is None and not whole:
            raise InputError(f"an item of {type(lens.model).__name__} needs a position")
        if item.position is not None and not 0 <= item.position < len(item.ids):
            raise InputError(f"position must be from 0 to {len(item.ids) - 1}, got {item.position}")
        if item.padding < 0:
            raise InputError(f"padding must be at least 0, got {item.padding}")
        if item.blank:
            raise InputError("an item with blanks has a number, but no method explains it")


def inputs_of(lens: Lens, items: Sequence[Item]) -> dict[str, Tensor]:
    """The tensors of items of one length."""
    device = next(lens.model.parameters()).device
    rows = [
        {"input_ids": item.ids} | ({} if item.segments is None else {"token_type_ids": item.segments}) for item in items
    ]
    found = pad_rows(rows, (pad := padding_id(lens.model, lens.tokenizer)), device)
    more = items[0].padding
    if more:
        filler = {"input_ids": pad}
        found = {name: nnf.pad(x, (0, more), value=filler.get(name, 0)) for name, x in found.items()}
    return found


def batches(items: Sequence[Item]) -> Iterator[list[int]]:
    """Batches of items: those of one length, so many that they have at most `_POSITIONS` together."""
    by_length: dict[tuple[int, bool, int], list[int]] = {}
    for i, item in enumerate(items):
        if not item.ids:
            raise InputError("an item has no tokens")
        by_length.setdefault((len(item.ids), item.segments is None, item.padding), []).append(i)
    for (length, _, padding), found in sorted(by_length.items()):
        size = max(1, _POSITIONS // (length + padding))
        for start in range(0, len(found), size):
            rows = found[start : start + size]
            if len(rows) == length + padding > 1:  # as many rows as positions: no telling which axis is which
                yield rows[:1]
                rows = rows[1:]
            yield rows


def in_batches(items: Sequence[Item], answer: Callable[[list[Item]], Iterable[_Answer]]) -> list[_Answer]:
    """An answer for each item, in their order; `answer` gives those of items that share a batch."""
    found: dict[int, _Answer] = {}
    for batch in batches(items):
        found.update(zip(batch, answer([items[i] for i in batch]), strict=True))
    return [found[i] for i in range(len(items))]


def numbers(lens: Lens, items: Sequence[Item], change: Change | None = None, at: At = "words") -> Tensor:
    """Return the number that the model puts out for each item of one length, with its graph in grad mode.

    Args:
        lens: The model.
        items: Items of one length.
        change: Replaces the input vectors.
        at: Where the input vectors are taken.
    """
    questions = [Question(item.position or 0, item.output, item.against) for item in items]
    found: Tensor = Numbers(questions, None, "none")((_logits(lens, items, change, at),))
    return found


def values(lens: Lens, items: Sequence[Item], change: Change | None = None, at: At = "words") -> Tensor:
    """Return the number of every item, whatever their lengths, in double precision; arguments as in `numbers`."""
    with PassScope(lens.model):
        found = in_batches(items, lambda rows: numbers(lens, rows, change, at).tolist())
    return torch.tensor(found, dtype=torch.float64)


def probabilities(lens: Lens, items: Sequence[Item]) -> Tensor:
    """The probability of every item's output (with `against`: among the two)."""

    def answer(rows: Sequence[Item]) -> Iterator[float]:
        for item, row in zip(rows, _logits(lens, rows).cpu().double(), strict=True):
            scores = row if item.position is None else row[item.position]
            if item.against is not None:
                scores = scores[[item.output, item.against]]
            yield float(scores.softmax(-1)[0 if item.against is not None else item.output])

    with PassScope(lens.model):
        return torch.tensor(in_batches(items, answer), dtype=torch.float64)


def _logits(lens: Lens, items: Sequence[Item], change: Change | None = None, at: At = "words") -> Tensor:
    width = len(items[0].ids) + items[0].padding
    blank = torch.tensor([[k in item.blank for k in range(width)] for item in items])

    def change_words(vectors: Tensor) -> Tensor:
        if bool(blank.any()):
            vectors = vectors.masked_fill(blank.unsqueeze(-1).to(vectors.device), 0.0)
        if change is not None and at == "words":
            vectors = change(vectors)
        return vectors

    with PassScope(lens.model, grad=torch.is_grad_enabled()) as scope:
        if bool(blank.any()) or (change is not None and at == "words"):
            _change_word_vectors(scope, change_words, len(items), width)
        if change is not None and at == "states":
            _change_states(scope, change, len(items), width)
        output = lens.model(**run_arguments(lens.model, inputs_of(lens, items)))
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits


def _changed(vectors: object, change: Change, rows: int, length: int, model: object) -> Tensor:
    """Change vectors of (row, position, width), or of (position, row, width); `batches` never makes as many of both."""
    if isinstance(vectors, Tensor) and vectors.ndim == 3:
        if vectors.shape[:2] == (rows, length):
            return change(vectors)
        if vectors.shape[:2] == (length, rows):
            return change(vectors.transpose(0, 1)).transpose(0, 1)
    shape = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
    raise InputError(
        f"{type(model).__name__} has input vectors of shape {shape}, not one for each of {rows} x {length} tokens; use "
        "explain(), or erasure by mask or delete"
    )


def _change_word_vectors(scope: PassScope, change: Change, rows: int, length: int) -> None:
    """Change what the embedding table gives, the first time that it is used in the scope."""
    table = getattr(scope.model, "get_input_embeddings", lambda: None)()
    if table is None:
        raise InputError(
            f"{type(scope.model).__name__} names no table of word vectors (get_input_embeddings), which gradients and "
            "blanks need"
        )
    changed = False

    def hook(module: Any, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
        nonlocal changed
        if changed:  # a model may look words up twice: the first time is its input
            return None
        changed = True
        return _changed(output, change, rows, length, scope.model)

    scope.after(table, hook)


def _change_states(scope: PassScope, change: Change, rows: int, length: int) -> None:
    """Change the vectors that enter the first layer of the scope's model."""
    changed = False

    def begin(args: Any, kwargs: Any) -> Any:
        nonlocal changed
        if changed:
            return args, kwargs
        named = [kwargs[name] for name in ("hidden_states", "x", "input") if name in kwargs]
        candidates = [x for x in tensors(args, named, kwargs) if x.is_floating_point() and x.ndim == 3]
        if not candidates:
            return None
        vectors = candidates[0]
        changed = True
        states = _changed(vectors, change, rows, length, scope.model)
        return mapped(args, lambda x: states if x is vectors else x), mapped(
            kwargs, lambda x: states if x is vectors else x
        )

    LayerFollower(scope.model, begin).watch(scope)
