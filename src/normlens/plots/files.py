"""Figures to files: PNG and SVG, whole or not at all, the same bytes for the same figure."""

from __future__ import annotations

import io
import os
import secrets
from pathlib import Path
from threading import Lock
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.sheet import provenance_of

#: Dots per inch of the PNG, and of smoothed maps inside the SVG.
RESOLUTION = 300

# The salt makes the identifiers in an SVG repeatable; glyphs as paths look the same where the font is missing. Both can
# only be set through matplotlib's settings, hence the lock: they are put back before anyone else saves here.
SETTINGS: Any = {"svg.hashsalt": "normlens", "svg.fonttype": "path", "svg.image_inline": True, "savefig.bbox": None}
_settings_lock = Lock()


def save_figure(figure: Figure, path_without_suffix: str | os.PathLike[str]) -> list[Path]:
    """Write `<path>.png` and `<path>.svg` and return both paths.

    Both are drawn in memory first and renamed into place when complete, so a failure leaves neither half a file nor a
    changed old one. The SVG carries no date; the provenance line is also in both files' metadata.
    """
    base = Path(path_without_suffix)
    if not base.name:
        raise InputError(
            f"a figure needs a file name; {str(path_without_suffix)!r} arrived. Give a name without suffix."
        )
    # Not with_suffix: "bert.layer5" is a whole name, not one with the suffix ".layer5".
    contents = {base.with_name(f"{base.name}.{kind}"): _drawn(figure, kind) for kind in ("png", "svg")}
    waiting: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
            waiting[temporary] = path
            with temporary.open("xb") as file:
                file.write(content)
        for temporary, path in waiting.items():
            temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"figures are written into a folder that exists and can be written; {base.parent} gave: "
            f"{error.strerror or error}. Create it or choose another."
        ) from error
    finally:
        for temporary in waiting:
            temporary.unlink(missing_ok=True) if base.parent.is_dir() else None
    return list(contents)


def _drawn(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    description = provenance_of(figure)
    metadata: dict[str, str | None] = {"Description": description} if description else {}
    if kind == "svg":
        metadata["Date"] = None
    with _settings_lock, matplotlib.rc_context(SETTINGS):
        figure.savefig(buffer, format=kind, dpi=RESOLUTION, metadata=metadata, facecolor="white", edgecolor="none")
    return buffer.getvalue()
