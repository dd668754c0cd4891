"""What is asked of an explanation, checked once: which terms are kept, how attention is treated, a direction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from normlens.errors import InputError
from normlens.measures.request import available_bytes
from normlens.results.explanation import BY_DEFAULT, PARTS

if TYPE_CHECKING:
    from normlens.attribution.questions import Output

AttentionRule = Literal["carried", "chosen"]
ATTENTION_RULES: tuple[AttentionRule, ...] = ("carried", "chosen")
#: What a word's vector is measured from: an average word in its place, or nothing.
Reference = Literal["mean", "zero"]
REFERENCES: tuple[Reference, ...] = ("mean", "zero")


class ExplainOptions(TypedDict, total=False):
    """What `Lens.explain` takes by name; see there."""

    output: Output | Sequence[Output]
    against: Output | Sequence[Output]
    position: int | Sequence[int] | None
    direction: Any
    attention: AttentionRule
    reference: Reference
    parts: Sequence[str] | None
    edges_top: int | None
    generate: bool
    pretokenized: bool
    truncate: bool
    batch_size: int
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class ExplainRequest:
    """What to keep and how to get it; the same for every row of a call."""

    parts: tuple[str, ...]
    attention: AttentionRule
    reference: Reference
    direction: Tensor | None  # a vector on the last state, in place of an output
    edges_top: int | None  # only so many edges, the strongest
    by_name: bool  # whether parts were asked for by name: then none may be missing

    @classmethod
    def of(
        cls, parts: Sequence[str] | None, attention: str, reference: str, direction: Any, edges_top: int | None
    ) -> ExplainRequest:
        """Check what a user asks for."""
        origin = next((known for known in REFERENCES if known == reference), None)
        if origin is None:
            raise InputError(f"reference must be one of {', '.join(REFERENCES)}: got {reference!r}")
        rule = next((rule for rule in ATTENTION_RULES if rule == attention), None)
        if rule is None:
            raise InputError(f"attention must be one of {', '.join(ATTENTION_RULES)}: got {attention!r}")
        if parts is not None and not isinstance(parts, str) and isinstance(parts, Iterable):
            parts = list(parts)  # it is read more than once
        if parts is not None and (not isinstance(parts, list) or any(part not in PARTS for part in parts)):
            raise InputError(f"parts must be a list of {', '.join(PARTS)}: got {parts!r}")
        if edges_top is not None and (isinstance(edges_top, bool) or not isinstance(edges_top, int) or edges_top < 1):
            raise InputError(f"edges_top is how many edges to keep, the strongest, at least 1: got {edges_top!r}")
        named = BY_DEFAULT if parts is None else ("tokens", *parts)
        if edges_top is not None:
            named = (*named, "edges")
        kept = tuple(part for part in PARTS if part in named)
        return cls(kept, rule, origin, _vector(direction), edges_top, parts is not None or edges_top is not None)

    def keeps(self, *parts: str) -> bool:
        """Whether any of these is kept."""
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
                f"edges must fit in memory: they take {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; keep "
                "the strongest alone (edges_top=1000), or leave them out of parts=[…]"
            )


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
            f"a direction is one vector of numbers: got {type(direction).__name__}; pass a tensor, an array or a list"
        )
    if vector.ndim != 1:
        raise InputError(f"a direction is one vector: got a shape of {tuple(vector.shape)}; pass one at a time")
    if not bool(torch.isfinite(vector).all()):
        raise InputError(
            "a direction is one vector of finite numbers: it holds NaN or infinity; look at how it was made"
        )
    return vector
