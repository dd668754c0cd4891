"""One translation model's maps of sentence pairs: cross-attention, layer by layer, pooled from subwords to words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from normlens.alignment.extraction import JointMap, WordMap, joined_views
from normlens.alignment.layer_choice import SETTINGS, Agreement, recall_agreement, remember_agreement
from normlens.alignment.pair_encoding import EncodedPair, PairEncoder, PairFormat, PromptEncoder
from normlens.anatomy.kinds import Kind
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.measures.request import Request
from normlens.measures.run import SiteResult
from normlens.measures.table import MEASURES
from normlens.options import Setting
from normlens.provenance import config_digest, describe_model, tokenizer_digest
from normlens.types import Json

#: Layers are chosen on at most this many pairs: on the models tried the choice is the same from about 20 on.
PAIRS_TO_CHOOSE_ON = 200


class WordPooling:
    """Subwords to words for a whole batch: a source word's columns are added, a target word's rows averaged.

    Both are products with 0/1 matrices, so a batch is pooled in two matrix products. The last column is the largest of
    the source's special tokens (EOS, language code): what no word aligns to.
    """

    def __init__(self, pairs: Sequence[EncodedPair], device: torch.device) -> None:
        self.pairs = pairs
        batch = len(pairs)
        words = max(len(pair.columns) for pair in pairs), max(len(pair.rows) for pair in pairs)
        keys = max(len(pair.source_ids) for pair in pairs)
        queries = max(len(pair.decoder_ids) for pair in pairs)
        columns = torch.zeros(batch, keys, words[0])
        special = torch.zeros(batch, keys, dtype=torch.bool)
        rows = torch.zeros(batch, words[1], queries)
        for i, pair in enumerate(pairs):
            special[i, : len(pair.source_ids)] = True
            for word, places in enumerate(pair.columns):
                columns[i, list(places), word] = 1
                special[i, list(places)] = False
            for word, places in enumerate(pair.rows):
                rows[i, word, list(places)] = 1 / max(1, len(places))
        self._columns, self._special = columns.to(device), special.to(device)
        # The step whose output is y_t stands one row above the step whose input it is.
        before = torch.cat([rows[..., 1:], torch.zeros(batch, words[1], 1)], dim=-1)
        self._rows: dict[Setting, Tensor] = {"awi": rows.to(device), "awo": before.to(device)}

    def __call__(
        self, values: Float[Tensor, "*batch query key"], setting: Setting
    ) -> Float[Tensor, "*batch target_word source_word_and_null"]:
        """Pool a batch's map; with a head axis after the batch, each head's."""
        if setting not in SETTINGS:
            raise InputError(f"setting must be one of {', '.join(SETTINGS)}, got {setting!r}")
        rows, columns, special = self._rows[setting], self._columns, self._special
        if values.ndim == 4:
            rows, columns, special = rows.unsqueeze(1), columns.unsqueeze(1), special.unsqueeze(1)
        averaged = rows.to(values.dtype) @ values
        null = averaged.masked_fill(~special.unsqueeze(-2), 0).amax(-1, keepdim=True)
        return torch.cat([averaged @ columns.to(values.dtype), null], dim=-1)

    def one_pair(self, pooled: Float[Tensor, "*batch row column"], index: int) -> Float[Tensor, "*head row column"]:
        """One pair's map without the padding of the batch; the null column stays last."""
        pair = self.pairs[index]
        mine = pooled[index][..., : len(pair.rows), :]
        return torch.cat([mine[..., : len(pair.columns)], mine[..., -1:]], dim=-1)


class WordMapper:
    """A model that reads one side of a pair and is made to write the other; gives the maps of its words."""

    def __init__(
        self,
        lens: Lens,
        form: PairFormat | None = None,
        *,
        measure: str = "attn_n",
        head: int | None = None,
        batch_tokens: int = 4096,
    ) -> None:
        form = form or PairFormat()
        self.kind: Kind = "decoder" if form.prompt else "cross"
        if self.kind not in lens.anatomy.kinds or (form.prompt and "cross" in lens.anatomy.kinds):
            raise InputError(
                f"{lens.family} has {', '.join(lens.anatomy.kinds)} attention and the prompt is {form.prompt!r}; "
                "alignment needs cross-attention, or a decoder-only model with {source} and {target} in its "
                "prompt"
            )
        if measure not in MEASURES or "query" not in MEASURES[measure].axes:
            maps = [name for name, known in MEASURES.items() if "query" in known.axes]
            raise InputError(f"measure must be one of {', '.join(maps)} for alignment, got {measure!r}")
        by_head = "head" in MEASURES[measure].axes
        if by_head != (head is not None):
            advice = "say which head" if by_head else "leave out the head, or take alpha or af_norm"
            raise InputError(f"measure {measure} cannot be used with head={head}; {advice}")
        sites = [site for site in lens.anatomy.sites if site.kind == self.kind]
        if head is not None and not 1 <= head <= sites[0].heads:
            raise InputError(f"head must be from 1 to {sites[0].heads}, got {head}")
        self.lens, self.measure, self.head, self.batch_tokens = lens, measure, head, batch_tokens
        self.layers: tuple[int, ...] = tuple(site.layer for site in sites)
        self.heads: int = sites[0].heads
        encoder = PromptEncoder if form.prompt else PairEncoder
        self.encoder: PairEncoder | PromptEncoder = encoder(lens.model, lens.tokenizer, form)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.lens.model.parameters()).device

    def describe(self) -> Json:
        """The model's identity in a record; its name goes without the folders around it, which are the user's."""
        name = Path(str(getattr(self.lens.model.config, "_name_or_path", ""))).name or None
        model = self.lens.model
        digests = {"config": config_digest(model), "tokenizer": tokenizer_digest(self.lens.tokenizer)}
        return {**describe_model(model, name, self.lens.family), **digests}

    def batches(self, pairs: Sequence[EncodedPair], budget: int | None = None) -> Iterator[list[int]]:
        """Indices of pairs of similar length that fit the token budget; pairs with a problem are left out."""
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

    def measure_batch(
        self,
        batch: Sequence[EncodedPair],
        take: Callable[[SiteResult], None],
        *,
        measures: Sequence[str],
        layers: Sequence[int] | None = None,
    ) -> None:
        """One forward pass over the pairs; each layer's cross-attention is handed to `take` as the layer ends."""
        request = Request.of(self.lens.anatomy, measures=measures, mixing=[], sites=[self.kind], layers=layers)
        self.lens.run(self.encoder.batch(batch, self.device), request, lambda result, block: take(result))

    def pooled_layers(
        self, batch: Sequence[EncodedPair], settings: Sequence[Setting], layers: Sequence[int] | None = None
    ) -> tuple[WordPooling, list[dict[Setting, Tensor]]]:
        """The word maps of a batch in each of the settings, one entry per layer, from one forward pass."""
        pooling = WordPooling(batch, self.device)
        found: list[dict[Setting, Tensor]] = []

        def pool(result: SiteResult) -> None:
            values = result.values[self.measure]
            if self.head is not None:
                values = values[:, self.head - 1]
            found.append({setting: pooling(values, setting) for setting in settings})

        self.measure_batch(batch, pool, measures=[self.measure], layers=layers)
        return pooling, found

    def maps(self, pairs: Sequence[EncodedPair], layers: Sequence[int], setting: Setting) -> list[WordMap | None]:
        """One map per pair: the mean over the layers of each layer's row shares; None for a pair with a problem."""
        found: list[WordMap | None] = [None] * len(pairs)
        for chosen in self.batches(pairs):
            pooling, by_layer = self.pooled_layers([pairs[i] for i in chosen], [setting], layers)
            rows = torch.stack([pooled[setting] for pooled in by_layer]).cpu().double()
            mean = torch.nan_to_num(rows / rows.sum(-1, keepdim=True)).mean(0)
            for place, index in enumerate(chosen):
                found[index] = pooling.one_pair(mean, place).numpy()
        return found

    def views(self, pairs: Sequence[EncodedPair], layers: Sequence[int], setting: Setting) -> list[JointMap | None]:
        """One map per pair: the layers' maps as views of one alignment (see `joined_views`)."""
        found: list[JointMap | None] = [None] * len(pairs)
        for chosen in self.batches(pairs):
            pooling, by_layer = self.pooled_layers([pairs[i] for i in chosen], [setting], layers)
            rows = [pooled[setting].cpu() for pooled in by_layer]
            for place, index in enumerate(chosen):
                found[index] = joined_views(np.stack([pooling.one_pair(one, place).numpy() for one in rows]))
        return found

    def agreement(self, pairs: Sequence[EncodedPair]) -> Agreement:
        """The agreement of the two readings of each layer on these pairs (see `layer_choice`)."""
        counted = Agreement.empty(self.layers)
        for chosen in self.batches(pairs):
            pooling, by_layer = self.pooled_layers([pairs[i] for i in chosen], SETTINGS)
            for place in range(len(chosen)):
                stacked: dict[Setting, Float[np.ndarray, "layer row column"]] = {
                    setting: np.stack([pooling.one_pair(pooled[setting], place).cpu().numpy() for pooled in by_layer])
                    for setting in SETTINGS
                }
                counted = counted + Agreement.of(self.layers, stacked["awi"], stacked["awo"])
        return counted

    def agreement_on_first(self, pairs: Sequence[EncodedPair]) -> Agreement:
        """`agreement` on the first pairs that can be aligned: a function of model, measure and text.

        It is remembered under exactly those, so that asking again costs nothing and changes nothing.
        """
        usable = [pair for pair in pairs if pair.problem is None][:PAIRS_TO_CHOOSE_ON]
        seen = hashlib.sha256()
        for pair in usable:
            seen.update(repr((pair.source_ids, pair.decoder_ids, pair.columns, pair.rows)).encode())
        content = self.lens.identity["content"].replace(":", "-")
        config = config_digest(self.lens.model)[:16]
        head = "" if self.head is None else f"-head{self.head}"
        key = f"{content}-{config}-{self.measure}{head}-{seen.hexdigest()[:16]}"
        known = recall_agreement(key)
        if known is not None and known.layers == self.layers and known.pairs == len(usable):
            return known
        counted = self.agreement(usable)
        remember_agreement(key, counted)
        return counted
