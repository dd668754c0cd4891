"""Options in groups: a command takes a dataclass, the shell sees one option per field, in a panel of the help."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from normlens.types import Json


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for every field of its parameters that are dataclasses.

    Args:
        command: A command. The fields of its dataclasses are annotated as options are; the docstring of a dataclass
            is the title of its panel.

    Returns:
        The same command, with the signature that typer reads.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: Json = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _options(hints[name])
        else:
            kept = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            parameters.append(kept)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    options = []
    for field in dataclasses.fields(group):
        kind, option = typing.get_args(hints[field.name])
        option = copy.copy(option)
        option.rich_help_panel = inspect.getdoc(group)
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        annotation: Any = typing.Annotated[kind, option]
        keyword = inspect.Parameter.KEYWORD_ONLY
        options.append(inspect.Parameter(field.name, keyword, default=default, annotation=annotation))
    return options
