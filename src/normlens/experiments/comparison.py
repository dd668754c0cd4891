"""Several models side by side: mixing ratios, expansion rates and category shares (2021, the table of model sizes)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from normlens.corpus.plan import MIXING
from normlens.experiments import kobayashi2021
from normlens.experiments.outcome import Number, Outcome, Picture, Table
from normlens.experiments.published import Shelf
from normlens.experiments.reading import PAIR_CATEGORIES, present, shares, whole
from normlens.experiments.setup import MASKED, Setup
from normlens.measures import MAPS
from normlens.plots.categories import category_look, cycled
from normlens.plots.labels import label_of
from normlens.plots.series import Curve, Curves, plot_series

NAME = "compare"
_SHARES = ("sep", "cls", "comma_period")


@dataclass(frozen=True)
class Column:
    """What one model gave."""

    name: str
    record: dict[str, object]
    ratios: dict[str, float]  # per cent
    rates: tuple[float, ...]
    taken: dict[tuple[str, str], float]  # (category, weight or contribution) -> share
    shelf: Shelf


def measure(setup: Setup) -> Column:
    """Two passes and the weights of one model."""
    masked = setup.run("masked", measures=(), mixing=None, mask=MASKED, ranked=False)
    plain = setup.run("unmasked", measures=("alpha", "f_norm", "af_norm"), mixing=(), mask=0.0, ranked=False)
    record = setup.record([masked, plain])
    rates = kobayashi2021.expansion(setup, Shelf(kobayashi2021.NAME, None, None))
    variant = setup.definition if setup.definition in rates.columns else next(iter(rates.columns))
    categories = present(plain, PAIR_CATEGORIES)
    taken: dict[tuple[str, str], float] = {}
    for what, quantity in (("weight", "alpha"), ("contribution", "af_norm")):
        means = shares(plain, quantity, categories).mean(axis=1)
        taken |= {(category, what): float(mean) for category, mean in zip(categories, means, strict=True)}
    return Column(
        str(record["model"]["name"]),
        record,
        {measure: 100 * whole(masked, MIXING + measure, "all", "mean") for measure in MAPS},
        tuple(rates.value(row, variant) for row in rates.rows if row.startswith("layer ")),
        taken,
        Shelf.of(kobayashi2021.NAME, setup, record),
    )


def compare(models: Sequence[str], setup_of: Callable[[str], Setup]) -> Outcome:
    """Measure the models one after the other, so that only one is in memory, and set them side by side."""
    measured = [measure(setup_of(model)) for model in models]
    names = _distinct([column.name for column in measured])
    columns = [dataclasses.replace(column, name=name) for column, name in zip(measured, names, strict=True)]
    first = dict(columns[0].record)
    joined = ", ".join(names)
    first["model"] = {"name": joined, "class": "several", "dtype": "each its own", "content": "see results.json"}
    first["models"] = [column.record["model"] for column in columns]
    first["tokens"] = sum(int(column.record["tokens"]) for column in columns)  # type: ignore[call-overload]
    first["worst_proof"] = max(float(column.record["worst_proof"]) for column in columns)  # type: ignore[arg-type]
    first["masked_share"] = MASKED
    line = f"{joined} · {first['data']}, {first['sequences']} sequences"
    return Outcome(
        NAME,
        "Models side by side: how much they mix, how much f stretches, what special tokens take",
        "kobayashi2021",
        first,
        _summary(columns),
        (),
        (_table(columns),),
        (_picture(columns, line),),
        ("Mixing ratios are on masked input, category shares on unmasked input, expansion rates from the weights.",),
        tuple(title for column in columns for title in column.shelf.titles()),
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
            Number(row, name, value, 1, column.shelf("mixing", name, "mean")) for name, value in column.ratios.items()
        ]
        numbers.append(
            Number(row, "expansion", float(np.mean(column.rates)), 3, column.shelf("expansion", "mean", "rate"))
        )
        numbers += [
            Number(row, f"{category} {what}", column.taken[category, what], 3)
            for category in _SHARES
            if (category, "weight") in column.taken
            for what in ("weight", "contribution")
        ]
    titles = {"layers": "layers", **{name: f"{label_of(name).name}, %" for name in MAPS}, "expansion": "expansion rate"}
    for category in _SHARES:
        label = category_look(category).label
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
    looks = [cycled(column.name, number) for number, column in enumerate(columns)]
    deepest = max(len(column.rates) for column in columns)

    def rates(column: Column) -> np.ndarray:
        return np.array([*column.rates, *[np.nan] * (deepest - len(column.rates))])

    methods = tuple(label_of(name).name.replace("ATTN", "") or "·" for name in MAPS)
    names = {"weight": "{}\nα", "contribution": "{}\n‖αf‖", "": ""}
    marks = {"sep": "SEP", "cls": "CLS", "comma_period": ", ."}
    # A place without a value stands between two categories, so that no line joins them.
    keys = [(category, what) for category in _SHARES for what in ("weight", "contribution", "")][:-1]
    panels = [
        Curves(
            "mean mixing ratio", "%",
            tuple(Curve(look, np.array(list(c.ratios.values()))) for look, c in zip(looks, columns, strict=True)),
            places=methods, x="method (ATTN…)",
        ),
        Curves(
            "expansion rate of f", "rate",
            tuple(Curve(look, rates(column)) for look, column in zip(looks, columns, strict=True)), level=1.0,
            places=tuple(str(layer) for layer in range(1, deepest + 1)), x="layer",
        ),
        Curves(
            "share by weight and by contribution", "share",
            tuple(
                Curve(look, np.array([c.taken.get(key, np.nan) for key in keys]))
                for look, c in zip(looks, columns, strict=True)
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
