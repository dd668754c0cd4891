"""Does an explanation agree with what the model does when its input changes? Methods by protocols, on a model and data.

>>> from normlens import Lens, faithfulness
>>> from normlens.families.tiny import tiny_model
>>> lens = Lens(tiny_model("gpt2"))
>>> items = tuple(faithfulness.Item(ids=(7 + i, 8, 9, 10), output=3, against=5, position=3) for i in range(3))
>>> sample = faithfulness.Sample("own", items, tuple(frozenset({0}) for _ in items))
>>> found = faithfulness.study(lens, [sample], methods=["fixed", "erasure", "random"])
>>> sorted(found.to_frame()["column"].unique())
['agreement_erasure', 'agreement_gradient', 'evidence']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normlens.faithfulness.items import Item, item_of
    from normlens.faithfulness.methods import METHODS, Method
    from normlens.faithfulness.samples import Sample, read_evidence, read_texts
    from normlens.faithfulness.studies import Study, study
    from normlens.faithfulness.verdicts import verdict

#: Public names, by the module that holds them; a name is imported when it is first used.
_PUBLIC = {
    "Item": "normlens.faithfulness.items",
    "item_of": "normlens.faithfulness.items",
    "METHODS": "normlens.faithfulness.methods",
    "Method": "normlens.faithfulness.methods",
    "Sample": "normlens.faithfulness.samples",
    "read_evidence": "normlens.faithfulness.samples",
    "read_texts": "normlens.faithfulness.samples",
    "Study": "normlens.faithfulness.studies",
    "study": "normlens.faithfulness.studies",
    "verdict": "normlens.faithfulness.verdicts",
}

__all__ = [
    "METHODS",
    "Item",
    "Method",
    "Sample",
    "Study",
    "item_of",
    "read_evidence",
    "read_texts",
    "study",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'normlens.faithfulness' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
