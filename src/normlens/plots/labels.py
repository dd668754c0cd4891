"""How each measure is named in a picture: the papers' name and a formula-like label."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasureLabel:
    """The papers' name of a measure, its formula, and whether it is made of weights (or else of norms)."""

    name: str
    formula: str
    weights: bool = False


#: The five maps of the 2021 paper's Figure 1, in its order.
LAYER_MAPS = ("attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n")

LABELS = {
    "alpha": MeasureLabel("attention weight", "α", weights=True),
    "f_norm": MeasureLabel("norm of transformed vector", "‖f(x)‖"),
    "af_norm": MeasureLabel("norm of weighted vector", "‖αf(x)‖"),
    "x_norm": MeasureLabel("norm of input vector", "‖x‖"),
    "attn_w": MeasureLabel("ATTN-W", "mean of α over heads", weights=True),
    "attn_n": MeasureLabel("ATTN-N", "‖Σ αf(x)‖"),
    "attnres_w": MeasureLabel("ATTNRES-W", "½ mean of α + ½ I", weights=True),
    "attnres_n": MeasureLabel("ATTNRES-N", "‖Σ αf(x) + x‖"),
    "attnresln_n": MeasureLabel("ATTNRESLN-N", "‖LN(Σ αf(x) + x)‖"),
}


#: In cross-attention the residual is no key: it stands beside these maps, not in them.
CROSS_FORMULAS = {
    "attnres_w": "½ mean of α over heads",
    "attnres_n": "‖Σ αf(x)‖ as added",
    "attnresln_n": "‖LN(Σ αf(x))‖",
}


def label_of(measure: object) -> MeasureLabel:
    """The label of a measure; a name that is not in the table (an array of the caller's own) is its own label."""
    return LABELS.get(str(measure), MeasureLabel(str(measure) if measure else "value", ""))


def described(
    measure: object, between: str, *, below_zero: bool, root: bool, row_shares: bool = False, cross: bool = False
) -> str:
    """What a colour bar measures: name, formula, and what was done to the values on the way to a colour.

    >>> described("attn_n", ": ", below_zero=False, root=False, row_shares=True)
    'ATTN-N: ‖Σ αf(x)‖ / row sum'
    """
    label = label_of(measure)
    # A norm below zero can only be a difference of two; weights may be negative by themselves (differential attention).
    difference = below_zero and bool(label.formula) and not label.weights
    name = ("difference in " if difference else "") + label.name + (", root scale" if root else "")
    own = CROSS_FORMULAS.get(str(measure), label.formula) if cross else label.formula
    formula = " / ".join(part for part in (own, "row sum" if row_shares else "") if part)
    return f"{name}{between}{formula}" if formula else name
