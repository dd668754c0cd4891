"""The table of measures: what each one is called, what it means, where it comes from, and how it is computed.

A map has one number per (query, key) pair. `mixing_ratio` belongs to a map: the share of a position's output that
comes from other positions, `‖context‖ / (‖context‖ + ‖self‖)`, with norms of *sums of vectors*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from normlens.decompose.stages import PairRequest, Stage
from normlens.errors import InputError

if TYPE_CHECKING:  # the table itself needs no torch: figures and tables read it too
    from jaxtyping import Float
    from torch import Tensor

    from normlens.decompose.block import Block

PAPER_2020 = "kobayashi2020"
PAPER_2021 = "kobayashi2021"

#: How derived quantities are called in results and tables: `mixing_attn_n`, `residual_attn_n`, `proof`.
MIXING = "mixing_"
RESIDUAL = "residual_"
PROOF = "proof"


#: The kinds of attention block that a result tells apart, in the order in which it names them.
Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
KIND_TITLES: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


@dataclass(frozen=True)
class Measure:
    """One quantity: its axes, the papers' name for it, its equation and its source.

    `weights` tells attention weights, which are shares, from norms; `says` is what a reader without the papers needs.
    In cross-attention the residual is none of the keys: where that changes the equation, `cross_equation` has it.
    """

    name: str
    axes: tuple[str, ...]
    title: str
    equation: str
    paper: str
    compute: Callable[[Block], Tensor]
    needs: PairRequest
    stage: Stage | None = None  # where in the block a vector-based map looks
    weights: bool = False
    says: str = ""
    cross_equation: str | None = None

    @property
    def is_map(self) -> bool:
        """Whether the measure is one of the five layer maps, which have a mixing ratio."""
        return self.axes == ("layer", "query", "key")


def _kept(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "a measure computes from what it asked for"
    return tensor


def _attnres_w(block: Block) -> Float[Tensor, "batch query key"]:
    half = 0.5 * _kept(block.tensors.pairs.weights)
    if block.tensors.self_attends:
        half.diagonal(dim1=-2, dim2=-1).add_(0.5)
    return half


def _af_norm(block: Block) -> Float[Tensor, "batch head query key"]:
    pairs = block.tensors.pairs
    if pairs.gated_af_norm is not None:
        return pairs.gated_af_norm
    return block.weights.abs() * _kept(pairs.f_norm).unsqueeze(2)


_PAIR = ("layer", "query", "key")
_HEAD_PAIR = ("layer", "head", "query", "key")


def _at(stage: Stage) -> PairRequest:
    """Norms of parts at a stage; from the residual sum on, the pair on the diagonal comes from its vector."""
    return PairRequest(own=stage != "attn", stages=frozenset({stage}))


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
            PairRequest(alpha=True),
            weights=True,
            says="one head's attention weight",
        ),
        Measure(
            "f_norm",
            ("layer", "head", "key"),
            "transformed vector",
            "‖f(x)‖",
            PAPER_2020,
            lambda b: _kept(b.tensors.pairs.f_norm),
            PairRequest(f_norm=True),
            says="norm of one head's transformed vector",
        ),
        Measure(
            "af_norm",
            _HEAD_PAIR,
            "weighted transformed vector",
            "‖αf(x)‖",
            PAPER_2020,
            _af_norm,
            PairRequest(alpha=True, f_norm=True),
            says="norm of one head's weighted, transformed vector",
        ),
        Measure(
            "x_norm",
            ("layer", "key"),
            "input vector",
            "‖x‖",
            PAPER_2020,
            lambda b: b.tensors.x.norm(dim=-1),
            PairRequest(),
            says="norm of the vector that f acts on",
        ),
        Measure(
            "attn_w",
            _PAIR,
            "ATTN-W",
            "mean of α over heads",
            PAPER_2021,
            lambda b: _kept(b.tensors.pairs.weights),
            PairRequest(weights=True),
            weights=True,
            says="attention weight, mean over heads",
        ),
        Measure(
            "attn_n",
            _PAIR,
            "ATTN-N",
            "‖Σ αf(x)‖",
            PAPER_2021,
            lambda b: b.part_norms("attn"),
            _at("attn"),
            "attn",
            says="norm of the vectors, summed over heads",
        ),
        Measure(
            "attnres_w",
            _PAIR,
            "ATTNRES-W",
            "½ mean of α + ½ I",
            PAPER_2021,
            _attnres_w,
            PairRequest(weights=True),
            weights=True,
            says="half attention weight, half residual",
            cross_equation="½ mean of α over heads",
        ),
        Measure(
            "attnres_n",
            _PAIR,
            "ATTNRES-N",
            "‖Σ αf(x) + x‖",
            PAPER_2021,
            lambda b: b.part_norms("res"),
            _at("res"),
            "res",
            says="norm of attention and residual vectors",
            cross_equation="‖Σ αf(x)‖ as added",
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
            says="the whole block: attention, residual and normalization",
            cross_equation="‖LN(Σ αf(x))‖",
        ),
    )
}

MAPS: tuple[str, ...] = tuple(name for name, measure in MEASURES.items() if measure.is_map)
#: Maps that hold the residual: in cross-attention it stands beside the parts.
WITH_RESIDUAL: tuple[str, ...] = ("attnres_w", "attnres_n", "attnresln_n")
HEAD_MAPS: tuple[str, ...] = tuple(name for name, measure in MEASURES.items() if measure.axes == _HEAD_PAIR)


def quantity_label(name: str) -> str:
    """What a table or an axis calls a measure, or the mixing ratio or residual of one; a name of its own otherwise.

    >>> quantity_label("af_norm"), quantity_label("mixing_attn_n"), quantity_label("frequency_rank")
    ('weighted transformed vector ‖αf(x)‖', 'mixing ratio, ATTN-N', 'frequency rank')
    """
    for prefix, words in ((MIXING, "mixing ratio"), (RESIDUAL, "residual norm")):
        if name.startswith(prefix) and name.removeprefix(prefix) in MEASURES:
            return f"{words}, {MEASURES[name.removeprefix(prefix)].title}"
    measure = MEASURES.get(name)
    return name.replace("_", " ") if measure is None else f"{measure.title} {measure.equation}"


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


def no_self_part(name: str) -> InputError:
    """The error for a mixing ratio that does not exist."""
    return InputError(
        f"a mixing ratio compares other positions with the position itself: in cross-attention {name} has no self "
        f"part; ask for {', '.join(WITH_RESIDUAL[:-1])} or {WITH_RESIDUAL[-1]}"
    )


def mixing_ratio(block: Block, name: str) -> Float[Tensor, "batch query"]:
    """The share of other positions in each query's output, as the named map sees it (2021, Section 4.1)."""
    stage, pairs, self_attends = MEASURES[name].stage, block.tensors.pairs, block.tensors.self_attends
    if not self_attends and name not in WITH_RESIDUAL:
        raise no_self_part(name)
    if stage is not None:
        context, own = block.mixing_norms(stage)
        return context / (context + own)
    whole = _kept(pairs.total_weight)
    if not self_attends:
        own = whole.new_zeros(whole.shape)
    elif block.tensors.same_word is not None:
        own = (_kept(pairs.weights).abs() * block.tensors.same_word).sum(-1)
    else:
        own = _kept(pairs.weight_on_self).abs()
    # The residual's half stands beside attention's half; a sink or differential attention makes rows sum to less.
    return (whole - own).clamp_min(0) / (whole + 1.0 if name == "attnres_w" else whole)


def residual_norm(block: Block, name: str) -> Float[Tensor, "batch query"]:
    """What the residual brings in cross-attention, where it is none of the keys."""
    stage = MEASURES[name].stage
    if stage is None:
        return block.tensors.projected.new_full(block.tensors.projected.shape[:2], 0.5)
    norms: Tensor = block.self_vectors(stage).norm(dim=-1)
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
    asked = {*names, *mixing}
    return SiteValues(
        values={name: MEASURES[name].compute(block) for name in names},
        mixing={name: mixing_ratio(block, name) for name in mixing if not crossing or name in WITH_RESIDUAL},
        residual={name: residual_norm(block, name) for name in WITH_RESIDUAL if crossing and name in asked},
    )


def needed(names: Sequence[str], mixing: Sequence[str], by_word: bool = False) -> PairRequest:
    """All that the named measures and mixing ratios need of a site's pairs."""
    each = [MEASURES[name].needs for name in names]
    return PairRequest(
        alpha=by_word or any(need.alpha for need in each),
        weights=by_word or any(need.weights for need in each),
        totals=any(MEASURES[name].stage is None for name in mixing),
        own=bool(mixing) or by_word or any(need.own for need in each),
        f_norm=by_word or any(need.f_norm for need in each),
        stages=frozenset(stage for need in each for stage in need.stages),
    )
