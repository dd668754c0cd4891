"""The families that the general rule cannot read, one small declaration each: the only list of families in the anatomy.

A declaration never makes a family exact: the proof decides that. It says what following the data cannot show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from normlens.errors import AnatomyError


@dataclass(frozen=True)
class Declaration:
    """The oddities of a family."""

    #: The attention output is not added to anything: it goes through a normalization into the feed-forward network.
    joins_nothing: bool = False
    #: Why a model with this configuration must be refused before it is run; None where it need not be.
    refuse: Callable[[Any], str | None] = lambda config: None


def _block_sparse(config: Any) -> str | None:
    # BigBird silently (and for good) changes to full attention when it sees a short text, so that even reading its
    # anatomy on a few tokens would change the user's model.
    if getattr(config, "attention_type", None) != "block_sparse":
        return None
    return (
        "its attention_type is block_sparse, which looks at blocks of keys outside of any softmax over all keys; load "
        'the model with attention_type="original_full"'
    )


DECLARATIONS: dict[str, Declaration] = {
    "big_bird": Declaration(refuse=_block_sparse),
    "bigbird_pegasus": Declaration(refuse=_block_sparse),
    # Zamba's shared block is attention, normalization, feed-forward, linear map; only then it meets the residual
    # stream, inside the next Mamba layer. So at the attention there is no residual.
    "zamba": Declaration(joins_nothing=True),
    "zamba2": Declaration(joins_nothing=True),
}


def declaration(family: str) -> Declaration:
    """The declaration of a family; empty for nearly all of them."""
    return DECLARATIONS.get(family, Declaration())


def refuse_declared(family: str, model: nn.Module) -> None:
    """Stop before the first run where a run would already be wrong."""
    reason = declaration(family).refuse(getattr(model, "config", None))
    if reason is not None:
        raise AnatomyError(f"{family!r} cannot be analysed: {reason}")
