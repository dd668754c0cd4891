"""Several models side by side: mixing ratios, expansion rates and category shares (2021, the table of model sizes)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from normlens.experiments import kobayashi2021
from normlens.experiments.encoder_study import MASKED, PAIR_CATEGORIES, EncoderStudy, facts, present, shares, whole
from normlens.experiments.outcome import Number, Outcome, Picture, Table
from normlens.experiments.published import PublishedNumbers
from normlens.measures.table import BLOCK_MAPS, MEASURES, MIXING
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import category_style, numbered_style
from normlens.types import Json

NAME = "compare"
_SHARES = ("sep", "cls", "comma_period")


@dataclass(frozen=True)
class Column:
    """The results of one model."""

    name: str
    record: Json
    ratios: dict[str, float]  # per cent
    rates: tuple[float, ...]
    taken: dict[tuple[str, str], float]  # (category, weight or contribution) -> share
    published: PublishedNumbers


def measure(study: EncoderStudy) -> Column:
    """Two passes and the weights of one model."""
    masked = study.run("masked", measures=(), mixing=None, mask=MASKED, ranked=False)
    plain = study.run("unmasked", measures=("alpha", "f_norm", "af_norm"), mixing=(), mask=0.0, ranked=False)
    record = study.record([masked, plain])
    rates = kobayashi2021.expansion(study, PublishedNumbers(kobayashi2021.NAME))
    variant = study.definition if study.definition in rates.columns else next(iter(rates.columns))
    categories = present(plain, PAIR_CATEGORIES)
    taken: dict[tuple[str, str], float] = {}
    for what, quantity in (("weight", "alpha"), ("contribution", "af_norm")):
        means = shares(plain, quantity, categories).mean(axis=1)
        taken |= {(category, what): float(mean) for category, mean in zip(categories, means, strict=True)}
    return Column(
        str(record["model"]["name"]),
        record,
        {measure: 100 * whole(masked, MIXING + measure, "all", "mean") for measure in BLOCK_MAPS},
        tuple(rates.value(row, variant) for row in rates.rows if row.startswith("layer ")),
        taken,
        PublishedNumbers.matching(kobayashi2021.NAME, study, record),
    )


def compare(models: Sequence[str], study_of: Callable[[str], EncoderStudy]) -> Outcome:
    """Measure the models one after the other, so that only one is in memory, and set them side by side."""
    measured = [measure(study_of(model)) for model in models]
    names = _distinct([column.name for column in measured])
    columns = [dataclasses.replace(column, name=name) for column, name in zip(measured, names, strict=True)]
    joined, first = ", ".join(names), columns[0].record
    model = {"name": joined, "class": "several", "dtype": "each its own", "content": "see results.json"}
    record = {
        **first,
        "model": model,
        "models": [column.record["model"] for column in columns],
        "tokens": {column.name: column.record["tokens"] for column in columns},
        "max_proof_error": max(column.record["max_proof_error"] for column in columns),
        "masked_share": MASKED,
    }
    text = f"{record['data']}: {record['sequences']:,} sequences"
    return Outcome(
        NAME,
        "Models side by side: how much they mix, how much f stretches, what special tokens take",
        record,
        f"Models {joined} on {text}, {MASKED:.0%} masked for the ratios.",
        _summary(columns),
        (),
        (_table(columns),),
        (_picture(columns, f"{joined} · {text}"),),
        facts(record),
        ("Mixing ratios are on masked input, category shares on unmasked input, expansion rates from the weights.",),
        tuple(title for column in columns for title in column.published.titles()),
    )


def _distinct(names: Sequence[str]) -> list[str]:
    """The last part of each name, with a number where two are equal."""
    short = [name.rstrip("/").rsplit("/", 1)[-1] for name in names]
    return [name if short.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(short, 1)]


def _table(columns: Sequence[Column]) -> Table:
    numbers = []
    for column in columns:
        row = column.name
        numbers.append(Number(row, "layers", len(column.rates), 0))
        numbers += [
            Number(row, name, value, 1, column.published("mixing", name, "mean"))
            for name, value in column.ratios.items()
        ]
        numbers.append(
            Number(row, "expansion", float(np.mean(column.rates)), 3, column.published("expansion", "mean", "rate"))
        )
        numbers += [
            Number(row, f"{category} {what}", column.taken[category, what], 3)
            for category in _SHARES
            if (category, "weight") in column.taken
            for what in ("weight", "contribution")
        ]
    titles = {
        "layers": "layers",
        **{name: f"{MEASURES[name].title}, %" for name in BLOCK_MAPS},
        "expansion": "expansion rate",
    }
    for category in _SHARES:
        label = category_style(category).label
        titles |= {f"{category} weight": f"{label}: weight", f"{category} contribution": f"{label}: contribution"}
    return Table(
        "models",
        "Mean mixing ratio, mean expansion rate, and shares by category",
        "2021, table of model sizes",
        tuple(numbers),
        {column.name: column.name for column in columns},
        titles,
        "Shares are of all that a query receives: by weight α, and by contribution ‖αf(x)‖.",
    )


def _picture(columns: Sequence[Column], line: str) -> Picture:
    styles = [numbered_style(column.name, number) for number, column in enumerate(columns)]
    deepest = max(len(column.rates) for column in columns)

    def rates(column: Column) -> np.ndarray:
        return np.array([*column.rates, *[np.nan] * (deepest - len(column.rates))])

    methods = tuple(MEASURES[name].title.replace("ATTN", "") or "·" for name in BLOCK_MAPS)
    names = {"weight": "{}\nα", "contribution": "{}\n‖αf‖", "": ""}
    marks = {"sep": "SEP", "cls": "CLS", "comma_period": ", ."}
    # A place without a value stands between two categories, so that no line joins them.
    keys = [(category, what) for category in _SHARES for what in ("weight", "contribution", "")][:-1]
    panels = [
        Curves(
            "mean mixing ratio", "%",
            tuple(Curve(style, np.array(list(c.ratios.values()))) for style, c in zip(styles, columns, strict=True)),
            places=methods, x="method (ATTN…)",
        ),
        Curves(
            "expansion rate of f", "rate",
            tuple(Curve(style, rates(column)) for style, column in zip(styles, columns, strict=True)), level=1.0,
            places=tuple(str(layer) for layer in range(1, deepest + 1)), x="layer",
        ),
        Curves(
            "share by weight and by contribution", "share",
            tuple(
                Curve(style, np.array([c.taken.get(key, np.nan) for key in keys]))
                for style, c in zip(styles, columns, strict=True)
            ),
            places=tuple(names[what].format(marks[category]) for category, what in keys), x="α: weight, ‖αf‖: contribution",
        ),
    ]  # fmt: skip
    figure = plot_series(panels, (), "", size=(2.6, 1.9), provenance=line)
    caption = (
        "Left: the five methods. Middle: below 1, f shrinks a vector. Right: what special tokens and punctuation take."
    )
    return Picture("models", "Models side by side", "2021", caption, figure)


def _summary(columns: Sequence[Column]) -> str:
    parts = [f"{column.name} {column.ratios['attnresln_n']:.1f} %" for column in columns]
    return "Mean mixing ratio of the whole block (ATTNRESLN-N): " + ", ".join(parts) + "."
