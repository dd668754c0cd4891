"""The verdict of a study, in words: who is ahead in each column, who cannot be told from it, and where `explain` stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normlens.faithfulness.bootstrap import Estimate

if TYPE_CHECKING:
    from normlens.faithfulness.protocols import Column
    from normlens.faithfulness.studies import Study

#: What the default of `explain` is called in the table of methods.
OURS = "fixed"


def verdict(study: Study) -> list[str]:
    """A sentence for each column that ranks methods, then where the default of `explain` stands."""
    return [*leaders(study), *_comparisons(study)]


def _deciding(study: Study) -> list[Column]:
    """The columns that rank methods: what must change nothing ranks none."""
    ranks = (column for column in study.columns if column.better != "neither")
    return [column for column in ranks if column.name not in ("padding", "batch", "double")]


def leaders(study: Study) -> list[str]:
    """For each column: the best method, and those that the interval of the difference does not part from it."""
    found = []
    for column in _deciding(study):
        ranked = ranking(study, column)
        if len(ranked) < 2:
            continue
        best = ranked[0]
        level = [m for m in ranked[1:] if not study.against(best, m, column.name).excludes_zero]
        among = f"; not distinguishable from {', '.join(level)}" if level else ""
        found.append(f"{column.title}: {best} is best ({study.at(best, column.name)}){among}.")
    return found


def ranking(study: Study, column: Column) -> list[str]:
    """The methods, most faithful first by this column."""
    cells = {name: study.cell(name, column.name) for name in study.numbers[column.name]}
    means = {name: cell.mean for name, cell in cells.items() if cell is not None}
    return sorted(means, key=lambda name: means[name] if column.better == "low" else -means[name])


def _comparisons(study: Study) -> list[str]:
    names = [method.name for method in study.methods]
    if OURS not in names:
        return []
    found = []
    for column in _deciding(study):
        sign = -1 if column.better == "low" else 1
        ahead: list[str] = []
        behind: list[str] = []
        level: list[str] = []
        for other in names:
            if other == OURS or other not in study.numbers[column.name]:
                continue
            gap = study.against(OURS, other, column.name)
            (level if not gap.excludes_zero else ahead if sign * gap.mean > 0 else behind).append(
                f"{other} ({signed(gap)})"
            )
        parts = [
            f"{what} {', '.join(which)}"
            for what, which in (("ahead of", ahead), ("behind", behind), ("level with", level))
            if which
        ]
        if parts:
            found.append(f"explain's default ({OURS}), {column.title}: {'; '.join(parts)}.")
    return found


def signed(gap: Estimate) -> str:
    """A difference with its interval."""
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
