"""Examples in docstrings as code: Markdown takes `>>>` for a quotation in a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A line with a prompt, and all that follows it up to a blank line.
_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.M)


class Doctests(griffe.Extension):
    """Fences every example."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
