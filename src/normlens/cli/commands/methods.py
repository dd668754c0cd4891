"""`normlens methods`: attribution methods, with equation, paper, cost and blind spot."""

from __future__ import annotations

from normlens.cli.options import JsonOption
from normlens.cli.terminal import console, print_json


def methods(as_json: JsonOption = False) -> None:
    """List the methods that `normlens faithful` compares: equation, paper, cost, and what each cannot see."""
    from normlens.faithfulness.methods import METHODS

    if as_json:
        print_json([method.to_dict() for method in METHODS.values()])
        return
    from normlens.results.tables import new_table

    title = "Methods: what did each token give to one number of the output?"
    table = new_table(title, ("name", "equation", "paper", "cost", "cannot see", "adds up"))
    for method in METHODS.values():
        table.add_row(
            method.name,
            method.equation,
            method.paper,
            method.cost,
            method.blind,
            "yes" if method.complete else "no",
        )
    console().print(table)
