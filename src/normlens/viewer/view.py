"""What `analysis.show()` returns: a view that a notebook draws and a plain shell opens in the browser."""

from __future__ import annotations

import html
import importlib.util
import os
import sys
import tempfile
import webbrowser
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from normlens.viewer.page import save_html, to_html


class View:
    """One payload, ready to be seen: in a notebook by being the last value of a cell, elsewhere by `open()`."""

    def __init__(self, document: Mapping[str, Any], view: str = "") -> None:
        self.document = document
        self._view = view
        self.path: Path | None = None

    def __repr__(self) -> str:
        sites = ", ".join(site["name"] for site in self.document["sites"])
        page = f"; page at {self.path}" if self.path is not None else ""
        return f"<normlens View of {self.document['title'] or 'an analysis'!r}: {sites}{page}>"

    @cached_property
    def widget(self) -> Any:
        """The anywidget of this view; needs `pip install "normlens[notebook]"`."""
        from normlens.viewer.widget import Viewer

        return Viewer(self.document, self._view)

    def save_html(self, path: str | Path) -> Path:
        """Write the view as one HTML file that opens offline."""
        return save_html(self.document, path)

    def open(self) -> Path:
        """Write the page to a private temporary file, open it in the browser and return its path."""
        handle, name = tempfile.mkstemp(prefix="normlens-", suffix=".html")
        os.close(handle)
        self.path = save_html(self.document, name)
        webbrowser.open(self.path.as_uri() + (f"#{self._view}" if self._view else ""))
        return self.path

    def _repr_mimebundle_(self, **options: Any) -> Any:
        if importlib.util.find_spec("anywidget") is not None:
            return self.widget._repr_mimebundle_(**options)
        return {"text/plain": repr(self), "text/html": self._frame()}

    def _display_(self) -> Any:
        """What marimo draws for this object."""
        return self.widget

    def _frame(self) -> str:
        """The page in a frame of its own, for a notebook without anywidget; scripts in it reach nothing outside."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="820" style="border:0" '
            f'srcdoc="{html.escape(to_html(self.document))}"></iframe>'
        )


def in_notebook() -> bool:
    """Is a notebook (Jupyter, VS Code, Colab, marimo) running this code, so that it will draw the last value?"""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def show(document: Mapping[str, Any], view: str = "") -> View:
    """A view of the payload; outside a notebook it opens in the browser at once."""
    shown = View(document, view)
    if not in_notebook():
        shown.open()
    return shown
