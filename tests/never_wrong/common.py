"""What these tests share: a batch, a mask, and what it means that two answers agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from normlens import Analysis, Lens
from normlens.families.tiny import randomize
from tests import tiny
from tests.test_lens import assert_same

IDS = tiny.batch("bert", (9, 9))["input_ids"]
CAUSAL = torch.ones(9, 9).tril().bool()
WIDTH = tiny.WIDTH


def agree(lens: Lens, inputs: dict[str, Any], tolerance: float = 0.0) -> Analysis:
    """What a used lens answers must be what a fresh one does."""
    found = lens.analyze_inputs(inputs)
    for left, right in zip(found, Lens(lens.model).analyze_inputs(inputs), strict=True):
        assert_same(left, right, tolerance)
    return found[0]


def look_ahead(analysis: Analysis) -> float:
    return float(np.triu(next(iter(analysis.sites.values()))["alpha"].values, 1).max())


def plain_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    randomize(model)
    return model
