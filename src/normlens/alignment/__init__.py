"""Word alignment: subwords to words, extraction, symmetrization, formats and AER."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("normlens")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "unknown"
