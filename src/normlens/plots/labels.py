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
    "f_norm": MeasureLabel("transformed vector", "‖f(x)‖"),
    "af_norm": MeasureLabel("weighted vector", "‖αf(x)‖"),
    "x_norm": MeasureLabel("input vector", "‖x‖"),
    "attn_w": MeasureLabel("ATTN-W", "mean of α over heads", weights=True),
    "attn_n": MeasureLabel("ATTN-N", "‖Σ αf(x)‖"),
    "attnres_w": MeasureLabel("ATTNRES-W", "½ mean of α + ½ I", weights=True),
    "attnres_n": MeasureLabel("ATTNRES-N", "‖Σ αf(x) + x‖"),
    "attnresln_n": MeasureLabel("ATTNRESLN-N", "‖LN(Σ αf(x) + x)‖"),
}


def label_of(measure: object) -> MeasureLabel:
    """The label of a measure; a name that is not in the table (an array of the caller's own) is its own label."""
    return LABELS.get(str(measure), MeasureLabel(str(measure) if measure else "value", ""))
