"""The errors that normlens raises: the fact first, then what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NormlensError(Exception):
    """The base of every error that normlens raises on purpose; the shell shows it as one sentence with exit code 2."""

    def _render_traceback_(self) -> list[str]:
        """Show the sentence in a notebook, without frames that are not the user's."""
        return [f"{type(self).__name__}: {self}"]


class InputError(NormlensError):
    """The caller asked for something that cannot be: an empty text, an unknown measure, a missing target."""


class ModelError(NormlensError):
    """The model cannot be loaded or must not be analysed: not a model, NaN weights, packed low-bit weights."""


class AnatomyError(NormlensError):
    """The structure of the model could not be read; the message says what was looked for and where reading stopped."""


class DecompositionError(NormlensError):
    """The parts do not rebuild what the model computed: nothing is returned, since it would be wrong."""


class CallbackError(BaseException):
    """Carry an error of a user's callback (`progress`) past the handlers of the model's errors; its cause is raised."""


def unexpected_keyword(function: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for a keyword argument that a function does not have, with the nearest one that it has.

    >>> str(unexpected_keyword("explain", "outputs", ["output", "parts"]))
    "explain() got an unexpected keyword argument 'outputs'; did you mean 'output'?"
    """
    options = list(known)
    nearest = difflib.get_close_matches(name, options, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"it takes {', '.join(sorted(options))}"
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}; {hint}")
