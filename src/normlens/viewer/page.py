"""One HTML file with everything in it: it asks the network for nothing, and nothing in its data can become script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources
from pathlib import Path

from normlens.errors import InputError
from normlens.io.writing import write_text
from normlens.types import JsonMapping

#: What could end the data block or be read as a line end by a script; all stand inside JSON strings, where an escape
#: means the same character.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}

#: By this a page is known for one of ours.
GENERATOR = '<meta name="generator" content="normlens">'

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src data: blob:; base-uri 'none'; form-action 'none'">
<meta name="referrer" content="no-referrer">
{generator}
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="normlens"><noscript>This page draws with JavaScript; nothing is loaded from elsewhere.</noscript></div>
<script type="application/json" id="normlens-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""

_STYLE = "html,body{margin:0;padding:0}body{min-height:100vh}"


@cache
def bundle(name: str) -> str:
    """The text of a built file of the front end: `page.js` or `widget.js`."""
    return resources.files("normlens.viewer").joinpath("static", name).read_text(encoding="utf-8")


def to_json(data: JsonMapping) -> str:
    """JSON that can stand inside a script element: no character of it can close the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def to_html(data: JsonMapping) -> str:
    """The whole page for its data: one document, or several as `pages`.

    The content security policy allows exactly one script, by its hash, and no connection of any kind.
    """
    script = bundle("page.js")
    title = " · ".join(filter(None, [str(data.get("title") or "")[:120], "normlens"]))
    return _PAGE.format(
        generator=GENERATOR,
        title=html.escape(title),
        style=_STYLE,
        style_hash=_hash(_STYLE),
        data=to_json(data),
        script=script,
        script_hash=_hash(script),
    )


def save_html(data: JsonMapping, path: str | Path) -> Path:
    """Write the page to `path`, whole or not at all, and return the path."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{str(path)!r} is not a file in an existing folder; check the path")
    return write_text(path, to_html(data))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
