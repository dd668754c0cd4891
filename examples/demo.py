"""What `make demo` runs: one sentence pair through the embedded model; tables, pictures, what they show, and a page."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from normlens.cli.commands.analyze import write_files
from normlens.cli.options import open_lens
from normlens.cli.terminal import console
from normlens.inputs.tokens import readable
from normlens.io.writing import writable_folder
from normlens.measures.table import BLOCK_MAPS
from normlens.plots import plot_maps, save_figure
from normlens.results.analysis import Analysis

TEXT = "The man went to the store."
PAIR = "He bought a gallon of milk."


def in_words(analysis: Analysis) -> tuple[str, int]:
    """Return what a reader should see in the pictures, from the numbers of this run, and the layer that it is about."""
    mixed = {name: 100 * float(analysis.mixing_ratio(name).mean()) for name in BLOCK_MAPS}
    weight, whole = analysis["attn_w"].values.copy(), analysis["attnresln_n"].values
    share = 100 * whole / whole.sum(-1, keepdims=True)
    itself = np.arange(whole.shape[1])
    weight[:, itself, itself] = 0
    layer, query, key = np.unravel_index(np.argmax(weight), weight.shape)
    own, others, rest = whole[:, itself, itself], share.copy(), whole.copy()
    others[:, itself, itself] = rest[:, itself, itself] = 0
    pulled = np.unravel_index(np.argmax(others), others.shape)
    tokens = [readable(str(token)) for token in analysis["attnresln_n"]["query_token"].values]
    by_layer = 100 * analysis.mixing_ratio("attnresln_n").mean("query").values
    words = f"""Judged by attention weights, {mixed["attn_w"]:.0f} % of what a token becomes in a layer comes from others.
Measured by the vectors that really arrive it is {mixed["attn_n"]:.0f} % of the attention output,
{mixed["attnres_n"]:.0f} % once the residual connection is counted, {mixed["attnresln_n"]:.0f} % after layer normalization:
most of each token is itself, carried along. In maps.png that part is the grey diagonal, outside the blue scale:
in the right column it is {own.mean():.1f} on average, where another token gives {rest[rest > 0].mean():.1f}.
By layer that share runs from {by_layer.min():.0f} to {by_layer.max():.0f} %.

The largest attention weight between two tokens is in layer {layer + 1}:
“{tokens[query]}” puts {100 * weight[layer, query, key]:.0f} % on “{tokens[key]}”,
but only {share[layer, query, key]:.1f} % of it comes from there: a large weight on a small vector.
The largest contribution is in layer {pulled[0] + 1}:
“{tokens[pulled[1]]}” takes {others[pulled]:.0f} % from “{tokens[pulled[2]]}”.

It is exact: parts, residual and biases add up to the model's own vectors
(worst relative error {analysis.max_proof_error:.0e})."""
    return words, int(layer) + 1


def main() -> None:
    """Analyse, print, draw, explain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--picture", type=Path, help="only draw the picture of the README to this path")
    arguments = parser.parse_args()
    if arguments.picture is not None:
        analysis = open_lens(None).analyze(TEXT, pair=PAIR)
        dataset = analysis.sites["encoder"]
        figure = plot_maps(dataset, layers=[1, 3, 5], diagonal="faded", provenance=analysis.provenance_line())
        save_figure(figure, arguments.picture)
        return
    folder = writable_folder(arguments.out)
    analysis = open_lens(None).analyze(TEXT, pair=PAIR)
    console().print(analysis)
    files = write_files(analysis, folder, overwrite=True)
    words, layer = in_words(analysis)
    print(f"\nWhat you see\n------------\n{words}\n\nPictures and data:")
    for file in files:
        print(f"  {file}")
    page = analysis.save_html(folder / "view.html")
    print(
        f"\nNow look around: open this page in a browser (it needs no network)\n  {page.resolve().as_uri()}#layer={layer}"
    )


if __name__ == "__main__":
    main()
