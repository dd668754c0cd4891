"""Translations by the model itself, so that marks can be carried into a text that does not exist yet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from normlens.alignment.pair_encoding import PairEncoder, PairFormat
from normlens.errors import InputError
from normlens.inputs.words import sentence_ends
from normlens.lens import Lens

#: Beams of the search; with no sampling, the same text gives the same translation.
BEAMS = 4
#: Padded tokens per batch.
BATCH_TOKENS = 2048


class Translator:
    """Translates sentences with an encoder-decoder model, as its own configuration says."""

    def __init__(self, lens: Lens, form: PairFormat) -> None:
        if not hasattr(lens.model, "generate"):
            raise InputError(f"{lens.family} has no generate(), which translating needs; pass a model that writes text")
        self.lens, self.form = lens, form
        self.encoder = PairEncoder(lens.model, lens.tokenizer, form)

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """One translation per text; an empty text has an empty one, one beyond the model's length goes by sentences."""
        parts = [self._sentences(text) if self._too_long(text) else [text] for text in texts]
        found = iter(self._each([sentence for part in parts for sentence in part]))
        return [" ".join(next(found) for _ in part) for part in parts]

    def _too_long(self, text: str) -> bool:
        longest = self.encoder.limit
        return longest is not None and len(text) > longest and self._length(text) > longest

    def _length(self, text: str) -> int:
        tokenizer: Any = self.lens.tokenizer
        return len(tokenizer(self._with_prefix(text), truncation=False)["input_ids"])

    def _sentences(self, text: str) -> list[str]:
        words = text.split(" ")
        ends = sentence_ends(words)
        cuts = [0, *ends, *([] if ends and ends[-1] == len(words) else [len(words)])]
        return [" ".join(words[start:end]) for start, end in pairwise(cuts)]

    def _each(self, sentences: Sequence[str]) -> list[str]:
        found = [""] * len(sentences)
        order = sorted((i for i, text in enumerate(sentences) if text.strip()), key=lambda i: len(sentences[i]))
        batch: list[int] = []
        for index in order:
            # A character is at most about a token, in a script without spaces; four are one elsewhere.
            if batch and (len(batch) + 1) * (len(sentences[index]) // 3 + 8) > BATCH_TOKENS:
                self._translate(sentences, batch, found)
                batch = []
            batch.append(index)
        if batch:
            self._translate(sentences, batch, found)
        return found

    def _translate(self, sentences: Sequence[str], batch: Sequence[int], found: list[str]) -> None:
        tokenizer: Any = self.lens.tokenizer
        model: Any = self.lens.model
        texts = [self._with_prefix(sentences[i]) for i in batch]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, truncation=False)
        longest = self.encoder.limit
        if longest is not None and inputs["input_ids"].shape[1] > longest:
            raise InputError(
                f"a sentence has {inputs['input_ids'].shape[1]} subwords, the model takes {longest}; split it, or "
                "give its translation"
            )
        device = next(model.parameters()).device
        start = self.encoder.decoder_start[1:]
        forced = {"forced_bos_token_id": start[0]} if start and self.form.target_language else {}
        with torch.inference_mode():
            written = model.generate(
                **{name: values.to(device) for name, values in inputs.items()},
                num_beams=BEAMS,
                do_sample=False,
                max_new_tokens=min(longest or 512, 2 * inputs["input_ids"].shape[1] + 20),
                **forced,
            )
        for index, text in zip(batch, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
            found[index] = text.strip()

    def _with_prefix(self, sentence: str) -> str:
        prefix = self.form.source_prefix
        return f"{prefix.rstrip()} {sentence}" if prefix else sentence
