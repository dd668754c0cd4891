"""What a tagger's label hangs on: how much of a method's AOPC is owed to putting the labelled token itself first.

    python -m benchmarks.own_token ../models/bert-base-ner

Tokens are masked, the most important first (DecompX's shares), on the sentences of `benchmarks.faithful`. Three orders for
each method: its own; the labelled token first, then its own; and its own with the labelled token never taken away, which
asks about the context alone. `labelled first`: how often the method puts the labelled token first by itself.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

import normlens
from benchmarks.faithful import DATA, PLANS
from normlens.faithfulness.erasure import removable, without
from normlens.faithfulness.items import Item, probabilities
from normlens.faithfulness.methods import METHODS, scores
from normlens.faithfulness.protocols import DECOMPX_SHARES
from normlens.faithfulness.ranking import order
from normlens.faithfulness.samples import read_texts
from normlens.lens import Lens

PLAN = next(plan for plan in PLANS if plan.model == "bert-base-ner")


def aopc(lens: Lens, item: Item, ranked: Sequence[int]) -> float:
    """Mean drop of the label's probability when the first 0 to 90 % of these tokens are masked."""
    counts = [math.ceil(round(share * len(ranked), 9)) for share in DECOMPX_SHARES]
    texts = [without(lens, item, frozenset(ranked[:count]), "mask") for count in counts]
    chances = probabilities(lens, texts)
    return float((chances[0] - chances).mean())


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    lens = normlens.load(given.model)
    assert PLAN.texts is not None
    items = read_texts(lens, DATA / PLAN.texts, limit=PLAN.limit).items
    print(f"{len(items)} sentences\n")
    head = "| method | AOPC, top | the labelled token first | context alone | labelled first |"
    print(head, "|---|---|---|---|---|", sep="\n")
    for name in METHODS:
        if name in PLAN.left_out:
            continue
        found, firsts = [], []
        for item, numbers in zip(items, scores(lens, items, name), strict=True):
            assert item.position is not None
            ranked = order(numbers, removable(lens, item, "mask"))
            context = [place for place in ranked if place != item.position]
            firsts.append(ranked[0] == item.position)
            found.append([aopc(lens, item, o) for o in (ranked, [item.position, *context], context)])
        cells = " | ".join(f"{value:.3f}" for value in np.mean(found, axis=0))
        print(f"| `{name}` | {cells} | {np.mean(firsts):.0%} |", flush=True)


if __name__ == "__main__":
    main()
