"""Does this machine round a row of a matrix product the same, whatever rows stand beside it?

A corpus run promises the same numbers for every batch size and order. Most libraries for matrix products keep that
promise row by row, except for a handful of rows, where they take another path; none documents it. So it is tried out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

#: Shorter sequences always go alone, on one thread: products of a few rows are rounded in their own way, and by threads.
FEWEST_POSITIONS = 16
_ROWS = (16, 23, 64, 100, 128, 257, 512)
_MOST = 640


@torch.inference_mode()
def rows_stand_alone(model: nn.Module) -> bool:
    """Whether each row of the model's linear maps comes out bit for bit alike, alone and among others."""
    for linear in _one_of_each_shape(model):
        inputs = torch.randn(_MOST, linear.in_features, generator=torch.Generator().manual_seed(0))
        inputs = inputs.to(linear.weight.device, linear.weight.dtype)
        whole: Tensor = linear(inputs)
        for rows in _ROWS:
            for start in (0, _MOST - rows):
                if not torch.equal(linear(inputs[start : start + rows]), whole[start : start + rows]):
                    return False
    return True


@contextmanager
def steady(positions: int) -> Iterator[None]:
    """Inside, so few positions are rounded the same whatever number of threads the process has."""
    threads = torch.get_num_threads()
    if positions >= FEWEST_POSITIONS or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _one_of_each_shape(model: nn.Module) -> Iterator[nn.Linear]:
    met = set()
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.is_floating_point():
            shape = (*module.weight.shape, module.bias is None)
            if shape not in met:
                met.add(shape)
                yield module
