"""The `normlens` command: a thin shell over the library, one module per command.

A command's module is imported when the command is asked for, and imports the library inside the function that runs it:
help, version and usage errors never wait for torch. A new module in `normlens.cli.commands` is a new command.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from normlens.cli import commands
from normlens.cli.failures import WRONG, exit_code
from normlens.cli.groups import spread
from normlens.cli.terminal import show
from normlens.errors import InputError

#: The commands: the modules of `normlens.cli.commands`, each with a function of its own name.
COMMANDS = tuple(sorted(module.name for module in pkgutil.iter_modules(commands.__path__)))


def main() -> None:
    """Run the command line, and exit with 0, or with what `normlens.cli.failures` makes of a failure."""
    atexit.register(gc.freeze)  # the process ends: to search everything for garbage once more takes up to a second
    arguments = sys.argv[1:]
    name = next((argument for argument in arguments if argument in COMMANDS), "")
    code = exit_code(lambda: _run(arguments or ["--help"]), lambda: _after_interruption(name))
    raise SystemExit(code if arguments else WRONG)


def _after_interruption(name: str) -> str:
    """How to go on after an interruption; commands that keep what is finished say so in `AFTER_INTERRUPTION`."""
    module = sys.modules.get(f"normlens.cli.commands.{name}")
    return getattr(module, "AFTER_INTERRUPTION", "run the same command again to start over")


def _run(arguments: list[str]) -> None:
    command = typer.main.get_command(build())
    _check_current_folder()
    with command.make_context("normlens", list(arguments)) as context:
        command.invoke(context)


def _check_current_folder() -> None:
    """Relative paths mean nothing in a folder that is gone, and other people's code raises whatever it likes there."""
    try:
        Path.cwd()
    except OSError as error:
        raise InputError("a command runs in a folder that exists: this one was removed; change to another") from error


def build() -> typer.Typer:
    """The command-line application, with every command of `COMMANDS` attached."""
    app = typer.Typer(
        name="normlens",
        cls=_LazyGroup,
        help="How much does each input vector really contribute? Norm-based analysis of Transformers.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_root)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        from normlens.provenance import versions

        show(", ".join(f"{package} {version}" for package, version in versions().items()))
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """Options that stand before any command."""


class _LazyCommands(Mapping[str, Any]):
    """The commands by name; a module is imported when its command is looked up."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._built:
            single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            command = getattr(importlib.import_module(f"normlens.cli.commands.{name}"), name)
            single.command(name)(spread(command))
            self._built[name] = typer.main.get_command(single)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _LazyGroup(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": None})
        self.commands = _LazyCommands()  # type: ignore[assignment]  # nothing is ever added to it


if __name__ == "__main__":
    main()
