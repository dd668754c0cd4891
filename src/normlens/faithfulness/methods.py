"""The table of attribution methods: name, equation, paper, cost, and what each cannot see.

Every method answers the same question: how much did each token of a text give to one number of the model's output? A method
of your own is a function and one entry:

>>> import numpy as np
>>> from normlens import Lens
>>> from normlens.faithfulness.items import Item
>>> from normlens.faithfulness.methods import METHODS, Method, scores
>>> from normlens.families.tiny import tiny_model
>>> def recency(lens, items):
...     return [1.0 / np.arange(len(item.ids), 0, -1) for item in items]
>>> METHODS["recency"] = Method("recency", "later is more", "1 / (n - k)", "", "nothing", "the text", recency)
>>> lens = Lens(tiny_model("gpt2"))
>>> scores(lens, [Item(ids=(7, 8, 9, 10), output=3, position=3)], "recency")[0].round(2).tolist()
[0.25, 0.33, 0.5, 1.0]
>>> del METHODS["recency"]
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.types import Json, JsonMapping

if TYPE_CHECKING:  # the table itself needs no torch: `normlens methods` prints it at once
    import numpy as np

    from normlens.faithfulness.items import Item
    from normlens.lens import Lens

    Scores = Sequence[np.ndarray]
    Function = Callable[..., Scores]


@dataclass(frozen=True)
class Method:
    """One attribution method.

    Args:
        name: Its name on the command line and in tables.
        title: Its name in figures.
        equation: What it computes for token k.
        paper: Who proposed it.
        cost: In forward and backward passes.
        blind: What it cannot see.
        function: Called as `function(lens, items, **settings)`; returns one array per item.
        settings: Its own choices; they are part of every record of the method.
        signed: Whether a term may speak against the output.
        complete: Whether the terms and biases add up to the number.
        error: Called as `error(lens, items, scores)`; returns how far the terms of each item are from adding up.
    """

    name: str
    title: str
    equation: str
    paper: str
    cost: str
    blind: str
    function: Function
    settings: JsonMapping = field(default_factory=dict)
    signed: bool = True
    complete: bool = False
    error: Function | None = None

    def scores(self, lens: Lens, items: Sequence[Item]) -> list[np.ndarray]:
        """Return one number for each token of each item, in double precision."""
        import numpy as np

        from normlens.faithfulness.items import check_items, check_model

        check_model(lens)
        check_items(lens, items)
        scores = []
        with lens.traced.named_errors():
            for terms in self.function(lens, items, **self.settings):
                scores.append(np.asarray(terms, dtype=np.float64))
        if len(scores) != len(items):
            raise InputError(f"method {self.name!r} returned {len(scores)} arrays for {len(items)} items")
        for item, terms in zip(items, scores, strict=True):
            if terms.shape != (len(item.ids),) or not np.isfinite(terms).all():
                raise InputError(
                    f"method {self.name!r} must return one finite number for each token, got shape {terms.shape} with "
                    f"{int(np.isfinite(terms).sum())} finite numbers for {len(item.ids)} tokens"
                )
        return scores

    def to_dict(self) -> Json:
        """Return every fact about the method as plain JSON values."""
        names = ("name", "title", "equation", "paper", "cost", "blind", "signed", "complete")
        return {name: getattr(self, name) for name in names} | {"settings": dict(self.settings)}


def scores(lens: Lens, items: Sequence[Item], method: str | Method) -> list[np.ndarray]:
    """Return one number for each token of each item, by a method or its name."""
    if isinstance(method, str):
        method = find_methods([method])[0]
    return method.scores(lens, items)


def find_methods(names: Iterable[str]) -> list[Method]:
    """Return methods by their names."""
    methods = []
    for name in names:
        if name not in METHODS:
            raise InputError(f"a method must be one of {', '.join(METHODS)}, got {name!r}")
        methods.append(METHODS[name])
    return methods


# ---- functions, each of which imports what it needs when it runs -----------------------------------------------------


def _explained(lens: Lens, items: Sequence[Item], **settings: Any) -> Scores:
    """The terms of `explain`."""
    from normlens.faithfulness.items import in_batches, inputs_of

    def answer(rows: Sequence[Item]) -> Scores:
        explanations = lens.explain_inputs(
            inputs_of(lens, rows),
            output=[item.output for item in rows],
            against=_all(item.against for item in rows),
            position=_all(item.position for item in rows),
            parts=["tokens"],
            **settings,
        )
        return [explanation["tokens"].values for explanation in explanations]

    return in_batches(items, answer)


def _all(values: Iterable[int | None]) -> list[int] | None:
    """One value for each item, or None where no item has one."""
    everything = list(values)
    known = [value for value in everything if value is not None]
    if known and len(known) < len(everything):
        raise InputError("either all items of a call have a position (or `against`), or none has")
    return known or None


def _map_row(lens: Lens, items: Sequence[Item], *, map: str, rollout: bool, normalize: bool = True) -> Scores:
    """A row of a map, of the last layer or rolled out through all layers: that of the explained position.

    A classifier of whole texts is read where its head reads: at the first position of an encoder, the last of a decoder.
    """
    from normlens.faithfulness.items import in_batches, inputs_of

    default = 0 if lens.anatomy.kinds == ("encoder",) else -1

    def answer(rows: Sequence[Item]) -> Iterator[np.ndarray]:
        analyses = lens.analyze_inputs(inputs_of(lens, rows), measures=[map])
        for item, analysis in zip(rows, analyses, strict=True):
            maps = analysis.rollout(map, normalize=normalize) if rollout else analysis[map]
            position = default if item.position is None else item.position
            yield maps.isel(layer=-1, query=position).values

    return in_batches(items, answer)


def _imported(path: str) -> Function:
    """The function `module:name` of this package, imported when it is called."""
    module, name = path.split(":")

    def function(*args: Any, **settings: Any) -> Scores:
        result: Scores = getattr(importlib.import_module(f"normlens.faithfulness.{module}"), name)(*args, **settings)
        return result

    return function


def _random(lens: Lens, items: Sequence[Item]) -> Scores:
    import numpy as np

    return [np.random.default_rng(item.seed).normal(size=len(item.ids)) for item in items]


_ONE_PASS = "one forward and one backward pass"

_ENTRIES = (
    Method(
        "fixed",
        "explain, attention held",
        "(w_k - mean word) · ∂value/∂w_k through the frozen map",
        "normlens; slopes as in Modarressi et al. 2023 and Kobayashi et al. 2024",
        _ONE_PASS,
        "why a position was looked at; what any word there would have given",
        _explained,
        {"attention": "fixed"},
        complete=True,
    ),
    Method(
        "fixed_zero",
        "explain, attention held, from zero",
        "x_k · ∂value/∂x_k through the frozen map",
        "as Modarressi et al. 2023 (DecompX), biases apart",
        _ONE_PASS,
        "why a position was looked at; that any first token would have been a sink",
        _explained,
        {"attention": "fixed", "baseline": "zero"},
        complete=True,
    ),
    Method(
        "integrated",
        "explain, attention as a part",
        "(w_k - mean word) · ∂value/∂w_k, softmax(S) V integrated along (tS, tV)",
        "normlens; Sundararajan et al. 2017 for each product",
        f"{_ONE_PASS} with a quadrature in each attention",
        "interactions of tokens in one term",
        _explained,
        {"attention": "integrated"},
        complete=True,
    ),
    Method(
        "decompx",
        "DecompX",
        "vectors of all tokens carried through the frozen map; each bias shared by |part · bias|",
        "Modarressi et al. 2023, as released",
        "two forward passes with a row for each token",
        "why a position was looked at; that a bias belongs to no token",
        _imported("released:decompx"),
        complete=True,
    ),
    Method(
        "gradient_x_input",
        "gradient x input",
        "x_k · ∂value/∂x_k at the word vectors",
        "Shrikumar et al. 2017; Denil et al. 2014",
        _ONE_PASS,
        "what is saturated; everything, where word vectors enter a normalization (DeBERTa)",
        _imported("gradients:gradient_x_input"),
        {"at": "words"},
    ),
    Method(
        "gradient_x_state",
        "gradient x first state",
        "x_k · ∂value/∂x_k at the vectors that enter the first layer",
        "as above",
        _ONE_PASS,
        "what is saturated; its terms add up to nothing",
        _imported("gradients:gradient_x_input"),
        {"at": "states"},
    ),
    Method(
        "integrated_gradients",
        "integrated gradients",
        "x_k · ∫₀¹ ∂value(t x)/∂x_k dt at the word vectors, from zero",
        "Sundararajan et al. 2017",
        "10, 30 or 90 forward and backward passes, until the terms add up within 1 %",
        "a path through inputs that no text has",
        _imported("gradients:integrated_gradients"),
        {"at": "words"},
        error=_imported("gradients:completeness_error"),
    ),
    Method(
        "integrated_gradients_state",
        "integrated gradients, first states",
        "x_k · ∫₀¹ ∂value(t x)/∂x_k dt at the vectors that enter the first layer, from zero",
        "as above",
        "10, 30 or 90 forward and backward passes, until the terms add up within 1 %",
        "a path through states that no text has",
        _imported("gradients:integrated_gradients"),
        {"at": "states"},
        error=_imported("gradients:completeness_error"),
    ),
    Method(
        "smoothgrad",
        "SmoothGrad x input",
        "x_k · mean of ∂value(x + noise)/∂x_k, 10 samples",
        "Smilkov et al. 2017",
        "10 forward and backward passes",
        "what noise of 15 % of the range drowns",
        _imported("gradients:smoothgrad"),
        {"at": "words"},
    ),
    Method(
        "erasure",
        "erasure (leave one out)",
        "value - value without token k",
        "Li et al. 2016",
        "one forward pass for each token",
        "interactions: what two tokens say alike, none of them says",
        _imported("erasure:erasure"),
    ),
    Method(
        "attention",
        "attention weights",
        "mean over heads of α, last layer",
        "Bahdanau et al. 2015",
        "one forward pass",
        "the vectors that are weighted, all layers but one, the output asked for",
        _map_row,
        {"map": "attn_w", "rollout": False},
        signed=False,
    ),
    Method(
        "rollout",
        "attention rollout",
        "product over layers of ½ α + ½ I",
        "Abnar and Zuidema 2020",
        "one forward pass",
        "the vectors that are weighted, the output asked for",
        _map_row,
        {"map": "attnres_w", "rollout": True, "normalize": True},
        signed=False,
    ),
    Method(
        "globenc",
        "GlobEnc",
        "product over layers of ‖LN₂(LN₁(Σ α f + x))‖, rows not divided by their sums",
        "Modarressi et al. 2022, as released",
        "one forward pass and norms",
        "the feed-forward blocks, signs, the output asked for",
        _map_row,
        {"map": "enc_n", "rollout": True, "normalize": False},
        signed=False,
    ),
    Method(
        "alti",
        "ALTI",
        "rollout of max(0, ‖y‖₁ - ‖y - part_j‖₁), rows divided by their sums",
        "Ferrando et al. 2022",
        "one forward pass and distances",
        "the feed-forward blocks, signs, the output asked for",
        _map_row,
        {"map": "alti", "rollout": True, "normalize": True},
        signed=False,
    ),
    Method(
        "alti_logit",
        "ALTI-Logit",
        "Σ over layers of what attention to j gives directly to the number, followed to the tokens by ALTI",
        "Ferrando et al. 2023, as released",
        "two forward passes and one backward pass",
        "the feed-forward blocks, and what goes through later layers",
        _imported("released:alti_logit"),
    ),
    Method(
        "random",
        "random",
        "normal numbers, seeded by the text",
        "",
        "nothing",
        "everything: the floor that a method must clear",
        _random,
    ),
)

#: The methods by name, in the order in which they are shown; add your own here.
METHODS: dict[str, Method] = {method.name: method for method in _ENTRIES}
