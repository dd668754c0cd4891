"""Is the evidence of a file evidence to the model? The first word replaced by others, and what each method gives it.

    python -m benchmarks.first_word ../models/smollm2 evidence/npi_present_1.csv

In the negative-polarity file the word that is said to decide (*Even*) is always the first. If it decides, the right word's
margin over the wrong one must fall when another word stands there: that is the effect with which the methods are compared.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
import transformers

import normlens
from normlens.faithfulness.items import Item, values
from normlens.faithfulness.methods import scores
from normlens.faithfulness.ranking import reciprocal_rank
from normlens.faithfulness.samples import BAD, GOOD, PREFIX
from normlens.lens import Lens
from normlens.statistics import spearman

#: Words that neither allow nor forbid what follows, and the one that does allow it.
NEUTRAL = ("Perhaps", "So", "Then", "Today", "Here", "But", "Maybe", "And")
LICENSES = "Only"
METHODS = ("fixed", "fixed_zero", "gradient_x_input", "erasure")


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--skip", type=int, default=40)
    parser.add_argument("--limit", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    lens = normlens.load(options.model)
    with options.file.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[PREFIX].startswith(f"{row['target']} ")]
    rows = rows[options.skip : options.skip + options.limit]
    items = [_item(lens, row, row["target"]) for row in rows]
    own = values(lens, items).numpy()
    margins = {word: values(lens, [_item(lens, row, word) for row in rows]).numpy() for word in (LICENSES, *NEUTRAL)}
    effect = own - np.mean([margins[word] for word in NEUTRAL], axis=0)
    print(f"{len(items)} items, the right word preferred in {np.mean(own > 0):.0%}\n")
    print(
        "| first word | margin of the right word | the evidence's less this one | positive in |",
        "|---|---|---|---|",
        sep="\n",
    )
    print(f"| {rows[0]['target']} (the evidence) | {own.mean():.2f} | | |")
    for word, found in margins.items():
        print(f"| {word} | {found.mean():.2f} | {(own - found).mean():+.2f} | {np.mean(own > found):.0%} |")
    print(f"| mean of the {len(NEUTRAL)} neutral ones | | {effect.mean():+.2f} | {np.mean(effect > 0):.0%} |\n")
    head = "| method | given to the evidence | MRR | MRR, effect > 0 | MRR, effect < 0 | Spearman with the effect |"
    print(head, "|---|---|---|---|---|---|", sep="\n")
    for name in METHODS:
        found = scores(lens, items, name)
        given = np.array([each[0] for each in found])
        ranks = np.array([reciprocal_rank(each, {0}) for each in found])
        cells = (given.mean(), ranks.mean(), ranks[effect > 0].mean(), ranks[effect < 0].mean())
        print(f"| `{name}` | {' | '.join(f'{x:.2f}' for x in cells)} | {spearman(given, effect):.2f} |", flush=True)


def _item(lens: Lens, row: dict[str, str], word: str) -> Item:
    """The row with another word in front."""
    ids = tuple(lens.tokenizer(word + row[PREFIX][len(row["target"]) :])["input_ids"])
    right, wrong = (lens.tokenizer(f" {row[name]}", add_special_tokens=False)["input_ids"][0] for name in (GOOD, BAD))
    return Item(ids, right, wrong, len(ids) - 1)


if __name__ == "__main__":
    main()
