"""The same model in disguise: with shuffled weights, which must change an explanation; in double precision, which must not.

Shuffling keeps every weight's numbers and loses their order (Adebayo et al. 2018 draw new ones): the model is as large and
as rough as before, and knows nothing. The model that is studied is copied, never touched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from normlens.lens import Lens

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How many stages the cascade through the layers has: after each of them the methods run again.
STAGES = 3


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: the list of modules that holds most of its weights."""
    lists = [(sum(p.numel() for p in m.parameters()), m) for m in model.modules() if isinstance(m, nn.ModuleList)]
    return list(max(lists, key=lambda found: found[0])[1]) if lists else []


def shuffled(lens: Lens) -> Callable[[], Iterator[Lens]]:
    """A cascade that may be walked several times: each stage has more layers shuffled, from the last to the first."""
    count = len(layers_of(lens.model))
    cuts = sorted({round(count * (STAGES - stage) / STAGES) for stage in range(1, STAGES + 1)}, reverse=True)
    found: list[Lens] = []

    def walk() -> Iterator[Lens]:
        for i, cut in enumerate(cuts):
            if i == len(found):
                model = copy.deepcopy(found[-1].model if found else lens.model)
                top = count if i == 0 else cuts[i - 1]
                shuffle((layer.parameters() for layer in layers_of(model)[cut:top]), seed=i)
                found.append(Lens(model, lens.tokenizer))
            yield found[i]

    return walk


@torch.no_grad()
def shuffle(groups: Iterable[Iterable[nn.Parameter]], seed: int) -> None:
    """Give each weight its own numbers in another order."""
    generator = torch.Generator().manual_seed(seed)
    for parameters in groups:
        for parameter in parameters:
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))


def in_double(lens: Lens) -> Lens:
    """The same model in double precision."""
    return Lens(copy.deepcopy(lens.model).double(), lens.tokenizer)


def moved(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> np.ndarray:
    """For each item, the largest change of a number over the largest number."""
    return np.array(
        [
            float(np.abs(a - b).max() / max(np.abs(a).max(), np.finfo(float).tiny))
            for a, b in zip(before, after, strict=True)
        ]
    )
