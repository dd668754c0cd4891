"""The notebook widget: the page's front end with its data and view as synchronized traits (needs `anywidget`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anywidget
import traitlets

from normlens.viewer.page import bundle, to_json


class Viewer(anywidget.AnyWidget):
    """The viewer in Jupyter, VS Code, Colab or marimo.

    `view` is what the reader chose, in the form of the page's address (`view=flow&layer=5`): read it, keep it, set it.
    """

    _esm = bundle("widget.js")

    document = traitlets.Unicode(help="The payload as JSON text.").tag(sync=True)
    view = traitlets.Unicode("", help="The choices of the reader that differ from the opening view.").tag(sync=True)

    def __init__(self, document: Mapping[str, Any], view: str = "", **traits: Any) -> None:
        super().__init__(document=to_json(document), view=view, **traits)
