"""Sentence pairs as a translation model takes them: the source read, the target force-decoded, and where words stand.

The decoder's input is start, (language code,) y1 … yn. Read with its input (`awi`), the row of y_t is the step that
takes y_t in; read with its output (`awo`), it is the step before, which puts y_t out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.alignment.layers import SETTINGS
from normlens.alignment.words import Segmented, Segmenter
from normlens.errors import InputError


@dataclass(frozen=True)
class ForcedPair:
    """One pair ready for the model: ids of both sides, and the positions of each word in them."""

    source: Segmented
    target: Segmented
    source_ids: tuple[int, ...]
    decoder_ids: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    problem: str | None = None

    @property
    def length(self) -> int:
        """Tokens of the longer side, which decides what a batch costs."""
        return max(len(self.source_ids), len(self.decoder_ids))


class Forcing:
    """Turns lines of text into `ForcedPair`s and those into the model's inputs."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        raw: bool = False,
        source_prefix: str = "",
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> None:
        if tokenizer is None:
            raise InputError("Alignment starts from text, so the model needs its tokenizer: this one has none.")
        for attribute, value in (("src_lang", source_language), ("tgt_lang", target_language)):
            if value is not None:
                if not hasattr(tokenizer, attribute):
                    raise InputError(
                        f"This tokenizer knows no languages: leave out {value!r} (or use a source prefix)."
                    )
                setattr(tokenizer, attribute, value)
        self.source = Segmenter(tokenizer, raw=raw)
        self.target = Segmenter(tokenizer, target=True, raw=raw)
        self.head = self.source.prefix + self.source.text_ids(source_prefix)
        config = model.config
        start = getattr(config, "decoder_start_token_id", None)
        if start is None:  # mBART starts with the label that ends the sentence
            start = self.target.suffix[-1] if self.target.suffix else getattr(config, "bos_token_id", None)
        if start is None:
            raise InputError("Force-decoding needs a start token: set decoder_start_token_id in the model's config.")
        self.start: tuple[int, ...] = (int(start), *self.target.prefix)
        self.pad: int = next(
            i
            for i in (getattr(config, "pad_token_id", None), getattr(tokenizer, "pad_token_id", None), 0)
            if i is not None
        )
        limits = (getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None))
        self.limit: int | None = min((n for n in limits if n is not None and n < 10**9), default=None)

    def __call__(self, source: str, target: str) -> ForcedPair:
        """Prepare one pair; a pair that cannot be aligned says why in `problem` and is never shortened silently."""
        source_words, target_words = self.source(source), self.target(target)
        source_ids = self.head + source_words.ids + self.source.suffix
        decoder_ids = self.start + target_words.ids
        problem = None
        if not source_words.words or not target_words.words:
            problem = "an empty side"
        elif not source_words.ids or not target_words.ids:
            problem = "a side without subwords"
        elif self.limit is not None and max(len(source_ids), len(decoder_ids)) > self.limit:
            problem = f"{max(len(source_ids), len(decoder_ids))} subwords, the model takes {self.limit}"
        return ForcedPair(
            source_words,
            target_words,
            source_ids,
            decoder_ids,
            _shifted(source_words.spans, len(self.head)),
            _shifted(target_words.spans, len(self.start)),
            problem,
        )

    def inputs(self, pairs: Sequence[ForcedPair], device: torch.device) -> dict[str, Tensor]:
        """One batch, padded on the right."""
        batch = {}
        for name, rows in (
            ("", [pair.source_ids for pair in pairs]),
            ("decoder_", [pair.decoder_ids for pair in pairs]),
        ):
            width = max(map(len, rows))
            ids = [[*row, *[self.pad] * (width - len(row))] for row in rows]
            real = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
            batch[f"{name}input_ids"] = torch.tensor(ids, device=device)
            batch[f"{name}attention_mask"] = torch.tensor(real, device=device)
        return batch


def _shifted(spans: Sequence[Sequence[int]], by: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(place + by for place in span) for span in spans)


class WordPooling:
    """Subwords to words for a whole batch: a source word's columns are added, a target word's rows averaged.

    Both are products with 0/1 matrices, so a batch is pooled in two matrix products. The last column is the largest of
    the source's special tokens (EOS, language code): what no word aligns to.
    """

    def __init__(self, pairs: Sequence[ForcedPair], device: torch.device) -> None:
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
        self._rows = {"awi": rows.to(device), "awo": before.to(device)}

    def __call__(
        self, values: Float[Tensor, "*batch query key"], setting: str
    ) -> Float[Tensor, "*batch target_word source_word_and_null"]:
        """Pool a batch's map; with a head axis behind the batch, each head's."""
        if setting not in SETTINGS:
            raise InputError(f"A setting is one of {', '.join(SETTINGS)}: {setting!r} is neither.")
        rows, columns, special = self._rows[setting], self._columns, self._special
        if values.ndim == 4:
            rows, columns, special = rows.unsqueeze(1), columns.unsqueeze(1), special.unsqueeze(1)
        averaged = rows.to(values.dtype) @ values
        null = averaged.masked_fill(~special.unsqueeze(-2), 0).amax(-1, keepdim=True)
        return torch.cat([averaged @ columns.to(values.dtype), null], dim=-1)

    def cut(self, pooled: Float[Tensor, "*batch row column"], index: int) -> Float[Tensor, "*head row column"]:
        """One pair's map without the padding of the batch; the null column stays last."""
        pair = self.pairs[index]
        mine = pooled[index][..., : len(pair.rows), :]
        return torch.cat([mine[..., : len(pair.columns)], mine[..., -1:]], dim=-1)
