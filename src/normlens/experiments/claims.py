"""The papers' claims as data (`data/claims.json`), and the one function that evaluates them.

A claim names the numbers that it is about, as `table/row/column:decimals` of the experiment's tables or as a key of the
numbers that the experiment adds. Its conditions compare these numbers, as they are printed, with each other or with
constants: `"rho <= -0.5"`, `"contribution < weight"`, `"|rho| < 0.1"`. Sentences are templates over the same names.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from normlens.experiments.outcome import Finding, Table, printed
from normlens.experiments.published import published_text
from normlens.types import JsonMapping

_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class _Shown(float):
    """A number that is written with a real minus sign."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec).replace("-", "−")


@cache
def claims_of(experiment: str) -> Sequence[JsonMapping]:
    """The claims of an experiment, in the order of the paper."""
    text = (files("normlens.experiments") / "data" / "claims.json").read_text(encoding="utf-8")
    claims: list[JsonMapping] = json.loads(text)[experiment]
    return claims


def evaluate(
    experiment: str,
    tables: Sequence[Table],
    words: Mapping[str, object] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> tuple[Finding, ...]:
    """Evaluate every claim; one whose numbers were not measured is listed as not judged.

    Args:
        experiment: The name of the experiment.
        tables: Its tables.
        words: Words for the templates, also in the references to numbers.
        numbers: Numbers that stand in no table.

    Returns:
        The findings, in the order of the paper.
    """
    measured = dict(numbers or {})
    for table in tables:
        for number in table.numbers:
            measured[f"{table.name}/{number.row}/{number.column}"] = number.measured
    findings = []
    for claim in claims_of(experiment):
        references = {name: str(key).format(**(words or {})) for name, key in claim["values"].items()}
        if all(key.rpartition(":")[0] in measured for key in references.values()):
            findings.append(_finding(experiment, claim, references, measured, words or {}))
        else:
            findings.append(_unjudged(experiment, claim, words or {}))
    return tuple(findings)


def _finding(
    experiment: str,
    claim: JsonMapping,
    references: Mapping[str, str],
    measured: Mapping[str, float],
    words: Mapping[str, object],
) -> Finding:
    values, rounded = {}, {}
    for name, reference in references.items():
        key, _, decimals = reference.rpartition(":")
        values[name] = float(measured[key])
        rounded[name] = printed(values[name], int(decimals))
    shown = {name: _Shown(value) for name, value in values.items()} | dict(words)
    tends = claim.get("tends")
    return Finding(
        claim["name"],
        claim["claim"].format(**shown),
        claim["place"],
        _all_hold(claim["holds"], rounded),
        claim["measured"].format(**shown),
        claim["rule"],
        _in_the_paper(experiment, claim, words),
        values,
        None if tends is None else _all_hold(tends, rounded),
    )


def _unjudged(experiment: str, claim: JsonMapping, words: Mapping[str, object]) -> Finding:
    return Finding(
        claim["name"],
        claim["claim"].format(**words),
        claim["place"],
        None,
        "This run has not measured it: the model or the options lack what the claim is about.",
        claim["rule"],
        _in_the_paper(experiment, claim, words),
        {},
    )


def _in_the_paper(experiment: str, claim: JsonMapping, words: Mapping[str, object]) -> str:
    published = [published_text(experiment, *reference.split("/")) for reference in claim.get("published", ())]
    return str(claim["paper"].format(*published, **words))


def _all_hold(conditions: Sequence[str], values: Mapping[str, float]) -> bool:
    for condition in conditions:
        left, sign, right = condition.split(" ")
        if not _OPERATORS[sign](_term(left, values), _term(right, values)):
            return False
    return True


def _term(term: str, values: Mapping[str, float]) -> float:
    """A named value, its magnitude (`|name|`), or a number."""
    if term.startswith("|"):
        return abs(values[term.strip("|")])
    return values[term] if term in values else float(term)
