"""One translation model as an aligner: maps of sentence pairs, and which of its layers align."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from normlens.alignment.extract import Map
from normlens.alignment.forcing import ForcedPair, Forcing, WordPooling
from normlens.alignment.layers import SETTINGS, Agreement
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.measures import MEASURES
from normlens.provenance import content_hash

#: Layers are chosen on at most this many pairs: on the models tried the choice is the same from about 20 on.
PAIRS_TO_CHOOSE_ON = 200


class Direction:
    """A model that reads one side of a pair and is made to write the other."""

    def __init__(
        self,
        lens: Lens,
        *,
        measure: str = "attn_n",
        head: int | None = None,
        batch_tokens: int = 4096,
        **forcing: Any,
    ) -> None:
        if "cross" not in lens.anatomy.kinds:
            raise InputError(f"Alignment needs a model with cross-attention: {lens.family} has none.")
        if measure not in MEASURES or "query" not in MEASURES[measure].axes:
            maps = [name for name, known in MEASURES.items() if "query" in known.axes]
            raise InputError(f"A measure for alignment is one of {', '.join(maps)}: {measure!r} is none of them.")
        by_head = "head" in MEASURES[measure].axes
        if by_head != (head is not None):
            advice = "say which head" if by_head else "leave out the head, or take alpha or af_norm"
            raise InputError(f"A head is chosen exactly for measures that have heads: {measure} with {head}; {advice}.")
        self.lens, self.measure, self.head, self.batch_tokens = lens, measure, head, batch_tokens
        self.forcing = Forcing(lens.model, lens.tokenizer, **forcing)
        sites = [site for site in lens.anatomy.sites if site.kind == "cross"]
        self.layers: tuple[int, ...] = tuple(site.layer for site in sites)
        if head is not None and not 1 <= head <= sites[0].heads:
            raise InputError(f"A head is one of 1 to {sites[0].heads}: got {head}.")

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.lens.model.parameters()).device

    def batches(self, pairs: Sequence[ForcedPair], budget: int | None = None) -> Iterator[list[int]]:
        """Indices of pairs of similar length that fit the token budget together; pairs with a problem are left out."""
        order = sorted((i for i in range(len(pairs)) if pairs[i].problem is None), key=lambda i: pairs[i].length)
        budget = budget or self.batch_tokens
        batch: list[int] = []
        for index in order:
            if batch and (len(batch) + 1) * pairs[index].length > budget:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def layer_maps(
        self, batch: Sequence[ForcedPair], pooling: WordPooling, settings: Sequence[str], layers: Sequence[int]
    ) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """Word-level maps of a batch, layer by layer, in each of the settings, from one forward pass."""
        results = self.lens.stream_inputs(
            self.forcing.inputs(batch, self.device), measures=[self.measure], mixing=[], sites=["cross"], layers=layers
        )
        for result in results:
            values = result.values[self.measure]
            if self.head is not None:
                values = values[:, self.head - 1]
            yield result.layer, {setting: pooling(values, setting) for setting in settings}

    def maps(self, pairs: Sequence[ForcedPair], layers: Sequence[int], setting: str) -> list[Map | None]:
        """One map per pair: the mean over the layers of each layer's row shares; None for a pair with a problem."""
        found: list[Map | None] = [None] * len(pairs)
        for chosen in self.batches(pairs):
            batch = [pairs[i] for i in chosen]
            pooling = WordPooling(batch, self.device)
            total: torch.Tensor | float = 0.0
            for _, pooled in self.layer_maps(batch, pooling, [setting], layers):
                rows = pooled[setting].double()
                total = total + torch.nan_to_num(rows / rows.sum(-1, keepdim=True))
            assert isinstance(total, torch.Tensor)
            mean = (total / len(layers)).cpu()
            for place, index in enumerate(chosen):
                found[index] = pooling.cut(mean, place).numpy()
        return found

    def agreement(self, pairs: Sequence[ForcedPair]) -> Agreement:
        """How far the two readings of each layer agree on these pairs (see `layers`)."""
        counted = Agreement.empty(self.layers)
        for chosen in self.batches(pairs):
            batch = [pairs[i] for i in chosen]
            pooling = WordPooling(batch, self.device)
            by_layer = [pooled for _, pooled in self.layer_maps(batch, pooling, SETTINGS, self.layers)]
            for place in range(len(chosen)):
                stacked: dict[str, Float[np.ndarray, "layer row column"]] = {
                    setting: np.stack([pooling.cut(pooled[setting], place).cpu().numpy() for pooled in by_layer])
                    for setting in SETTINGS
                }
                counted = counted + Agreement.of(self.layers, stacked["awi"], stacked["awo"])
        return counted

    def cached_agreement(self, pairs: Sequence[ForcedPair]) -> Agreement:
        """`agreement`, remembered per model and measure; counted again only where there is more text than there was."""
        usable = [pair for pair in pairs if pair.problem is None][:PAIRS_TO_CHOOSE_ON]
        path = _cache_folder() / f"{self._key()}.json"
        try:
            known = Agreement.from_dict(json.loads(path.read_text()))
            if known.layers == self.layers and known.pairs >= len(usable):
                return known
        except (OSError, ValueError, KeyError):
            pass  # nothing remembered, or nothing readable: count again
        counted = self.agreement(usable)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(counted.to_dict()))
            partial.replace(path)
        except OSError:
            pass  # a cache that cannot be written only costs time
        return counted

    def _key(self) -> str:
        content = content_hash(self.lens.model).replace(":", "-")
        return f"{content}-{self.measure}" + ("" if self.head is None else f"-head{self.head}")


def _cache_folder() -> Path:
    """`NORMLENS_CACHE`, or `normlens` in the user's cache folder."""
    given = os.environ.get("NORMLENS_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normlens"
    return (Path(given) if given else base) / "layers"
