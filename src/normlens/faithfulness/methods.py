"""The table of methods: what each one is called, what it means, where it comes from, what it costs, what it cannot see.

Every method answers the same question: how much did each token of a text give to one number of the model's output? A method
of one's own is a function and one entry:

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from normlens.errors import InputError

if TYPE_CHECKING:  # the table itself needs no torch: `normlens methods` prints it at once
    import numpy as np

    from normlens.faithfulness.items import Item
    from normlens.lens import Lens

    Scores = Sequence[np.ndarray]
    Function = Callable[[Lens, Sequence[Item]], Scores]


@dataclass(frozen=True)
class Method:
    """One way to say how much each token gave.

    `signed`: whether a term may speak against the output; `complete`: whether the terms and biases add up to the number.
    """

    name: str
    title: str
    equation: str
    paper: str
    cost: str
    blind: str  # what it cannot see
    function: Function
    signed: bool = True
    complete: bool = False

    def scores(self, lens: Lens, items: Sequence[Item]) -> list[np.ndarray]:
        """One number for each token of each item, in double precision."""
        import numpy as np

        from normlens.faithfulness.items import check_model

        check_model(lens)
        found = [np.asarray(given, dtype=np.float64) for given in self.function(lens, items)]
        if len(found) != len(items):
            raise InputError(
                f"a method answers every item: {self.name!r} gave {len(found)} answers for {len(items)} items"
            )
        for item, given in zip(items, found, strict=True):
            if given.shape != (len(item.ids),) or not np.isfinite(given).all():
                raise InputError(
                    f"a method gives one finite number for each token: {self.name!r} gave {given.size} of shape "
                    f"{given.shape}, {int(np.isfinite(given).sum())} of them finite, for {len(item.ids)} tokens"
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        names = ("name", "title", "equation", "paper", "cost", "blind", "signed", "complete")
        return {name: getattr(self, name) for name in names}


def scores(lens: Lens, items: Sequence[Item], method: str | Method) -> list[np.ndarray]:
    """One number for each token of each item, by a method or its name."""
    return (method if isinstance(method, Method) else find_methods([method])[0]).scores(lens, items)


def find_methods(names: Iterable[str]) -> list[Method]:
    """Methods by their names."""
    wanted = list(names)
    unknown = [name for name in wanted if name not in METHODS]
    if unknown:
        raise InputError(f"a method is one of {', '.join(METHODS)}: got {', '.join(map(repr, unknown))}")
    return [METHODS[name] for name in wanted]


# ---- functions, each of which imports what it needs when it runs -----------------------------------------------------


def _explained(**settings: Any) -> Function:
    """The terms of `explain`."""

    def function(lens: Lens, items: Sequence[Item]) -> Scores:
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

    return function


def _all(given: Iterable[int | None]) -> list[int] | None:
    """One for each item, or nothing for any."""
    found = list(given)
    asked = [x for x in found if x is not None]
    if asked and len(asked) < len(found):
        raise InputError("items that are asked together all have a position, or `against`, or none of them has")
    return asked or None


def _rolled(name: str, *, last: bool = False) -> Function:
    """A row of a map, of the last layer or rolled out through all of them: that of the position that is asked.

    A classifier of whole texts is read where its head reads: at the first position of an encoder, the last of a decoder.
    """

    def function(lens: Lens, items: Sequence[Item]) -> Scores:
        from normlens.faithfulness.items import in_batches, inputs_of

        reading = 0 if lens.anatomy.kinds == ("encoder",) else -1

        def answer(rows: Sequence[Item]) -> Iterator[np.ndarray]:
            for item, analysis in zip(rows, lens.analyze_inputs(inputs_of(lens, rows), measures=[name]), strict=True):
                maps = analysis[name] if last else analysis.rollout(name)
                row = reading if item.position is None else item.position
                yield maps.isel(layer=-1, query=row).values

        return in_batches(items, answer)

    return function


def _of(module: Literal["gradients", "erasure"], name: str) -> Function:
    """A function of a module of this room."""

    def function(lens: Lens, items: Sequence[Item]) -> Scores:
        import importlib

        result: Scores = getattr(importlib.import_module(f"normlens.faithfulness.{module}"), name)(lens, items)
        return result

    return function


def _random(lens: Lens, items: Sequence[Item]) -> Scores:
    import numpy as np

    return [np.random.default_rng(item.seed).normal(size=len(item.ids)) for item in items]


#: The methods by name, in the order in which they are shown; one's own may be added.
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "fixed",
            "explain, attention held",
            "(w_k - mean word) · ∂value/∂w_k through the frozen map",
            "normlens; slopes as in Modarressi et al. 2023 and Kobayashi et al. 2024",
            "one forward and one backward pass",
            "why a position was looked at; what any word there would have given",
            _explained(attention="fixed"),
            complete=True,
        ),
        Method(
            "fixed_zero",
            "explain, attention held, from zero",
            "x_k · ∂value/∂x_k through the frozen map",
            "as Modarressi et al. 2023 (DecompX), biases apart",
            "one forward and one backward pass",
            "why a position was looked at; that any first token would have been a sink",
            _explained(attention="fixed", baseline="zero"),
            complete=True,
        ),
        Method(
            "integrated",
            "explain, attention as a part",
            "(w_k - mean word) · ∂value/∂w_k, softmax(S) V integrated along (tS, tV)",
            "normlens; Sundararajan et al. 2017 for each product",
            "one forward and one backward pass with a quadrature in each attention",
            "interactions of tokens in one term",
            _explained(attention="integrated"),
            complete=True,
        ),
        Method(
            "gradient_x_input",
            "gradient x input",
            "x_k · ∂value/∂x_k at the word vectors",
            "Shrikumar et al. 2017; Denil et al. 2014",
            "one forward and one backward pass",
            "what is saturated; its terms add up to nothing",
            _of("gradients", "gradient_x_input"),
        ),
        Method(
            "integrated_gradients",
            "integrated gradients",
            "x_k · ∫₀¹ ∂value(t x)/∂x_k dt, 10 steps from zero",
            "Sundararajan et al. 2017",
            "10 forward and backward passes",
            "what 10 steps miss of a path through inputs that no text has",
            _of("gradients", "integrated_gradients"),
        ),
        Method(
            "smoothgrad",
            "SmoothGrad x input",
            "x_k · mean of ∂value(x + noise)/∂x_k, 10 samples",
            "Smilkov et al. 2017",
            "10 forward and backward passes",
            "what noise of 15 % of the range drowns",
            _of("gradients", "smoothgrad"),
        ),
        Method(
            "erasure",
            "erasure (leave one out)",
            "value - value without token k",
            "Li et al. 2016",
            "one forward pass for each token",
            "interactions: what two tokens say alike, none of them says",
            _of("erasure", "erasure"),
        ),
        Method(
            "attention",
            "attention weights",
            "mean over heads of α, last layer",
            "Bahdanau et al. 2015",
            "one forward pass",
            "the vectors that are weighted, all layers but one, the output asked for",
            _rolled("attn_w", last=True),
            signed=False,
        ),
        Method(
            "rollout",
            "attention rollout",
            "product over layers of ½ α + ½ I",
            "Abnar and Zuidema 2020",
            "one forward pass",
            "the vectors that are weighted, the output asked for",
            _rolled("attnres_w"),
            signed=False,
        ),
        Method(
            "globenc",
            "GlobEnc",
            "rollout of ‖LN₂(LN₁(Σ α f + x))‖",
            "Modarressi et al. 2022",
            "one forward pass and norms",
            "the feed-forward blocks, signs, the output asked for",
            _rolled("enc_n"),
            signed=False,
        ),
        Method(
            "alti",
            "ALTI",
            "rollout of max(0, ‖y‖₁ - ‖y - part_j‖₁)",
            "Ferrando et al. 2022",
            "one forward pass and distances",
            "the feed-forward blocks, signs, the output asked for",
            _rolled("alti"),
            signed=False,
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
}
