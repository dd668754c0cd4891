"""The table of measures: what each one is called, what it means, where it comes from, and how it is computed.

A map has one number per (query, key) pair. `mixing_ratio` belongs to a map: the share of a position's output that
comes from other positions, `‖context‖ / (‖context‖ + ‖self‖)`, with norms of *sums of vectors*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.block import Block
from normlens.decompose.pairs import PLACES, Needs, PlaceName
from normlens.errors import InputError

PAPER_2020 = "kobayashi2020"
PAPER_2021 = "kobayashi2021"


@dataclass(frozen=True)
class Measure:
    """One quantity: its axes, the papers' name for it, its equation and its source."""

    name: str
    axes: tuple[str, ...]
    title: str
    equation: str
    paper: str
    compute: Callable[[Block], Tensor]
    needs: Needs
    place: PlaceName | None = None  # where in the block a vector-based map looks

    @property
    def is_map(self) -> bool:
        """Whether the measure is one of the five layer maps, which have a mixing ratio."""
        return self.axes == ("layer", "query", "key")


def _kept(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "a measure computes from what `needs` asked for"
    return tensor


def _attn_w(block: Block) -> Float[Tensor, "batch query key"]:
    return _kept(block.tensors.pairs.weights)


def _attnres_w(block: Block) -> Float[Tensor, "batch query key"]:
    half = 0.5 * _attn_w(block)
    if block.tensors.self_attends:
        half.diagonal(dim1=-2, dim2=-1).add_(0.5)
    return half


def _af_norm(block: Block) -> Float[Tensor, "batch head query key"]:
    if block.tensors.pairs.gated is not None:
        return block.tensors.pairs.gated
    return _kept(block.tensors.pairs.alpha).abs() * _kept(block.tensors.pairs.lengths).unsqueeze(2)


_PAIR = ("layer", "query", "key")
_HEAD_PAIR = ("layer", "head", "query", "key")


def _at(place: PlaceName) -> Needs:
    """Norms of parts at a place; behind the residual sum the pair on the diagonal comes from its vector."""
    here: frozenset[PlaceName] = frozenset({place})
    return Needs(diagonal=place != "attn", places=here, vectors=frozenset() if place == "attn" else here)


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            "alpha",
            _HEAD_PAIR,
            "attention weight",
            "α",
            PAPER_2020,
            lambda b: _kept(b.tensors.pairs.alpha),
            Needs(alpha=True),
        ),
        Measure(
            "f_norm",
            ("layer", "head", "key"),
            "transformed vector",
            "‖f(x)‖",
            PAPER_2020,
            lambda b: _kept(b.tensors.pairs.lengths),
            Needs(lengths=True),
        ),
        Measure(
            "af_norm",
            _HEAD_PAIR,
            "weighted transformed vector",
            "‖αf(x)‖",
            PAPER_2020,
            _af_norm,
            Needs(alpha=True, lengths=True),
        ),
        Measure(
            "x_norm", ("layer", "key"), "input vector", "‖x‖", PAPER_2020, lambda b: b.tensors.x.norm(dim=-1), Needs()
        ),
        Measure("attn_w", _PAIR, "ATTN-W", "mean over heads of α", PAPER_2021, _attn_w, Needs(weights=True)),
        Measure(
            "attn_n", _PAIR, "ATTN-N", "‖Σ αf(x)‖", PAPER_2021, lambda b: b.part_norms("attn"), _at("attn"), "attn"
        ),
        Measure("attnres_w", _PAIR, "ATTNRES-W", "½ ATTN-W + ½ I", PAPER_2021, _attnres_w, Needs(weights=True)),
        Measure(
            "attnres_n",
            _PAIR,
            "ATTNRES-N",
            "‖Σ αf(x) + x‖",
            PAPER_2021,
            lambda b: b.part_norms("res"),
            _at("res"),
            "res",
        ),
        Measure(
            "attnresln_n",
            _PAIR,
            "ATTNRESLN-N",
            "‖LN(Σ αf(x) + x)‖",
            PAPER_2021,
            lambda b: b.part_norms("ln"),
            _at("ln"),
            "ln",
        ),
    )
}

MAPS: tuple[str, ...] = tuple(name for name, measure in MEASURES.items() if measure.is_map)


def chosen_measures(names: Sequence[str] | None) -> tuple[str, ...]:
    """The measures by these names, all of them where none are given; an unknown name is an error that lists them."""
    return _known(names, tuple(MEASURES), "a measure")


def chosen_maps(names: Sequence[str] | None) -> tuple[str, ...]:
    """The maps by these names, for mixing ratios."""
    return _known(names, MAPS, "a map with a mixing ratio")


def _known(names: Sequence[str] | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if names is None:
        return known
    if isinstance(names, str):
        names = [names]
    for name in names:
        if name not in known:
            raise InputError(f"{what} must be one of {', '.join(known)}: got {name!r}")
    return tuple(name for name in known if name in set(names))


def mixing_ratio(block: Block, name: str) -> Float[Tensor, "batch query"]:
    """The share of other positions in each query's output, as the named map sees it (2021, Section 4.1)."""
    place = MEASURES[name].place
    if not block.tensors.self_attends and name in ("attn_w", "attn_n"):
        raise InputError(
            f"a mixing ratio compares other positions with the position itself: in cross-attention {name} has no self "
            "part; ask for attnres_w, attnres_n or attnresln_n"
        )
    if place is None:
        return _weight_ratio(block, residual=name == "attnres_w")
    context, own = block.vectors.mixing[place]
    return context / (context + own)


def _weight_ratio(block: Block, residual: bool) -> Float[Tensor, "batch query"]:
    pairs = block.tensors.pairs
    whole = _kept(pairs.total_weight)
    if not block.tensors.self_attends:
        own = torch.zeros_like(whole)
    elif block.tensors.together is not None:
        own = (_attn_w(block).abs() * block.tensors.together).sum(-1)
    else:
        own = _kept(pairs.diagonal).mean(1).abs()
    # The residual's half stands beside attention's half; a sink or differential attention makes rows sum to less.
    return (whole - own).clamp_min(0) / (whole + 1.0 if residual else whole)


def residual_norm(block: Block, name: str) -> Float[Tensor, "batch query"]:
    """What the residual brings in cross-attention, where it is none of the keys."""
    place = MEASURES[name].place
    if place is None:
        return torch.full_like(block.tensors.projected[..., 0], 0.5)
    residual = block.residuals[place]
    assert residual is not None, "maps with a residual look at the residual sum or behind it"
    norms: Tensor = torch.linalg.vector_norm(residual, dim=-1)
    return norms


@dataclass(frozen=True)
class SiteValues:
    """Everything that was asked of one site, batch first."""

    values: dict[str, Tensor]
    mixing: dict[str, Float[Tensor, "batch query"]]
    residual: dict[str, Float[Tensor, "batch query"]]  # cross-attention only


def measure(block: Block, names: Sequence[str], mixing: Sequence[str]) -> SiteValues:
    """The named measures of a block, and the mixing ratios of the named maps."""
    crossing = not block.tensors.self_attends
    with_residual = [name for name in MAPS if MEASURES[name].place != "attn" and name != "attn_w"]
    return SiteValues(
        values={name: MEASURES[name].compute(block) for name in names},
        mixing={name: mixing_ratio(block, name) for name in mixing if not crossing or name in with_residual},
        residual={n: residual_norm(block, n) for n in with_residual if crossing and (n in names or n in mixing)},
    )


def needed(names: Sequence[str], mixing: Sequence[str], by_word: bool = False) -> Needs:
    """All that the named measures and mixing ratios need of a site's pairs."""
    each = [MEASURES[name].needs for name in names]
    mixed = frozenset(place for name in mixing if (place := MEASURES[name].place) is not None)
    return Needs(
        alpha=by_word or any(need.alpha for need in each),
        weights=by_word or any(need.weights for need in each),
        totals=any(MEASURES[name].place is None for name in mixing),
        diagonal=bool(mixing) or by_word or any(need.diagonal for need in each),
        lengths=by_word or any(need.lengths for need in each),
        places=frozenset(place for need in each for place in need.places),
        vectors=frozenset(PLACES) if by_word else frozenset(place for need in each for place in need.vectors) | mixed,
    )
