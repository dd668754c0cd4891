"""From text to tensors and labels, and from single sequences to padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from normlens.anatomy.examine import is_encoder_decoder
from normlens.anatomy.inputs import longest_input
from normlens.anatomy.kinds import Kind
from normlens.errors import InputError
from normlens.inputs.prompts import Prompt
from normlens.inputs.tokens import Tokens, decoder_input, words_by_marks
from normlens.inputs.words import shortened
from normlens.types import Json

Text = str | Sequence[str]  # a text, or its words where it is pre-tokenized


@dataclass(frozen=True)
class EncodedText:
    """One sequence, ready to run: the tensors of one row, and the labels of its positions."""

    inputs: dict[str, tuple[int, ...]]
    source: Tokens
    target: Tokens | None = None
    written: tuple[int, ...] | None = None  # the target token that stands to be written at each target position
    notes: Json = field(default_factory=dict)  # for the provenance

    def sides(self, kind: Kind) -> tuple[Tokens, Tokens]:
        """The tokens that stand at the query and at the key axis of a kind of site."""
        queries = self.source if self.target is None or kind == "encoder" else self.target
        return queries, self.source if kind == "cross" else queries

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of source and target positions."""
        return len(self.source.ids), 0 if self.target is None else len(self.target.ids)


class TextEncoder:
    """Turns texts into sequences for one model and tokenizer."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._config: Any = getattr(model, "config", None)
        self._two_sided = is_encoder_decoder(model)
        self._limit = longest_input(model, tokenizer)
        self.padding = padding_id(model, tokenizer)  #: the id that fills up shorter rows

    def __call__(
        self, text: Text, pair: Text | None, target: Text | None, *, truncate: bool, pretokenized: bool
    ) -> EncodedText:
        """Encode one text (with its pair or its target)."""
        if self._two_sided and target is None:
            raise InputError(
                "target is missing for an encoder-decoder model; pass target=… (--target on the shell), or "
                "generate=True to analyse what the model itself writes"
            )
        if not self._two_sided and target is not None:
            raise InputError(
                "target is for encoder-decoder models, this one has one side; pass the text as a whole, or "
                "pair=… for a second segment"
            )
        prompt = self.prompt(text, pair, truncate=truncate, pretokenized=pretokenized)
        if target is None:
            return prompt
        shifted, labels, cut = self.target(target, truncate=truncate, pretokenized=pretokenized)
        inputs = {**prompt.inputs, "decoder_input_ids": shifted.ids}
        written = list(target) if pretokenized else target
        notes = prompt.notes | {"truncated": cut or prompt.notes["truncated"], "target": written}
        return EncodedText(inputs, prompt.source, shifted, labels, notes)

    def target(self, target: Text, *, truncate: bool, pretokenized: bool) -> tuple[Tokens, tuple[int, ...], bool]:
        """Encode a target: the decoder's input, the token that is written at each of its positions, and if it was cut."""
        if self._tokenizer is None:
            raise InputError("this lens has no tokenizer, which target needs; pass Lens(model, tokenizer)")
        _check_text(target, "target", pretokenized)
        written = list(target) if pretokenized else target
        encoding = self._tokenizer(text_target=written, is_split_into_words=pretokenized)
        labels, cut = self._tokens(encoding, "target", truncate, target, None)
        if labels.ids[0] == getattr(self._config, "decoder_start_token_id", None):  # Whisper's begin with it
            shifted = Tokens(labels.ids[:-1], labels.strings[:-1], labels.words[:-1])
            return shifted, labels.ids[1:], cut
        return self._shifted(labels), labels.ids, cut

    def prompt(self, text: Text, pair: Text | None, *, truncate: bool, pretokenized: bool) -> EncodedText:
        """Encode the side that is read: a text, with its pair."""
        if self._tokenizer is None:
            raise InputError(
                "this lens has no tokenizer; pass Lens(model, tokenizer), or tensors to analyze_inputs() or "
                "explain_inputs()"
            )
        _check_text(text, "text", pretokenized)
        if pair is not None:
            _check_text(pair, "pair", pretokenized)
        written: Json = {"text": text} if pair is None else {"text": text, "pair": pair}
        if pretokenized:
            written = {name: list(words) for name, words in written.items()}
        encoding = self._tokenizer(*written.values(), is_split_into_words=pretokenized)
        source, cut = self._tokens(encoding, "text", truncate, text, pair)
        inputs = {"input_ids": source.ids}
        wanted = getattr(self._tokenizer, "model_input_names", None)
        for name, given in encoding.items():
            if name not in ("input_ids", "attention_mask") and name in (
                wanted or ()
            ):  # the mask is made with the batch
                inputs[name] = tuple(given[: len(source.ids)])
        # Tokens alone do not say how a text was written, so the record holds the texts too.
        return EncodedText(inputs, source, notes={"truncated": cut, **written})

    def encode_prompt(self, prompt: Prompt) -> EncodedText:
        """Encode a prompt with named parts; the part of each token stands in the notes."""
        if self._tokenizer is None:
            raise InputError("this lens has no tokenizer; pass Lens(model, tokenizer)")
        if self._two_sided:
            raise InputError("messages and sources need a model with one side, this one has two; pass text and target")
        if not getattr(self._tokenizer, "is_fast", False):
            raise InputError("messages and sources need a fast tokenizer, which knows the characters of its tokens")
        _check_text(prompt.text, "text", False)
        encoding = self._tokenizer(
            prompt.text,
            add_special_tokens=not prompt.complete,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        offsets, special = encoding["offset_mapping"], encoding["special_tokens_mask"]
        source, _ = self._tokens(encoding, "text", False, prompt.text, None)
        inputs = {"input_ids": source.ids}
        if "token_type_ids" in encoding and "token_type_ids" in self._tokenizer.model_input_names:
            inputs["token_type_ids"] = tuple(encoding["token_type_ids"])
        notes: Json = {"truncated": False, "text": prompt.text}
        for name, stretches in (("sources", prompt.sources), ("messages", prompt.messages)):
            if stretches:
                notes[name] = prompt.parts_of_tokens(stretches, offsets, special)
                notes[f"{name}_named"] = list(dict.fromkeys(part for *_, part in stretches))
        return EncodedText(inputs, source, notes=notes)

    def continued(self, prompt: EncodedText, ids: Sequence[int]) -> EncodedText:
        """The prompt with more tokens after it; every other input goes on as `generate` has it."""
        source, more = prompt.source, self.label(ids)
        first = max(source.words, default=-1) + 1
        whole = Tokens(
            (*source.ids, *more.ids),
            (*source.strings, *more.strings),
            (*source.words, *(first + word for word in more.words)),
        )
        inputs = {"input_ids": whole.ids}
        for name, values in prompt.inputs.items():
            if name == "token_type_ids":
                inputs[name] = (*values, *values[-1:] * len(more.ids))
            elif name != "input_ids":
                raise InputError(
                    f"the tokenizer gives {name} for every token, and it is not known how it continues after the text; "
                    "prepare the inputs yourself and pass them to explain_inputs() or analyze_inputs()"
                )
        return EncodedText(inputs, whole, notes=prompt.notes)

    def with_target(self, prompt: EncodedText, ids: Sequence[int]) -> EncodedText:
        """The prompt with these tokens as the decoder's input."""
        target = self.label(ids)
        return EncodedText(
            {**prompt.inputs, "decoder_input_ids": target.ids}, prompt.source, target, notes=prompt.notes
        )

    def label(self, ids: Sequence[int]) -> Tokens:
        """Token strings and words for bare ids."""
        if self._tokenizer is None:
            return Tokens(tuple(ids), tuple(str(i) for i in ids), tuple(range(len(ids))))
        # An id may have no token: many models have more embeddings than their tokenizer has entries.
        found = self._tokenizer.convert_ids_to_tokens(list(ids))
        strings = tuple(str(i) if token is None else token for i, token in zip(ids, found, strict=True))
        return Tokens(tuple(ids), strings, words_by_marks(strings, self._specials()))

    def _tokens(self, encoding: Any, what: str, truncate: bool, text: Text, pair: Text | None) -> tuple[Tokens, bool]:
        ids = list(encoding["input_ids"])
        special = set(self._tokenizer.all_special_ids)
        content = [i for i in ids if i not in special]
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        if not content and unknown not in ids:
            raise InputError(f"the {what} has no token, got {shortened(text)}; pass some words")
        if unknown is not None and all(i == unknown for i in ids if i not in special or i == unknown):
            raise InputError(
                f"every token of the {what} is unknown to the model, got {shortened(text)}; is this the right "
                "tokenizer?"
            )
        cut = False
        if self._limit is not None and len(ids) > self._limit:
            if not truncate:
                raise InputError(
                    f"the {what} has {len(ids)} tokens and the model takes {self._limit}; shorten it, or pass "
                    "truncate=True (--truncate on the shell)"
                )
            encoding = self._shortened(what, text, pair, self._limit)
            ids, cut = list(encoding["input_ids"]), True
        strings = tuple(self._tokenizer.convert_ids_to_tokens(ids))
        if not getattr(self._tokenizer, "is_fast", False):
            return Tokens(tuple(ids), strings, words_by_marks(strings, self._specials())), cut
        # Neighbours of one segment with the same word id are one word; a special token has none and stands alone.
        places = [(None, None), *zip(encoding.sequence_ids(), encoding.word_ids(), strict=True)]
        begins = [place[1] is None or place != before for before, place in pairwise(places)]
        return Tokens(tuple(ids), strings, tuple(word - 1 for word in accumulate(begins))), cut

    def _shortened(self, what: str, text: Text, pair: Text | None, limit: int) -> Any:
        split = not isinstance(text, str)
        options: Json = {"truncation": True, "max_length": limit, "is_split_into_words": split}
        first = list(text) if split else text
        if what == "target":
            return self._tokenizer(text_target=first, **options)
        second = None if pair is None else list(pair) if split else pair
        return self._tokenizer(first, second, **options)

    def _shifted(self, labels: Tokens) -> Tokens:
        """The decoder's input, with the start token as a word of its own."""
        ids = decoder_input(labels.ids, getattr(self._config, "decoder_start_token_id", None))
        string = str(self._tokenizer.convert_ids_to_tokens([ids[0]])[0])
        return Tokens(ids, (string, *labels.strings[:-1]), (0, *(word + 1 for word in labels.words[:-1])))

    def _specials(self) -> set[str]:
        return set(self._tokenizer.all_special_tokens)


def as_lists(text: Any, pair: Any, target: Any, pretokenized: bool) -> tuple[bool, list[tuple[Any, Any, Any]]]:
    """Return whether one text was given, and all texts with their pairs and targets."""
    if isinstance(text, bytes | Mapping | Tensor) or not (isinstance(text, str) or hasattr(text, "__iter__")):
        raise InputError(
            f"text must be a string or a list of strings, got {type(text).__name__}; tensors go to "
            "analyze_inputs() or explain_inputs(), images and sound to images=… and audio=…"
        )
    single = isinstance(text, str) or (pretokenized and bool(text) and isinstance(text[0], str))
    texts = [text] if single else list(text)
    if not texts:
        raise InputError("the list of texts is empty")
    columns: list[list[Any]] = [texts]
    for what, given in (("pair", pair), ("target", target)):
        if isinstance(given, str) and not single:
            raise InputError(f"{what} must be a list for a list of {len(texts)} texts, got one string")
        items = [None] * len(texts) if given is None else [given] if single else list(given)
        if len(items) != len(texts):
            raise InputError(f"got {len(texts)} texts and {len(items)} {what}s; each text needs its {what}")
        columns.append(items)
    return single, list(zip(*columns, strict=True))


def _check_text(text: Text, what: str, pretokenized: bool) -> None:
    if pretokenized:
        if isinstance(text, str) or not all(isinstance(word, str) and word.strip() for word in text) or not text:
            raise InputError(
                f"a pre-tokenized {what} must be a list of words, none of them empty, got {shortened(text)}"
            )
    elif not isinstance(text, str):
        raise InputError(f"the {what} must be a string, got {type(text).__name__}; pass pretokenized=True for words")
    elif not text.strip():
        raise InputError(f"the {what} is empty; pass the sentence to analyse")
    written = text if isinstance(text, str) else " ".join(text)
    half = next((i for i, character in enumerate(written) if "\ud800" <= character <= "\udfff"), None)
    if half is not None:
        raise InputError(
            f"character {half} of the {what} is half of a surrogate pair (bytes read in another encoding?); read "
            "the text as UTF-8, or leave that character out"
        )


def padding_id(model: nn.Module, tokenizer: Any) -> int:
    """The id that fills up shorter rows: the tokenizer's, else the model's, else 0 (it is masked anyway)."""
    for owner in (tokenizer, getattr(model, "config", None)):
        pad = getattr(owner, "pad_token_id", None)
        if isinstance(pad, int) and pad >= 0:
            return pad
    return 0


def pad_rows(rows: Sequence[Mapping[str, Sequence[int]]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """One batch of rows by name, padded on the right: there a decoder's positions stay what they are without padding."""
    batch: dict[str, Tensor] = {}
    for name in rows[0]:
        longest = max(len(row[name]) for row in rows)
        filler = pad if name.endswith("input_ids") else 0
        padded = [[*row[name], *[filler] * (longest - len(row[name]))] for row in rows]
        batch[name] = torch.tensor(padded, device=device)
        if name.endswith("input_ids"):
            real = [[1] * len(row[name]) + [0] * (longest - len(row[name])) for row in rows]
            batch[name.replace("input_ids", "attention_mask")] = torch.tensor(real, device=device)
    return batch
