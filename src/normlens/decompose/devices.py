"""Device capabilities, and batched device-to-host copies.

A device works while the host goes on, until the host asks for a number and waits. So whatever the host wants of a block is
laid side by side and read at once, results travel while the next block is computed, and blocks are as large as memory
allows, since each costs the same few launches whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

#: A block may take one part in so many of what is free: about eight such tensors exist at a time.
_SHARE = 16
#: Where a device does not say how much is free.
_ASSUMED_BYTES = 4 * 2**30


def free_bytes(device: torch.device) -> int | None:
    """The memory of a device that can still be had; None where it does not say (and for the host: see `request`)."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by PyTorch, for later
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory())
    return None


def block_numbers(device: torch.device) -> int:
    """The number of entries that a block on this device may hold; off the CPU, where no cache limits it.

    A power of two: a little more or less free memory cuts no other blocks.
    """
    free = free_bytes(device)
    most = max(1 << 20, (_ASSUMED_BYTES if free is None else free) // (4 * _SHARE))
    return 1 << (most.bit_length() - 1)


def has_float64(device: torch.device) -> bool:
    """Return True if the device can compute in float64 at all."""
    return device.type != "mps"


def on_host(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """The same numbers on the host: of a device, in one copy and one wait, however many there are (all of one dtype)."""
    if not tensors or tensors[0].device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])
    return [part.reshape(tensor.shape) for part, tensor in zip(np.split(flat, ends[:-1]), tensors, strict=True)]


def doubles_on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers in float64 on the host, in one copy and one wait for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for n, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(n)
    found = list(tensors)
    for numbers in groups.values():
        flat = torch.cat([tensors[n].reshape(-1) for n in numbers]).cpu().double()
        for n, part in zip(numbers, flat.split([tensors[n].numel() for n in numbers]), strict=True):
            found[n] = part.view(tensors[n].shape)
    return found


def gather_rows(tensors: Sequence[Tensor], *places: Sequence[int]) -> Sequence[Tensor]:
    """`tensor[places]` of tensors of one shape, for a handful of places that the host knows: no index is sent."""
    if tensors and tensors[0].device.type == "cpu":
        index = tuple(map(list, places))
        return [torch.from_numpy(tensor.numpy()[index]) for tensor in tensors]
    rows = [tensor[place] for tensor in tensors for place in zip(*places, strict=True)]
    return torch.stack(rows).split(len(places[0])) if rows else []


class HostCopies:
    """Maps on their way to the host while the device goes on: there once the host has waited for anything later.

    `diagonal_only` names maps that equal another one times a number, except on the diagonal, which alone travels.
    """

    def __init__(self, values: Mapping[str, Tensor], diagonal_only: Mapping[str, tuple[str, float]]) -> None:
        self._device = next(iter(values.values())).device if values else torch.device("cpu")
        self.immediate = self._device.type == "cpu"  #: nothing travels
        self._diagonal_only = {} if self.immediate else diagonal_only
        whole = {name: value for name, value in values.items() if name not in self._diagonal_only}
        self._whole = whole if self.immediate else {name: self._sent(value) for name, value in whole.items()}
        self._diagonals = {name: self._sent(values[name].diagonal(dim1=-2, dim2=-1)) for name in self._diagonal_only}

    def _sent(self, tensor: Tensor) -> Tensor:
        # Only memory that cannot be moved is written while the host goes on; MPS shares its memory with the host anyway.
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._device.type == "cuda")
        return there.copy_(tensor, non_blocking=True)

    def wait(self) -> None:
        """Wait until everything has arrived."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that have arrived."""
        found = {name: tensor.numpy() for name, tensor in self._whole.items()}
        for name, (other, factor) in self._diagonal_only.items():
            found[name] = found[other] * found[other].dtype.type(factor)
            positions = np.arange(found[name].shape[-1])
            found[name][:, positions, positions] = self._diagonals[name].numpy()
        return found
