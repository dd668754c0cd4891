"""The object that `analysis.show()` returns: a view that a notebook draws and a plain shell opens in the browser.

The notebook widget is the page's front end with its data and view as synchronized traits; it needs `anywidget`.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.types import JsonMapping
from normlens.viewer.page import bundle, save_html, to_html, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: More tokens than this make no picture: drawing it would take seconds.
_MOST_TOKENS = 64


class View:
    """One page's data, ready to be seen: in a notebook by being the last value of a cell, elsewhere by `open()`."""

    def __init__(
        self, document: JsonMapping, view: str = "", still: Callable[[], Figure] | None = None, tokens: int = 0
    ) -> None:
        self.document = document
        self._view = view
        self._still = still  # draws a picture for where no script runs
        self._tokens = tokens
        self.path: Path | None = None

    def __repr__(self) -> str:
        sites = ", ".join(site["name"] for site in self.document["sites"])
        page = f"; page at {self.path}" if self.path is not None else ""
        return f"<normlens View of {self.document['title'] or 'an analysis'!r}: {sites}{page}>"

    @cached_property
    def widget(self) -> Any:
        """The anywidget of this view; needs `pip install "normlens[notebook]"`."""
        return _widget_class()(document=to_json(self.document), view=self._view)

    def save_html(self, path: str | Path) -> Path:
        """Write the view as one HTML file that opens offline."""
        return save_html(self.document, path)

    def open(self) -> Path:
        """Write the page to a private temporary file, open it in the browser and return its path."""
        # In a folder that nobody else can enter, since the page takes its place in it by a rename.
        self.path = save_html(self.document, Path(tempfile.mkdtemp(prefix="normlens-")) / "view.html")
        self.path.chmod(0o600)
        webbrowser.open(self.path.as_uri() + (f"#{self._view}" if self._view else ""))
        return self.path

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget with a picture for pages that run no script (GitHub, nbviewer); without anywidget, the page."""
        if importlib.util.find_spec("anywidget") is None:
            return {"text/plain": repr(self), "text/html": self._frame()}
        shown = self.widget._repr_mimebundle_(**options)
        data, metadata = shown if isinstance(shown, tuple) else (shown, {})
        data = {**data, "text/plain": repr(self)}
        if self._picture is not None:
            data["image/png"] = self._picture
        return data, metadata

    @cached_property
    def _picture(self) -> str | None:
        """The still picture in base64; None where the result is too large for one, or has nothing to draw."""
        if self._still is None or self._tokens > _MOST_TOKENS:
            return None
        try:
            figure = self._still()
        except InputError:
            return None
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110)
        return base64.b64encode(picture.getvalue()).decode()

    def _display_(self) -> Any:
        """The representation for marimo."""
        return self.widget

    def _frame(self) -> str:
        """The page in a frame of its own, for a notebook without anywidget; scripts in it reach nothing outside."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="820" style="border:0" '
            f'srcdoc="{html.escape(to_html(self.document))}"></iframe>'
        )


@cache
def _widget_class() -> Any:
    """The widget of Jupyter, VS Code, Colab and marimo, made when it is first asked for: `anywidget` is an extra."""
    import anywidget
    import traitlets

    class Viewer(anywidget.AnyWidget):
        """`view` is what the reader chose, in the form of the page's address (`view=flow&layer=5`): read it, set it."""

        _esm = bundle("widget.js")
        document = traitlets.Unicode(help="The page's data as JSON text.").tag(sync=True)
        view = traitlets.Unicode("", help="The choices of the reader that differ from the opening view.").tag(sync=True)

    return Viewer


def in_notebook() -> bool:
    """Is a notebook (Jupyter, VS Code, Colab, marimo) running this code, so that it will draw the last value?"""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def show(data: JsonMapping, view: str = "", still: Callable[[], Figure] | None = None, tokens: int = 0) -> View:
    """Return a view of a page's data; outside a notebook it opens in the browser at once.

    Args:
        data: The data of the page.
        view: The state in which it opens.
        still: Draws a picture for where no script runs.
        tokens: The number of tokens; many make no picture.
    """
    shown = View(data, view, still, tokens)
    if not in_notebook():
        shown.open()
    return shown
