"""The request of an explanation, checked once. The options of `Lens.explain` are spelled here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, get_args

import torch
from torch import Tensor, nn

from normlens.errors import InputError, unexpected_keyword
from normlens.inputs.media import MediaOptions
from normlens.measures.request import available_bytes
from normlens.options import AttentionRule, Baseline, Tower
from normlens.results.explanation import BY_DEFAULT, PARTS
from normlens.types import Options

if TYPE_CHECKING:
    from normlens.attribution.questions import Output
    from normlens.inputs.prompts import Message


class InputOptions(TypedDict, total=False):
    """Options of `Lens.explain_inputs`."""

    output: (
        Output | Sequence[Output]
    )  # a token, a label or its number, for all rows or for each; None: the model's choice
    against: Output | Sequence[Output]  # explain the difference from this output
    position: int | Sequence[int] | None  # where the output stands
    direction: Any  # a vector on the last state, in place of an output
    attention: AttentionRule
    baseline: Baseline
    parts: Sequence[str] | None  # what is kept beside `tokens`
    edges_top: int | None  # keep so many edges, the strongest
    through: Tower | None  # carry the terms of images or sound in a language model on to this tower


class ExplainOptions(InputOptions, MediaOptions, total=False):
    """Options of `Lens.explain`."""

    messages: Sequence[Message] | Sequence[Sequence[Message]]  # a chat in place of a text, or several
    tools: Sequence[Any] | None  # for the chat template
    sources: Mapping[str, str]  # texts by name, which the text or the messages place: {name}
    generate: bool  # explain each token that the model writes
    max_new_tokens: int  # of what the model writes
    seed: int | None  # draw what the model writes; None: its most likely tokens
    pretokenized: bool  # a text is a list of words
    truncate: bool  # cut texts that are too long
    batch_size: int
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class ExplainRequest:
    """The terms to keep and the rules; the same for every row of a call."""

    parts: tuple[str, ...]
    attention: AttentionRule
    baseline: Baseline
    direction: Tensor | None
    edges_top: int | None
    by_name: bool  # whether parts were asked for by name: then none may be missing
    through: Tower | None = None  # the tower to which terms of images or sound are carried on

    @classmethod
    def of(cls, options: Options, allowed: Any) -> ExplainRequest:
        """Check a user's options; `allowed` is the class that lists them."""
        for name in options:
            if name not in allowed.__optional_keys__:
                function = "explain" if allowed is ExplainOptions else "explain_inputs"
                raise unexpected_keyword(function, name, allowed.__optional_keys__)
        attention = _one_of("attention", options.get("attention", "fixed"), get_args(AttentionRule))
        baseline = _one_of("baseline", options.get("baseline", "mean"), get_args(Baseline))
        parts, edges_top = options.get("parts"), options.get("edges_top")
        if parts is not None and not isinstance(parts, str) and isinstance(parts, Iterable):
            parts = list(parts)  # it is read more than once
        if parts is not None and (not isinstance(parts, list) or any(part not in PARTS for part in parts)):
            raise InputError(f"parts must be a list of {', '.join(PARTS)}, got {parts!r}")
        if edges_top is not None and (isinstance(edges_top, bool) or not isinstance(edges_top, int) or edges_top < 1):
            raise InputError(f"edges_top must be at least 1, got {edges_top!r}")
        named = BY_DEFAULT if parts is None else ("tokens", *parts)
        if edges_top is not None:
            named = (*named, "edges")
        return cls(
            parts=tuple(part for part in PARTS if part in named),
            attention=attention,
            baseline=baseline,
            direction=_vector(options.get("direction")),
            edges_top=edges_top,
            by_name=parts is not None or edges_top is not None,
            through=_one_of("through", options.get("through"), (None, *get_args(Tower))),
        )

    def keeps(self, *parts: str) -> bool:
        """Return True if any of these is kept."""
        return any(part in self.parts for part in parts)

    def check_fits(self, model: nn.Module, rows: Sequence[tuple[tuple[int, int], int]]) -> None:
        """Edges are the one part that grows with the square of the length; `rows` are lengths of both sides, and steps."""
        config: Any = getattr(model, "config", None)
        heads, layers = (getattr(config, name, None) for name in ("num_attention_heads", "num_hidden_layers"))
        free = available_bytes()
        if not self.keeps("edges") or self.edges_top is not None or free is None:
            return
        if not isinstance(heads, int) or not isinstance(layers, int):
            return
        pairs = sum(steps * (source**2 + target * (source + target)) for (source, target), steps in rows)
        size = 8 if next(model.parameters()).dtype == torch.float64 else 4
        needed = 2 * size * layers * heads * pairs  # as they are found, and as they are put together
        if needed > free:
            raise InputError(
                f"the edges take {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; keep the "
                "strongest alone (edges_top=1000), or leave them out of parts=[…]"
            )


def _one_of(name: str, value: Any, known: Sequence[str | None]) -> Any:
    if value is None or isinstance(value, str):
        for each in known:
            if each == value:
                return each
    raise InputError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}")


def _vector(direction: Any) -> Tensor | None:
    if direction is None:
        return None
    try:
        vector = torch.as_tensor(direction).detach()
        numbers = vector.dtype != torch.bool and not vector.is_complex()
    except (TypeError, ValueError, RuntimeError):
        numbers = False
    if not numbers:
        raise InputError(
            f"direction must be one vector of numbers, got {type(direction).__name__}; pass a tensor, an array or "
            "a list"
        )
    if vector.ndim != 1:
        raise InputError(f"direction must be one vector, got a shape of {tuple(vector.shape)}; pass one at a time")
    if not bool(torch.isfinite(vector).all()):
        raise InputError("direction holds NaN or infinity; check how it was made")
    return vector
