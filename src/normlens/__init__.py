"""normlens: how much does each input vector of a Transformer really contribute to each output vector?

>>> import normlens
>>> lens = normlens.load()                                   # doctest: +SKIP
>>> analysis = lens.analyze("The man went to the store.")    # doctest: +SKIP
>>> analysis.mixing_ratio("attnresln_n")                     # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normlens.alignment.aligner import Aligner
    from normlens.lens import Lens, load
    from normlens.results.analysis import Analysis, difference
    from normlens.results.explanation import Explanation
    from normlens.results.storage import open_result as open

#: Public names, by the module that holds them; a name is imported when it is first used.
_PUBLIC = {
    "Aligner": ("normlens.alignment.aligner", "Aligner"),
    "Analysis": ("normlens.results.analysis", "Analysis"),
    "Explanation": ("normlens.results.explanation", "Explanation"),
    "Lens": ("normlens.lens", "Lens"),
    "difference": ("normlens.results.analysis", "difference"),
    "load": ("normlens.lens", "load"),
    "open": ("normlens.results.storage", "open_result"),
}

__all__ = ["Aligner", "Analysis", "Explanation", "Lens", "difference", "load", "open"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from normlens.provenance import version_of

        return version_of("normlens")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'normlens' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
