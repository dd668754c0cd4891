"""The table of measures: everything that normlens knows about a measure is a field of its entry in `MEASURES`.

A map has one number per (query, key) pair. A mixing ratio belongs to a map: the share of a position's output that comes
from other positions, `‖context‖ / (‖context‖ + ‖self‖)`, with norms of *sums of vectors*; for a map of shares (`alti`,
`projection`), the shares of other positions beside the position's own.

The nine measures of the papers of 2020 and 2021 are the *standard* ones, computed where none are named. The others cost
more, or look past the attention block, and are computed on request. `docs/adding_a_measure.md` adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from normlens.decompose.stages import FeedForwardStage, PairRequest, Stage
from normlens.errors import InputError

if TYPE_CHECKING:  # the table itself needs no torch: figures and tables read it too
    import numpy as np
    from jaxtyping import Float
    from torch import Tensor

    from normlens.decompose.block import Block

PAPER_2020 = "kobayashi2020"
PAPER_2021 = "kobayashi2021"
PAPER_2024 = "kobayashi2024"
ALTI = "ferrando2022"
GLOBENC = "modarressi2022"
VALUE_ZEROING = "mohebbi2023"

#: Prefixes of derived quantities in results and tables: `mixing_attn_n`, `residual_attn_n`; and the name of the proof.
MIXING = "mixing_"
RESIDUAL = "residual_"
PROOF = "proof"

#: How far a measure looks: the attention block, past it to the end of its layer, or into the feed-forward block.
Reach = Literal["block", "end", "feed_forward"]
#: The norms (or shares) of the context part and of the self part of each query.
MixingNorms = tuple["Float[Tensor, 'batch query']", "Float[Tensor, 'batch query']"]


@dataclass(frozen=True)
class Measure:
    """One quantity of a site.

    Args:
        name: Its name in results, files and on the command line.
        axes: The axes of its array.
        title: The papers' name for it.
        equation: Its equation.
        paper: Its source; empty for measures of normlens' own.
        description: A sentence for readers without the papers.
        needs: The quantities of pairs that it is computed from.
        compute: The function that computes it from a block.
        mixing: The norms of context and self part, for maps. In cross-attention the self part is the residual.
        mixing_needs: What `mixing` needs where it is not what `needs` says.
        residual: The residual's contribution in cross-attention, where that is not the self part of `mixing`.
        crosses: Whether the map holds the residual. If not, it has no mixing ratio in cross-attention.
        cross_equation: Its equation in cross-attention, where the residual is none of the keys, if that differs.
        stage: The stage of the attention block whose parts it measures, if any.
        feed_forward_stage: The same for the feed-forward block.
        reach: How far it looks.
        is_weight: Whether it is made of attention weights, which are shares of 1.
        is_share: Whether it lies in [0, 1] by definition.
        standard: Whether it is computed where no measure is named.
        signed: Whether it can be negative by itself, not only as a difference of two analyses.
        adds_vectors: Whether `words="vectors"` can add its vectors over the subwords of a word.
        feed_forward_passes: About how many feed-forward passes it costs per token and layer of an encoder.
        reruns_layer: Whether it computes the layer again for each pair, so that nothing the input decides is held fixed.
        explicit_row: The proof's own computation of one row, from its parts, the block's output and, in cross-attention,
            the residual; for maps that are no norms.
    """

    name: str
    axes: tuple[str, ...]
    title: str
    equation: str
    paper: str
    description: str
    needs: PairRequest
    compute: Callable[[Block], Tensor]
    mixing: Callable[[Block], MixingNorms] | None = None
    mixing_needs: PairRequest | None = None
    residual: Callable[[Block], Tensor] | None = None
    crosses: bool = True
    cross_equation: str | None = None
    stage: Stage | None = None
    feed_forward_stage: FeedForwardStage | None = None
    reach: Reach = "block"
    is_weight: bool = False
    is_share: bool = False
    standard: bool = True
    signed: bool = False
    adds_vectors: bool = True
    feed_forward_passes: float = 0.0
    reruns_layer: bool = False
    explicit_row: Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray] | None = None

    @property
    def is_map(self) -> bool:
        """Return True if the measure is a map of a layer, which has a mixing ratio."""
        return self.axes == _PAIR


def _computed(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "a measure is computed from what it needs"
    return tensor


# ---- weights -------------------------------------------------------------------------------------------------------------


def _attnres_w(block: Block) -> Float[Tensor, "batch query key"]:
    half = 0.5 * _computed(block.pairs.mean_alpha)
    if block.self_attends:
        half.diagonal(dim1=-2, dim2=-1).add_(0.5)
    return half


def _weight_mixing(block: Block) -> MixingNorms:
    """The weights on other positions and on the position itself; a sink makes rows sum to less than 1."""
    return block.once("weights", "mixing", lambda: _weights_on_others(block))


def _weights_on_others(block: Block) -> MixingNorms:
    pairs = block.pairs
    whole = _computed(pairs.row_sums)
    if not block.self_attends:
        return whole, whole.new_zeros(whole.shape)
    if block.same_word is not None:
        own = (_computed(pairs.mean_alpha).abs() * block.same_word).sum(-1)
    else:
        own = _computed(pairs.self_alpha).abs()
    return (whole - own).clamp_min_(0), own


def _weight_mixing_with_residual(block: Block) -> MixingNorms:
    """The same, with as much weight on the residual as attention has in all."""
    context, own = _weight_mixing(block)
    return context, own + 1.0


def _af_norm(block: Block) -> Float[Tensor, "batch head query key"]:
    pairs = block.pairs
    if pairs.gated_af_norm is not None:
        return pairs.gated_af_norm
    return block.edge_weights.abs() * _computed(pairs.f_norm).unsqueeze(2)


# ---- shares --------------------------------------------------------------------------------------------------------------

#: A map of shares, and the residual's share, which in cross-attention stands beside the keys.
_Shares = Callable[["Block"], tuple["Tensor", "Tensor"]]


def _alti(block: Block) -> tuple[Tensor, Tensor]:
    from normlens.decompose.parts import alti

    return block.once("shares", "alti", lambda: alti(block))


def _projection(block: Block) -> tuple[Tensor, Tensor]:
    from normlens.decompose.parts import projection

    return block.once("shares", "projection", lambda: projection(block))


def _value_zeroing(block: Block) -> tuple[Tensor, Tensor]:
    distances = block.layer.value_zeroing
    return distances, distances.new_zeros(distances.shape[:2])


def _share_mixing(shares_of: _Shares) -> Callable[[Block], MixingNorms]:
    def mixing(block: Block) -> MixingNorms:
        """The shares of other positions and of the position itself; where all are 0, the ratio is 0."""
        shares, residual = shares_of(block)
        if not block.self_attends:
            others, own = shares.sum(-1), residual
        else:
            if block.same_word is None:
                own = shares.diagonal(dim1=-2, dim2=-1)
            else:
                own = (shares * block.same_word).sum(-1)
            others = shares.sum(-1) - own
        context, own = others.abs(), own.abs()
        return context, own.where(context + own > 0, own.new_ones(()))

    return mixing


def _explicit_alti(parts: np.ndarray, y: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    import numpy as np

    beside = np.zeros_like(y) if residual is None else residual
    nearer = np.maximum(np.abs(y).sum() - np.abs(y - np.stack([*parts, beside])).sum(-1), 0)
    row: np.ndarray = nearer[:-1] / (nearer.sum() or 1.0)
    return row


def _explicit_projection(parts: np.ndarray, y: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    row: np.ndarray = parts @ y / (y * y).sum()
    return row


# ---- norms of parts ------------------------------------------------------------------------------------------------------

_PAIR = ("layer", "query", "key")
_HEAD_PAIR = ("layer", "head", "query", "key")


def _norms_at(
    stage: Stage, name: str, title: str, equation: str, paper: str, description: str, cross_equation: str | None = None
) -> Measure:
    """A map of norms of parts at a stage of the attention block."""
    return Measure(
        name,
        _PAIR,
        title,
        equation,
        paper,
        description,
        # From the residual sum on, the pair on the diagonal comes from its vector.
        needs=PairRequest(own=stage != "attn", stages=frozenset({stage})),
        compute=lambda block: block.part_norms(stage),
        mixing=lambda block: block.mixing_norms(stage),
        mixing_needs=PairRequest(own=True),
        crosses=stage != "attn",
        cross_equation=cross_equation,
        stage=stage,
        reach="end" if stage == "enc" else "block",
        standard=stage != "enc",
    )


def _feed_forward_norms(stage: FeedForwardStage, name: str, title: str, equation: str, description: str) -> Measure:
    """A map of norms of parts that were carried through the feed-forward block."""
    return Measure(
        name,
        _PAIR,
        title,
        equation,
        PAPER_2024,
        description,
        # The maps of attention stand beside a parallel block.
        needs=PairRequest(alpha=True, own=True, stages=frozenset({"res", "ln"})),
        compute=lambda block: block.layer.norms[stage],
        mixing=lambda block: block.layer.mixing_norms(stage),
        mixing_needs=PairRequest(own=True),
        feed_forward_stage=stage,
        reach="feed_forward",
        standard=False,
        adds_vectors=False,
        feed_forward_passes=0.5,
    )


_ALL = (
    Measure(
        "alpha",
        _HEAD_PAIR,
        "attention weight",
        "α",
        PAPER_2020,
        "one head's attention weight",
        needs=PairRequest(alpha=True),
        compute=lambda block: _computed(block.pairs.alpha),
        is_weight=True,
        is_share=True,
    ),
    Measure(
        "f_norm",
        ("layer", "head", "key"),
        "transformed vector",
        "‖f(x)‖",
        PAPER_2020,
        "norm of one head's transformed vector",
        needs=PairRequest(f_norm=True),
        compute=lambda block: _computed(block.pairs.f_norm),
    ),
    Measure(
        "af_norm",
        _HEAD_PAIR,
        "weighted transformed vector",
        "‖αf(x)‖",
        PAPER_2020,
        "norm of one head's weighted, transformed vector",
        needs=PairRequest(alpha=True, f_norm=True),
        compute=_af_norm,
    ),
    Measure(
        "x_norm",
        ("layer", "key"),
        "input vector",
        "‖x‖",
        PAPER_2020,
        "norm of the vector that f acts on",
        needs=PairRequest(),
        compute=lambda block: block.x.norm(dim=-1),
    ),
    Measure(
        "attn_w",
        _PAIR,
        "ATTN-W",
        "mean of α over heads",
        PAPER_2021,
        "attention weight, mean over heads",
        needs=PairRequest(mean_alpha=True),
        compute=lambda block: _computed(block.pairs.mean_alpha),
        mixing=_weight_mixing,
        mixing_needs=PairRequest(row_sums=True, own=True),
        crosses=False,
        is_weight=True,
        is_share=True,
    ),
    _norms_at("attn", "attn_n", "ATTN-N", "‖Σ αf(x)‖", PAPER_2021, "norm of the vectors, summed over heads"),
    Measure(
        "attnres_w",
        _PAIR,
        "ATTNRES-W",
        "½ mean of α + ½ I",
        PAPER_2021,
        "half attention weight, half residual",
        needs=PairRequest(mean_alpha=True),
        compute=_attnres_w,
        mixing=_weight_mixing_with_residual,
        mixing_needs=PairRequest(row_sums=True, own=True),
        residual=lambda block: block.projected.new_full(block.projected.shape[:2], 0.5),
        cross_equation="½ mean of α over heads",
        is_weight=True,
        is_share=True,
    ),
    _norms_at(
        "res",
        "attnres_n",
        "ATTNRES-N",
        "‖Σ αf(x) + x‖",
        PAPER_2021,
        "norm of attention and residual vectors",
        cross_equation="‖Σ αf(x)‖ as added",
    ),
    _norms_at(
        "ln",
        "attnresln_n",
        "ATTNRESLN-N",
        "‖LN(Σ αf(x) + x)‖",
        PAPER_2021,
        "the whole block: attention, residual and normalization",
        cross_equation="‖LN(Σ αf(x))‖",
    ),
    Measure(
        "alti",
        _PAIR,
        "ALTI",
        "max(0, ‖y‖₁ - ‖y - part‖₁) / row sum",
        ALTI,
        "how much nearer each part brings the block's output, as a share",
        needs=PairRequest(alpha=True),
        compute=lambda block: _alti(block)[0],
        mixing=_share_mixing(_alti),
        residual=lambda block: _alti(block)[1],
        is_share=True,
        standard=False,
        adds_vectors=False,
        explicit_row=_explicit_alti,
    ),
    Measure(
        "projection",
        _PAIR,
        "PROJECTION",
        "part · y / ‖y‖²",
        "",
        "how far each part goes in the direction of the block's output, signed",
        needs=PairRequest(alpha=True),
        compute=lambda block: _projection(block)[0],
        mixing=_share_mixing(_projection),
        residual=lambda block: _projection(block)[1],
        standard=False,
        signed=True,
        explicit_row=_explicit_projection,
    ),
    _norms_at(
        "enc",
        "enc_n",
        "N-ENC",
        "‖LN₂(LN(Σ αf(x) + x))‖",
        GLOBENC,
        "the whole layer, past the feed-forward block",
        cross_equation="‖LN₂(LN(Σ αf(x)))‖",
    ),
    _feed_forward_norms("ff", "ff_n", "FF-N", "‖FF(part)‖", "the block's part, carried through the feed-forward block"),
    _feed_forward_norms("ffres", "ffres_n", "FFRES-N", "‖FF(part) + part‖", "feed-forward block and its residual"),
    _feed_forward_norms(
        "ffln",
        "ffresln_n",
        "FFRESLN-N",
        "‖LN₂(FF(part) + part)‖",
        "the whole layer: attention, feed-forward block, residuals and normalizations",
    ),
    Measure(
        "value_zeroing",
        _PAIR,
        "VALUE ZEROING",
        "1 - cos(y, y without v)",
        VALUE_ZEROING,
        "how far the layer's output turns when a key's value vector is zero",
        needs=PairRequest(alpha=True),
        compute=lambda block: _value_zeroing(block)[0],
        mixing=_share_mixing(_value_zeroing),
        crosses=False,
        reach="feed_forward",
        standard=False,
        adds_vectors=False,
        feed_forward_passes=1.0,
        reruns_layer=True,
    ),
)

MEASURES: dict[str, Measure] = {measure.name: measure for measure in _ALL}
STANDARD: tuple[str, ...] = tuple(measure.name for measure in _ALL if measure.standard)
MAPS: tuple[str, ...] = tuple(measure.name for measure in _ALL if measure.is_map)
#: The five maps of the attention block (2021).
BLOCK_MAPS: tuple[str, ...] = tuple(name for name in MAPS if name in STANDARD)
HEAD_MAPS: tuple[str, ...] = tuple(measure.name for measure in _ALL if measure.axes == _HEAD_PAIR)


def quantity_label(name: str) -> str:
    """Label of a measure, or of the mixing ratio or residual of one, for a table or an axis.

    >>> quantity_label("af_norm"), quantity_label("mixing_attn_n"), quantity_label("frequency_rank")
    ('weighted transformed vector ‖αf(x)‖', 'mixing ratio, ATTN-N', 'frequency rank')
    """
    for prefix, words in ((MIXING, "mixing ratio"), (RESIDUAL, "residual norm")):
        if name.startswith(prefix) and name.removeprefix(prefix) in MEASURES:
            return f"{words}, {MEASURES[name.removeprefix(prefix)].title}"
    if name in MEASURES:
        return f"{MEASURES[name].title} {MEASURES[name].equation}"
    return name.replace("_", " ")


def chosen_measures(names: Sequence[str] | None) -> tuple[str, ...]:
    """The measures by these names, the standard ones where none are given; an unknown name is an error that lists them."""
    if names is None:
        return STANDARD
    return _known(names, tuple(MEASURES), "a measure")


def chosen_maps(names: Sequence[str] | None) -> tuple[str, ...]:
    """The maps by these names, for mixing ratios; the five of the attention block where none are given."""
    if names is None:
        return BLOCK_MAPS
    return _known(names, MAPS, "a map with a mixing ratio")


def _known(names: Sequence[str], known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if isinstance(names, str):
        names = [names]
    for name in names:
        if name not in known:
            raise InputError(f"{what} must be one of {', '.join(known)}, got {name!r}")
    return tuple(name for name in known if name in names)


def no_self_part(name: str) -> InputError:
    """The error for a mixing ratio that does not exist."""
    *crossing, last = [other for other in MAPS if MEASURES[other].crosses]
    return InputError(
        f"{name} has no mixing ratio in cross-attention, where no key is the position itself; ask for "
        f"{', '.join(crossing)} or {last}"
    )


# ---- measuring a block ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteValues:
    """The requested measures of one site, batch first."""

    values: dict[str, Tensor]
    mixing: dict[str, Float[Tensor, "batch query"]]
    residual: dict[str, Float[Tensor, "batch query"]]  # cross-attention only


def mixing_ratio(block: Block, name: str) -> Float[Tensor, "batch query"]:
    """The share of other positions in each query's output, by the named map (2021, Section 4.1)."""
    measure = MEASURES[name]
    assert measure.mixing is not None, "only maps have mixing ratios"
    if not block.self_attends and not measure.crosses:
        raise no_self_part(name)
    context, own = measure.mixing(block)
    return context / (context + own)


def residual_norm(block: Block, name: str) -> Float[Tensor, "batch query"]:
    """The residual's contribution in cross-attention, where it is none of the keys."""
    measure = MEASURES[name]
    if measure.residual is not None:
        return measure.residual(block)
    assert measure.mixing is not None, "only maps have a residual"
    return measure.mixing(block)[1]


def measure_block(block: Block, names: Sequence[str], mixing: Sequence[str]) -> SiteValues:
    """Compute the named measures of a block, and the mixing ratios of the named maps."""
    values = {name: MEASURES[name].compute(block) for name in names}
    ratios, residual = {}, {}
    for name in MAPS:
        exists = block.self_attends or MEASURES[name].crosses
        if name in mixing and exists:
            ratios[name] = mixing_ratio(block, name)
        if exists and not block.self_attends and (name in names or name in mixing):
            residual[name] = residual_norm(block, name)
    return SiteValues(values, ratios, residual)


def needed(names: Sequence[str], mixing: Sequence[str], by_word: bool = False) -> PairRequest:
    """The union of what the named measures and mixing ratios need of a site's pairs."""
    request = PairRequest()
    if by_word:
        request = PairRequest(alpha=True, mean_alpha=True, own=True, f_norm=True)
    for name in names:
        request |= MEASURES[name].needs
    for name in mixing:
        request |= MEASURES[name].mixing_needs or MEASURES[name].needs | PairRequest(own=True)
    return request


def same_but_diagonal(block: Block, names: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Maps that equal another one of these times a number, except on the diagonal: that map, and the number.

    The residual stands on the diagonal alone, so wherever nothing scales the parts on their way into the residual sum (and
    no normalization follows it), the maps before and after it are the same elsewhere.
    """
    if not block.self_attends:
        return {}
    same: dict[str, tuple[str, float]] = {}
    plain = not block.branch and block.stream_weights is None
    if "attn_w" in names and "attnres_w" in names:
        same["attnres_w"] = "attn_w", 0.5
    if plain and "attn_n" in names and "attnres_n" in names:
        same["attnres_n"] = "attn_n", 1.0
    if block.norm is None and "attnres_n" in names and "attnresln_n" in names:
        same["attnresln_n"] = same.get("attnres_n", ("attnres_n", 1.0))
    return same
