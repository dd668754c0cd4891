"""Build the gallery: pages and pictures from real models, with the numbers that the text quotes.

    python docs/gallery/build.py [--models FOLDER]

The folder holds `minilm`, `opus-mt-en-fr`, `opus-mt-fr-en` and `smollm2` (NORMLENS_REAL_MODELS, or ../models).
Pictures need Chromium and Playwright; pages do not.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import normlens
from normlens.alignment.aligner import Aligner
from normlens.alignment.markup import read_markup, write_markup
from normlens.inputs.tokens import readable_tokens
from normlens.io.writing import write_text
from normlens.plots import plot_maps, save_figure

HERE = Path(__file__).parent
IMAGES = HERE.parent / "images"


@dataclass(frozen=True)
class Example:
    """One model with one text, what to look at in its page, and the numbers that say why."""

    model: str
    title: str
    source: str
    facts: Callable[[normlens.Analysis], str]
    target: str | None = None
    load: dict[str, Any] = field(default_factory=dict)
    pictures: tuple[tuple[str, str, str, str], ...] = ()  # file, view, theme, what it shows


def row_shares(values: np.ndarray) -> np.ndarray:
    return values / values.sum(axis=-1, keepdims=True)


def minilm_facts(analysis: normlens.Analysis) -> str:
    tokens = analysis.site("encoder").query_tokens
    others = range(1, len(tokens))
    weight, attention, whole = (
        row_shares(analysis[name].sel(layer=4).values)[others, 0].mean() for name in ("attn_w", "attn_n", "attnresln_n")
    )
    norms = analysis["f_norm"].sel(layer=4).mean("head").values
    mixing = analysis.mixing_ratio("attnresln_n").mean("query").values
    return (
        f"In layer 4 the other positions put {weight:.0%} of their attention weight on `[CLS]` on average, but it "
        f"brings {attention:.0%} of what attention adds (ATTN-N) and {whole:.1%} of the whole block (ATTNRESLN-N): its "
        f"transformed vectors have a mean norm of {norms[0]:.2f}, those of the others {norms[1:].mean():.2f}. Over the "
        f"six layers, other positions bring between {mixing.min():.0%} and {mixing.max():.0%} of a vector on average "
        f"(mixing ratio, ATTNRESLN-N)."
    )


def translation_facts(analysis: normlens.Analysis) -> str:
    site = analysis.site("cross")
    ends = [i for i, token in enumerate(site.key_tokens) if token == "</s>"]
    weight = row_shares(site["attn_w"].values)[..., ends].sum(-1).mean()
    norm = row_shares(site["attn_n"].values)[..., ends].sum(-1).mean()
    best = site["attn_n"].sel(layer=5).values.argmax(axis=1)
    written = [*site.query_tokens[1:], "(end)"]
    links = [f"{written[i]}–{site.key_tokens[j]}".replace("▁", "") for i, j in enumerate(best)]
    return (
        f"Over all layers, target positions put {weight:.0%} of their weight on the end mark `</s>` and take "
        f"{norm:.0%} of the source's contribution from it. Row maxima of ATTN-N in layer 5, named by the token that "
        f"each target position is about to write: {', '.join(links)}. No alignment was trained."
    )


def language_model_facts(analysis: normlens.Analysis) -> str:
    weights = row_shares(analysis["attn_w"].values)[:, 1:, 0]
    wholes = row_shares(analysis["attnresln_n"].values)[:, 1:, 0]
    layer = int(weights.mean(-1).argmax())
    return (
        f"The first token is an attention sink: averaged over layers, later positions give it {weights.mean():.0%} of "
        f"their weight and take {wholes.mean():.1%} of their output from it; in layer {layer + 1}, where the weight is "
        f"largest, it is {weights[layer].mean():.0%} against {wholes[layer].mean():.1%}. Tokens are shown as text: the "
        f"tokenizer's bytes are decoded."
    )


@dataclass(frozen=True)
class Question:
    """One number of a model that is explained, and its page."""

    model: str
    name: str  # of the page and the figure
    title: str
    text: str
    output: str
    against: str
    load: dict[str, Any] = field(default_factory=dict)
    pictures: tuple[tuple[str, str, str, str], ...] = ()


def explanation_facts(explanation: normlens.Explanation) -> str:
    terms, heads = explanation["tokens"], explanation["heads"]
    order = np.argsort(-np.abs(terms.values))[:3]
    tokens = readable_tokens([str(token) for token in terms["key_token"].values])
    named = ", ".join(f"*{tokens[i]}* (position {i}) {terms.values[i]:+.2f}" for i in order)
    layer, head = np.unravel_index(np.abs(heads.values).argmax(), heads.shape)
    edges = explanation["edges"].values[layer, head]
    query, key = np.unravel_index(np.abs(edges).argmax(), edges.shape)
    return (
        f"The difference of the two logits is {explanation.value:+.2f}, a plain sum over the {terms.sizes['key']} tokens "
        f"and the biases (gap {explanation.proof.gap:.0e}), words measured from zero (`reference=zero`); the largest "
        f"terms are {named}. Most passes through head "
        f"{head + 1} of layer {layer + 1} ({heads.values[layer, head]:+.2f}); its strongest edge leads from *{tokens[key]}* "
        f"(position {key}) to *{tokens[query]}* and carries {edges[query, key]:+.2f}."
    )


QUESTIONS = (
    Question(
        "smollm2",
        "smollm2-explained",
        "Why Mary rather than John? (SmolLM2)",
        "When Mary and John went to the store, John gave a drink to",
        " Mary",
        " John",
        load={"gguf_file": "model.gguf"},
        pictures=(
            ("viewer-explain", "view=explain", "light", "Explain: what each token gave, and through which heads"),
            ("viewer-explain-flow", "view=flow", "dark", "Flow: the exact edges and states of this number"),
        ),
    ),
)


@dataclass(frozen=True)
class Carried:
    """A sentence with markup and its translation, aligned by two models, and its page."""

    model: str
    reverse: str
    name: str  # of the page
    title: str
    source: str
    target: str
    pictures: tuple[tuple[str, str, str, str], ...] = ()


CARRIED = Carried(
    "opus-mt-en-fr",
    "opus-mt-fr-en",
    "marks",
    "Markup carried across (OPUS-MT, both directions)",
    "I do <i>not</i> <b>know</b> whether the <a href='#'>European <em>Commission</em></a> will answer<br/> <u>tomorrow</u>.",
    "Je ne sais pas si la Commission européenne répondra demain.",
    pictures=(("viewer-marks", "", "light", "Alignment: markup in the source, and where it was carried"),),
)

#: Edges are asked for by name: they are large, and the flow is drawn from them.
PARTS = ["states", "edges", "heads", "blocks", "direct", "biases"]

EXAMPLES = (
    Example(
        "minilm",
        "A sentence encoder (MiniLM, 6 layers)",
        "She forgot her umbrella, so she waited under the old bridge until the rain stopped.",
        minilm_facts,
        pictures=(
            ("viewer-compare", "layer=4&query=10", "light", "Compare: weight against contribution for one token"),
            (
                "viewer-matrix",
                "layer=4&draw=matrix&curve=sqrt",
                "light",
                "Compare as matrices, own part faded, square-root scale",
            ),
            ("viewer-overview", "view=overview", "dark", "Overview: every layer and head"),
            ("viewer-mixing", "view=mixing", "light", "Mixing: what each layer takes from elsewhere"),
            ("viewer-flow", "view=flow&query=4", "light", "Flow: from one output back to the inputs"),
        ),
    ),
    Example(
        "opus-mt-fr-en",
        "A translation model (OPUS-MT French to English)",
        "Le petit chat noir dort sur la vieille chaise près de la fenêtre.",
        translation_facts,
        target="The little black cat sleeps on the old chair by the window.",
        pictures=(
            (
                "viewer-alignment",
                "view=alignment",
                "light",
                "Alignment: the links that align takes from this pair",
            ),
        ),
    ),
    Example(
        "smollm2",
        "A language model (SmolLM2, 30 layers)",
        "My grandmother planted the cherry tree that still blooms beside the kitchen window.",
        language_model_facts,
        load={"gguf_file": "model.gguf"},
        pictures=(
            (
                "viewer-language-model",
                "layer=16&query=8",
                "dark",
                "Compare: weight and contribution of the first token",
            ),
            ("viewer-flow-deep", "view=flow&query=8", "dark", "Flow through 30 layers"),
        ),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("NORMLENS_REAL_MODELS", str(HERE.parents[2] / "models"))
    parser.add_argument("--models", type=Path, default=Path(default))
    folder = parser.parse_args().models
    IMAGES.mkdir(exist_ok=True)
    parts = [
        "# Gallery\n",
        "Real models, one page each. A page is one file that opens offline: download it and open it in a browser.\n"
        "Everything here, the numbers in the text included, is written by `python docs/gallery/build.py`.\n",
    ]
    for example in EXAMPLES:
        lens = normlens.load(folder / example.model, **example.load)
        analysis = lens.analyze(example.source, target=example.target)
        page = analysis.save_html(HERE / f"{example.model}.html")
        said = example.source + (f" → {example.target}" if example.target else "")
        parts.append(f"## {example.title}\n\n*{said}*\n\n[{page.name}]({page.name}) · {analysis.provenance_line()}\n")
        parts.append(example.facts(analysis) + "\n")
        parts += [f"![{caption}](../images/{name}.png)\n\n{caption}.\n" for name, _, _, caption in example.pictures]
        photograph(page, example.pictures)
        if example.target is not None:
            parts += carried_marks(CARRIED, folder)
    for question in QUESTIONS:
        lens = normlens.load(folder / question.model, **question.load)
        explanation = lens.explain(
            question.text, output=question.output, against=question.against, parts=PARTS, baseline="zero"
        )
        page = explanation.save_html(HERE / f"{question.name}.html")
        save_figure(explanation.plot(), IMAGES / question.name)
        asked = f"*{question.text}* … `{question.output}` rather than `{question.against}`"
        parts.append(f"## {question.title}\n\n{asked}\n\n[{page.name}]({page.name})\n")
        parts.append(explanation_facts(explanation) + "\n")
        parts += [f"![{caption}](../images/{name}.png)\n\n{caption}.\n" for name, _, _, caption in question.pictures]
        parts.append(f"![As a figure](../images/{question.name}.png)\n\nThe same as `explanation.plot()`.\n")
        photograph(page, question.pictures)
    write_text(HERE / "README.md", "\n".join(parts))
    save_figure(maps_of_a_pair(), IMAGES / "maps")
    (IMAGES / "maps.svg").unlink()


def carried_marks(carried: Carried, folder: Path) -> list[str]:
    aligner = Aligner(folder / carried.model, folder / carried.reverse)
    marked = read_markup(carried.source, "html")
    page = aligner.save_html(HERE / f"{carried.name}.html", marked, carried.target)
    (found,) = aligner.project([(marked, carried.target)])
    scores = ", ".join(f"`{piece.mark.opening}` {piece.score:.2f}" for piece in found.walk())
    photograph(page, carried.pictures)
    return [
        f"## {carried.title}\n\n[{page.name}]({page.name}) · {aligner.signature()}\n",
        f"```\n{carried.source}\n{write_markup(found, 'html')}\n```\n\nScores: {scores}.\n",
        *(f"![{caption}](../images/{name}.png)\n\n{caption}.\n" for name, _, _, caption in carried.pictures),
    ]


def maps_of_a_pair() -> Figure:
    """The picture that README opens with: the embedded model, three layers."""
    analysis = normlens.load().analyze("The man went to the store.", pair="He bought a gallon of milk.")
    return plot_maps(
        analysis.sites["encoder"], layers=[1, 3, 5], diagonal="faded", provenance=analysis.provenance_line()
    )


def photograph(page: Path, pictures: tuple[tuple[str, str, str, str], ...]) -> None:
    """Pictures of the page's views, as tall as the view is."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, view, theme, _ in pictures:
            context = browser.new_context(viewport={"width": 1240, "height": 400}, color_scheme=theme)
            tab = context.new_page()
            tab.goto(f"{page.resolve().as_uri()}#{view}")
            tab.wait_for_selector("svg[data-complete]" if "overview" in view else ".view > *")
            tab.wait_for_timeout(300)
            tab.screenshot(path=IMAGES / f"{name}.png", full_page=True)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
