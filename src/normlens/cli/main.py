"""The `normlens` command: a thin shell over the library, one module per command."""

from __future__ import annotations

import importlib
import sys

import typer

from normlens.errors import NormlensError

#: Each command is the function of its own name in `normlens.cli.<module>`; this is the only place that lists them.
COMMANDS = {
    "analyze": "analyze",
    "info": "info",
    "families": "families",
    "corpus": "corpus",
    "reproduce": "reproduce",
    "compare": "compare",
    "view": "view",
    "align": "align",
    "aer": "aer",
}


def build() -> typer.Typer:
    """The command-line application, with every command of `COMMANDS` attached."""
    app = typer.Typer(
        name="normlens",
        help="How much does each input vector really contribute? Norm-based analysis of Transformers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(lambda: None)
    for name, module in COMMANDS.items():
        app.command(name)(getattr(importlib.import_module(f"normlens.cli.{module}"), module))
    return app


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit code 2."""
    try:
        build()()
    except NormlensError as error:
        print(f"normlens: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
