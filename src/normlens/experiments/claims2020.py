"""The claims of Kobayashi et al. 2020 about BERT, as checks with stated rules."""

from __future__ import annotations

from collections.abc import Mapping

from normlens.experiments.outcome import Finding, Table, formatted
from normlens.experiments.published import reference
from normlens.experiments.setup import Setup

_EXPERIMENT = "kobayashi2020-bert"

#: What the words of the claims are taken to mean.
STRONG, CLEAR, WEAK = 0.5, 0.1, 0.2
SPREAD, STRETCH = 0.1, 1.8

#: Categories as the subject of a sentence, with their verbs.
SUBJECTS = {
    "sep": ("[SEP]", "takes", "contributes", "its"),
    "cls": ("[CLS]", "takes", "contributes", "its"),
    "comma_period": ("Comma and period", "take", "contribute", "their"),
}


def findings_of(setup: Setup, tables: Mapping[str, Table]) -> tuple[Finding, ...]:
    """Every claim, in the order of the paper."""
    found = [_dispersion(tables["table-1"], tables["table-4"]), _stretch(tables["figure-09"])]
    found += [_takes_less(tables["shares"], name) for name in ("sep", "cls", "comma_period")
              if name in tables["shares"].rows]  # fmt: skip
    found += [_cancels(tables["table-2"], name) for name in ("sep", "cls", "comma_period", "other")
              if name in tables["table-2"].rows]  # fmt: skip
    found += [_rank_norm(tables["section-4-3"], setup), _rank_weight(tables["section-4-3"], setup)]
    return tuple(found)


def _published(table: str, row: str, column: str) -> str:
    return reference(_EXPERIMENT, table, row, column)


def _dispersion(f: Table, x: Table) -> Finding:
    cv, cv_x = f.value("average", "cv"), x.value("average", "cv")
    return Finding(
        "dispersion",
        "The norm of the transformed vectors varies, so weights alone do not tell what is mixed.",
        "Section 4.1, Table 1",
        cv >= SPREAD,
        f"In an average head ‖f(x)‖ varies by {cv:.2f} of its mean (‖x‖ in an average layer: {cv_x:.2f}).",
        f"holds if the mean CV of ‖f(x)‖ is at least {SPREAD}",
        f"{_published('dispersion_f', 'average', 'cv')} for ‖f(x)‖, {_published('dispersion_x', 'average', 'cv')} "
        "for ‖x‖",
        {"cv_f": cv, "cv_x": cv_x},
    )


def _stretch(table: Table) -> Finding:
    least = table.value("all", "ratio")
    return Finding(
        "singular_values",
        "f stretches some directions more than others, in every head.",
        "Appendix, Figure 9",
        least >= STRETCH,
        f"The largest singular value of f is at least {least:.2f} times the smallest in every head.",
        f"holds if largest / smallest is at least {STRETCH} in every head",
        f"at least {STRETCH} in the heads shown",
        {"smallest_ratio": least},
    )


def _takes_less(table: Table, name: str) -> Finding:
    weight, contribution = table.value(name, "weight"), table.value(name, "contribution")
    subject, takes, contributes, its = SUBJECTS[name]
    return Finding(
        f"takes_less_{name}",
        f"{subject} {contributes} less than {its} attention weight suggests.",
        "Section 4.2, Figure 3",
        contribution < weight,
        f"{subject} {takes} {weight:.3f} of the weight and {contribution:.3f} of the contribution.",
        "holds if the share of ‖αf(x)‖ is below the share of α, averaged over layers",
        "shown as curves, without a number",
        {"weight": weight, "contribution": contribution},
    )


def _cancels(table: Table, name: str) -> Finding:
    rho = table.value(name, "rho")
    label = table.rows[name]
    if name == "other":
        holds, rule = abs(rho) < CLEAR, f"holds if ρ lies between −{CLEAR} and {CLEAR}"
        claim = "For all other tokens weight and norm are almost unrelated."
    elif name == "sep":
        holds, rule = rho <= -STRONG, f"holds if ρ is at most −{STRONG}"
        claim = f"On {label} small norms cancel large weights: α and ‖f(x)‖ are strongly negatively correlated."
    else:
        holds, rule = rho <= -CLEAR, f"holds if ρ is at most −{CLEAR}"
        claim = f"On {label} α and ‖f(x)‖ are negatively correlated."
    return Finding(
        f"rho_{name}",
        claim,
        "Section 4.2, Table 2",
        holds,
        f"ρ of α and ‖f(x)‖ on {label} is {formatted(rho, 3)}.",
        rule,
        _published("rho_alpha_f", name, "rho"),
        {"rho": rho},
    )


def _rank_norm(table: Table, setup: Setup) -> Finding:
    rho = table.value("f_norm", setup.definition)
    return Finding(
        "rank_norm",
        "Frequent tokens have small ‖f(x)‖: the norm rises with the frequency rank.",
        "Section 4.3, Figure 6",
        rho >= STRONG,
        f"ρ of frequency rank and ‖f(x)‖ is {formatted(rho, 3)} (ranks from {setup.ranks_from}).",
        f"holds if ρ is at least {STRONG}",
        _published("rho_rank", "f_norm", "rho"),
        {"rho": rho},
    )


def _rank_weight(table: Table, setup: Setup) -> Finding:
    rho = table.value("alpha", setup.definition)
    return Finding(
        "rank_weight",
        "The attention weight itself hardly depends on frequency.",
        "Section 4.3, Figure 6",
        abs(rho) < WEAK,
        f"ρ of frequency rank and α is {formatted(rho, 3)} (ranks from {setup.ranks_from}).",
        f"holds if ρ lies between −{WEAK} and {WEAK}",
        _published("rho_rank", "alpha", "rho"),
        {"rho": rho},
    )
