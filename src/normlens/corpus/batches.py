"""Sequences as the model and the statistics see them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Item:
    """One sequence of the corpus, ready to run."""

    index: int  # its number in the corpus
    place: str  # where it was read
    ids: Int[np.ndarray, " position"]
    types: Int[np.ndarray, " position"] | None  # segment ids, where the model has them
    category: UInt8[np.ndarray, " position"]

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.ids)

    @cached_property
    def digest(self) -> bytes:
        """What the sequence is, whatever its number: chance is keyed by this, so order and split do not matter."""
        content = self.ids.astype(np.int64).tobytes() + (b"" if self.types is None else self.types.tobytes())
        return hashlib.blake2b(content, digest_size=16).digest()


def generator(seed: int, purpose: str, digest: bytes) -> np.random.Generator:
    """Randomness that depends on the seed, the purpose and the content, and on nothing else."""
    key = hashlib.blake2b(digest, digest_size=16, key=f"{seed} {purpose}".encode()[:64]).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64)))


@dataclass(frozen=True)
class Batch:
    """Sequences of one length: nothing is padded, so a sequence's numbers do not depend on its neighbours."""

    items: Sequence[Item]

    @cached_property
    def ids(self) -> Int[np.ndarray, "batch position"]:
        """Token ids."""
        return np.stack([item.ids for item in self.items]).astype(np.int64)

    @cached_property
    def category(self) -> UInt8[np.ndarray, "batch position"]:
        """Category codes."""
        return np.stack([item.category for item in self.items])

    def inputs(self, device: torch.device) -> dict[str, Tensor]:
        """What the model is called with."""
        inputs = {
            "input_ids": torch.from_numpy(self.ids),
            "attention_mask": torch.ones(self.ids.shape, dtype=torch.long),
        }
        if self.items[0].types is not None:
            types = [item.types for item in self.items if item.types is not None]
            inputs["token_type_ids"] = torch.from_numpy(np.stack(types).astype(np.int64))
        return {name: tensor.to(device) for name, tensor in inputs.items()}

    @cached_property
    def groups(self) -> Groups:
        """Positions sorted by sequence and category."""
        return Groups.of(self.category)


@dataclass(frozen=True)
class Groups:
    """Positions of a batch, gathered by (sequence, category), so that sums over a group are sums over a slice."""

    order: Int[np.ndarray, " position"]  # of the flattened (batch, position)
    starts: Int[np.ndarray, " group"]
    sequence: Int[np.ndarray, " group"]
    category: Int[np.ndarray, " group"]
    sizes: Int[np.ndarray, " group"]
    flat: UInt8[np.ndarray, " position"]  # the category of each position of the flattened batch

    @classmethod
    def of(cls, category: UInt8[np.ndarray, "batch position"]) -> Groups:
        batch, length = category.shape
        code = (np.arange(batch)[:, None] * 256 + category).reshape(-1)
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        sizes = np.diff(np.append(starts, batch * length))
        return cls(order, starts, code[order][starts] // 256, code[order][starts] % 256, sizes, category.reshape(-1))

    def add(self, values: Float[np.ndarray, "batch head position"]) -> Float[np.ndarray, "head group"]:
        """Sum of each group."""
        return np.add.reduceat(self._sorted(values), self.starts, axis=1)

    def least(self, values: Float[np.ndarray, "batch head position"]) -> Float[np.ndarray, "head group"]:
        """Minimum of each group."""
        return np.minimum.reduceat(self._sorted(values), self.starts, axis=1)

    def most(self, values: Float[np.ndarray, "batch head position"]) -> Float[np.ndarray, "head group"]:
        """Maximum of each group."""
        return np.maximum.reduceat(self._sorted(values), self.starts, axis=1)

    def by_category(self, values: Float[np.ndarray, "batch head position"], categories: int) -> np.ndarray:
        """Sum over each category of the batch: (category, head)."""
        onehot = (self.category[:, None] == np.arange(categories)).astype(values.dtype)
        return np.asarray(onehot.T @ self.add(values).T)

    def _sorted(self, values: Float[np.ndarray, "batch head position"]) -> Float[np.ndarray, "head position"]:
        return values.transpose(1, 0, 2).reshape(values.shape[1], -1)[:, self.order]


def batched(items: Sequence[Item], size: int) -> Iterator[Batch]:
    """Batches of at most `size` sequences of equal length, shortest first."""
    ordered = sorted(items, key=lambda item: item.length)  # stable: the corpus order among equals
    start = 0
    while start < len(ordered):
        stop = start
        while stop < min(start + size, len(ordered)) and ordered[stop].length == ordered[start].length:
            stop += 1
        yield Batch(ordered[start:stop])
        start = stop
