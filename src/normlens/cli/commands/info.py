"""`normlens info`: what was found in a model, without running any text."""

from __future__ import annotations

from typing import Annotated

import typer

from normlens.cli.options import GgufOption, JsonOption, open_lens
from normlens.cli.terminal import console, print_json
from normlens.types import Json

_PLACEMENT = {
    "post": "after the residual sum (post-norm)",
    "pre": "before attention (pre-norm)",
    "branch": "on the attention branch, before the residual sum",
}


def info(
    model: Annotated[str | None, typer.Argument(help="Hub name or folder; without it, the embedded model.")] = None,
    gguf_file: GgufOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's attention sites: heads, where the normalization stands, which measures it has."""
    from normlens.measures.table import MEASURES

    lens = open_lens(model, gguf_file)
    anatomy = lens.anatomy
    document: Json = {
        "family": anatomy.family,
        "class": type(lens.model).__name__,
        "parameters": sum(parameter.numel() for parameter in lens.model.parameters()),
        "dtype": str(next(lens.model.parameters()).dtype).removeprefix("torch."),
        "measures": list(MEASURES),
        "sites": [
            {
                "kind": site.kind,
                "layer": site.layer,
                "heads": site.heads,
                "kv_heads": site.kv_heads,
                "value_width": site.value_width,
                "norm": site.placement,
                "attention": site.path,
                "projection": site.projection.path,
                "normalization": None if site.norm is None else site.norm.path,
                "parallel_branches": [place.path for place in site.others],
            }
            for site in anatomy.sites
        ],
    }
    if as_json:
        print_json(document)
        return
    from normlens.results.tables import new_table

    screen = console()
    screen.print(
        f"{document['class']} (family {document['family']}), {document['parameters']:,} parameters, {document['dtype']}"
    )
    columns = ("site", "layers", "heads", "key-value heads", "normalization", "output projection of the first")
    table = new_table("Attention sites", columns)
    for kind in anatomy.kinds:
        sites = anatomy.of(kind)
        table.add_row(
            kind,
            _span([site.layer for site in sites]),
            _span([site.heads for site in sites]),
            _span([site.kv_heads for site in sites]),
            "; ".join(sorted({_PLACEMENT[site.placement] for site in sites})),
            sites[0].projection.path,
        )
    screen.print(table)
    screen.print(f"Measures: {', '.join(MEASURES)}")
    screen.print("Read from one short forward pass; every analysis proves it again on its own text.", style="dim")


def _span(numbers: list[int]) -> str:
    unique = sorted(set(numbers))
    if len(unique) > 2 and unique == list(range(unique[0], unique[-1] + 1)):
        return f"{unique[0]} to {unique[-1]}"
    return ", ".join(map(str, unique))
