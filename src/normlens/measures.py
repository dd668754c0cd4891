"""The table of measures: what each one is called, what it means, where it comes from, and how it is computed.

A map has one number per (query, key) pair. `mixing_ratio` belongs to a map: the share of a position's output that
comes from other positions, `‖context‖ / (‖context‖ + ‖self‖)`, with norms of *sums of vectors*; for a map of shares
(`alti`, `projection`), the shares of other positions beside the position's own.

The nine measures of the papers of 2020 and 2021 are the *standard* ones, computed where none are named. The others cost
more, or look past the attention block, and are computed where they are asked for by name.
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
    from normlens.decompose.layer_parts import Place

PAPER_2020 = "kobayashi2020"
PAPER_2021 = "kobayashi2021"
PAPER_2024 = "kobayashi2024"
ALTI = "ferrando2022"
GLOBENC = "modarressi2022"
VALUE_ZEROING = "mohebbi2023"

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


#: How far a measure looks: the attention block, past it to the end of its layer, or into the feed-forward block.
Reach = Literal["block", "end", "feed_forward"]


@dataclass(frozen=True)
class Measure:
    """One quantity: its axes, the papers' name for it, its equation and its source (empty: normlens' own).

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
    standard: bool = True  # computed where no measure is named
    signed: bool = False  # below zero by itself, not only as a difference of two analyses
    reach: Reach = "block"
    place: Place | None = None  # where in the feed-forward block a vector-based map looks

    @property
    def is_map(self) -> bool:
        """Whether the measure is a map of a layer, which has a mixing ratio."""
        return self.axes == ("layer", "query", "key")


def _kept(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "a measure computes from what it asked for"
    return tensor


def _share(block: Block, name: str) -> tuple[Tensor, Tensor]:
    """A map of shares and the residual's own share, worked out once."""
    from normlens.decompose.parts import alti, projection

    if name not in block.shares:
        made = {"alti": alti, "projection": projection, "value_zeroing": _value_zeroing}
        block.shares[name] = made[name](block)
    return block.shares[name]


def _value_zeroing(block: Block) -> tuple[Tensor, Tensor]:
    distances = block.layer.value_zeroing
    return distances, distances.new_zeros(distances.shape[:2])


def _fed(name: str, title: str, equation: str, place: Place, says: str, crossing: str) -> Measure:
    """A map of the feed-forward block."""
    return Measure(
        name,
        _PAIR,
        title,
        equation,
        PAPER_2024,
        lambda b: b.layer.norms[place],
        PairRequest(
            alpha=True, own=True, stages=frozenset({"res", "ln"})
        ),  # those of attention stand beside a parallel block
        says=says,
        cross_equation=crossing,
        standard=False,
        reach="feed_forward",
        place=place,
    )


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
        Measure(
            "alti",
            _PAIR,
            "ALTI",
            "max(0, ‖y‖₁ - ‖y - part‖₁) / row sum",
            ALTI,
            lambda b: _share(b, "alti")[0],
            PairRequest(alpha=True),
            says="how much nearer each part brings the block's output, as a share",
            standard=False,
        ),
        Measure(
            "projection",
            _PAIR,
            "PROJECTION",
            "part · y / ‖y‖²",
            "",
            lambda b: _share(b, "projection")[0],
            PairRequest(alpha=True),
            says="how far each part goes in the direction of the block's output, signed",
            standard=False,
            signed=True,
        ),
        Measure(
            "enc_n",
            _PAIR,
            "N-ENC",
            "‖LN₂(LN(Σ αf(x) + x))‖",
            GLOBENC,
            lambda b: b.part_norms("enc"),
            _at("enc"),
            "enc",
            says="the whole layer, past the feed-forward block",
            cross_equation="‖LN₂(LN(Σ αf(x)))‖",
            standard=False,
            reach="end",
        ),
        _fed(
            "ff_n", "FF-N", "‖FF(part)‖", "ff", "the block's part, carried through the feed-forward block", "‖FF(part)‖"
        ),
        _fed(
            "ffres_n",
            "FFRES-N",
            "‖FF(part) + part‖",
            "ffres",
            "feed-forward block and its residual",
            "‖FF(part) + part‖",
        ),
        _fed(
            "ffresln_n",
            "FFRESLN-N",
            "‖LN₂(FF(part) + part)‖",
            "ffln",
            "the whole layer: attention, feed-forward block, residuals and normalizations",
            "‖LN₂(FF(part) + part)‖",
        ),
        Measure(
            "value_zeroing",
            _PAIR,
            "VALUE ZEROING",
            "1 - cos(y, y without v)",
            VALUE_ZEROING,
            lambda b: _share(b, "value_zeroing")[0],
            PairRequest(alpha=True),
            says="how far the layer's output turns when a key's value vector is zero",
            standard=False,
            reach="feed_forward",
        ),
    )
}

STANDARD: tuple[str, ...] = tuple(name for name, measure in MEASURES.items() if measure.standard)
MAPS: tuple[str, ...] = tuple(name for name, measure in MEASURES.items() if measure.is_map)
#: The five maps of the attention block (2021).
BLOCK_MAPS: tuple[str, ...] = tuple(name for name in MAPS if name in STANDARD)
#: Maps of signed or positive shares that are no norms of vectors: their ratio is made of the shares themselves.
SHARES: tuple[str, ...] = ("alti", "projection", "value_zeroing")
#: Maps that hold the residual: in cross-attention it stands beside the parts.
WITH_RESIDUAL: tuple[str, ...] = tuple(name for name in MAPS if name not in ("attn_w", "attn_n", "value_zeroing"))
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
    """The measures by these names, the standard ones where none are given; an unknown name is an error that lists them."""
    return STANDARD if names is None else _known(names, tuple(MEASURES), "a measure")


def chosen_maps(names: Sequence[str] | None) -> tuple[str, ...]:
    """The maps by these names, for mixing ratios; the five of the attention block where none are given."""
    return BLOCK_MAPS if names is None else _known(names, MAPS, "a map with a mixing ratio")


def _known(names: Sequence[str], known: tuple[str, ...], what: str) -> tuple[str, ...]:
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
    place = MEASURES[name].place
    if place is not None:
        far, near = block.layer.mixing_norms(place)
        return far / (far + near)
    if name in SHARES:
        return _share_of_others(block, *_share(block, name))
    whole = _kept(pairs.total_weight)
    if not self_attends:
        own = whole.new_zeros(whole.shape)
    elif block.tensors.same_word is not None:
        own = (_kept(pairs.weights).abs() * block.tensors.same_word).sum(-1)
    else:
        own = _kept(pairs.weight_on_self).abs()
    # The residual's half stands beside attention's half; a sink or differential attention makes rows sum to less.
    return (whole - own).clamp_min_(0).div_(whole + 1.0 if name == "attnres_w" else whole)


def _share_of_others(
    block: Block, shares: Float[Tensor, "batch query key"], residual: Float[Tensor, "batch query"]
) -> Float[Tensor, "batch query"]:
    """The shares of other positions beside the position's own (in cross-attention: the residual's); 0 where all are 0."""
    t = block.tensors
    if not t.self_attends:
        own, others = residual, shares.sum(-1)
    else:
        same = t.same_word
        own = shares.diagonal(dim1=-2, dim2=-1) if same is None else (shares * same).sum(-1)
        others = shares.sum(-1) - own
    whole = others.abs() + own.abs()
    return others.abs() / whole.where(whole > 0, whole.new_ones(()))


def residual_norm(block: Block, name: str) -> Float[Tensor, "batch query"]:
    """What the residual brings in cross-attention, where it is none of the keys."""
    stage = MEASURES[name].stage
    place = MEASURES[name].place
    if place is not None:
        return block.layer.mixing_norms(place)[1]
    if name in SHARES:
        return _share(block, name)[1]
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


def same_but_diagonal(block: Block, names: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Maps that are another one of these times a number, but for their diagonal: which one, and the number.

    The residual stands on the diagonal alone, so wherever nothing scales the parts on their way into the residual sum (and
    no normalization follows it), the maps before and after it are the same elsewhere.
    """
    if not block.tensors.self_attends:
        return {}
    found: dict[str, tuple[str, float]] = {}
    plain = not block.tensors.branch and block.tensors.stream_weights is None
    if "attn_w" in names and "attnres_w" in names:
        found["attnres_w"] = "attn_w", 0.5
    if plain and "attn_n" in names and "attnres_n" in names:
        found["attnres_n"] = "attn_n", 1.0
    if block.tensors.norm is None and "attnres_n" in names and "attnresln_n" in names:
        found["attnresln_n"] = found.get("attnres_n", ("attnres_n", 1.0))
    return found


def needed(names: Sequence[str], mixing: Sequence[str], by_word: bool = False) -> PairRequest:
    """All that the named measures and mixing ratios need of a site's pairs."""
    each = [MEASURES[name].needs for name in (*names, *(name for name in mixing if name in SHARES))]
    return PairRequest(
        alpha=by_word or any(need.alpha for need in each),
        weights=by_word or any(need.weights for need in each),
        totals=any(MEASURES[name].weights for name in mixing),
        own=bool(mixing) or by_word or any(need.own for need in each),
        f_norm=by_word or any(need.f_norm for need in each),
        stages=frozenset(stage for need in each for stage in need.stages),
    )
