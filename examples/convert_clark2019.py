"""Convert the attention data of Clark et al. 2019 to JSON Lines, which `normlens corpus` and `normlens reproduce` read.

    python examples/convert_clark2019.py unlabeled_attn.pkl clark2019.jsonl

The file is a pickle, and a pickle can name any function to be called on load. Here every name stands for one inert class,
so that nothing in the file is executed. Only lists, dictionaries, strings and numbers come out of it.
"""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path
from typing import Any


class Ignored:
    """Stands for everything that the pickle names: the arrays with attention weights, which are not needed."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class PlainUnpickler(pickle.Unpickler):
    """Reads plain data and calls nothing."""

    def find_class(self, module: str, name: str) -> type[Ignored]:
        """Return the inert class, whatever the name."""
        return Ignored


def convert(source: Path, target: Path) -> int:
    """Write the tokens of each sequence as one line.

    Args:
        source: The pickle: a list of dictionaries with `tokens`.
        target: The JSON Lines file, with a column `model_tokens`.

    Returns:
        The number of sequences.
    """
    with source.open("rb") as stream:
        rows = PlainUnpickler(stream, encoding="latin1").load()
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "tokens" in row for row in rows):
        raise SystemExit(f"{source} is not the file of Clark et al. 2019: a list of dictionaries with `tokens`")
    lines = [json.dumps({"model_tokens": [str(token) for token in row["tokens"]]}) for row in rows]
    target.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return len(lines)


def main() -> None:
    """Convert the file that the command line names."""
    parser = argparse.ArgumentParser(description="Convert unlabeled_attn.pkl to JSON Lines.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    print(f"wrote {convert(arguments.source, arguments.target)} sequences to {arguments.target}")


if __name__ == "__main__":
    main()
