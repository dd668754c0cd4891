"""Where the real alignments are, for tests that skip without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

GOLD = Path(os.environ.get("NORMLENS_TEST_DATA", "../shared/data")) / "gold"
MODELS = Path(os.environ.get("NORMLENS_REAL_MODELS", "../models"))

needs_gold = pytest.mark.skipif(not GOLD.is_dir(), reason=f"no gold alignments in {GOLD} (NORMLENS_TEST_DATA)")
needs_models = pytest.mark.skipif(
    not (MODELS / "opus-mt-fr-en").is_dir(), reason=f"no translation models in {MODELS} (NORMLENS_REAL_MODELS)"
)
