"""From texts to jobs: the row that the model runs, and which numbers of its output are explained, step by step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normlens.anatomy.examine import is_encoder_decoder
from normlens.anatomy.scope import PassScope
from normlens.attribution.questions import Output, Question, Resolver
from normlens.errors import InputError, NormlensError
from normlens.inputs.encoding import EncodedText, Text, TextEncoder, pad_rows
from normlens.inputs.prompts import Prompt
from normlens.lens import Lens
from normlens.types import Kwargs

#: Tokens that a causal model writes where its caller does not say how many.
_MOST_NEW_TOKENS = 20


@dataclass(frozen=True)
class TextQuestion:
    """One row as a user asks for it."""

    text: Text | Prompt
    pair: Text | None
    target: Text | None
    output: Output
    against: Output
    position: int | None


@dataclass(frozen=True)
class Reading:
    """Options for reading texts."""

    generate: bool = False
    truncate: bool = False
    pretokenized: bool = False
    max_new_tokens: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_new_tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or not least <= value < 2**63):
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("max_new_tokens", "seed"):
            if getattr(self, name) is not None and not self.generate:
                raise InputError(f"{name} needs generate=True; leave it out, or pass both")


@dataclass(frozen=True)
class Job:
    """One row: its text, and what is asked of it, step by step (positions among the real ones)."""

    text: EncodedText
    steps: tuple[Question, ...]
    stepwise: bool = False


class JobWriter:
    """Writes jobs for one model."""

    def __init__(self, lens: Lens, resolver: Resolver, reading: Reading, *, direction: bool) -> None:
        self._model, self._resolver, self._reading, self._direction = resolver.model, resolver, reading, direction
        self._encoder: TextEncoder = lens.encoder
        self._two_sided = is_encoder_decoder(self._model)

    def __call__(self, asked: TextQuestion) -> Job:
        """The job of one row."""
        if self._reading.generate:
            return self._generated(asked)
        if self._resolver.head == "translation" and asked.target is None and asked.output is not None:
            return self._written(asked)
        text = self._encoded(asked)
        if self._direction:
            return Job(text, (self._question(text, asked.position, None, None),))
        against = None if asked.against is None else self._resolver.one(asked.against, "against")
        if asked.output is None:
            return Job(text, (self._question(text, asked.position, None, against),))
        ids = self._resolver.ids(asked.output, "output")
        if len(ids) == 1:
            return Job(text, (self._question(text, asked.position, ids[0], against),))
        self._check_several(asked, ids)
        return self._continued(text, ids)

    def _encoded(self, asked: TextQuestion) -> EncodedText:
        if isinstance(asked.text, Prompt):
            return self._encoder.encode_prompt(asked.text)
        if self._two_sided and asked.target is None and self._resolver.head == "sequence":
            return self._prompt(asked)  # it feeds its own input to its decoder
        how = self._reading
        return self._encoder(asked.text, asked.pair, asked.target, truncate=how.truncate, pretokenized=how.pretokenized)

    def _prompt(self, asked: TextQuestion) -> EncodedText:
        if isinstance(asked.text, Prompt):
            return self._encoder.encode_prompt(asked.text)
        how = self._reading
        return self._encoder.prompt(asked.text, asked.pair, truncate=how.truncate, pretokenized=how.pretokenized)

    def _question(self, text: EncodedText, position: int | None, output: int | None, against: int | None) -> Question:
        side = text.source if text.target is None else text.target
        places = range(len(side.ids))
        if self._direction and position is None:
            return Question(places[-1], None)
        place = self._resolver.position(position, places, side.ids)
        if output is None and text.written is not None and self._resolver.head == "translation":
            output = text.written[place]  # the target token that the decoder is made to write there
        return Question(place, output, against)

    # ---- an output of several tokens, and what the model writes ----------------------------------------------------

    def _check_several(self, asked: TextQuestion, ids: Sequence[int]) -> None:
        if self._resolver.head != "causal":
            tokens = ", ".join(map(repr, self._resolver.tokenizer.convert_ids_to_tokens(list(ids))))
            model = type(self._model).__name__
            raise InputError(
                f"output must be one token for {model}, got {asked.output!r} with {len(ids)} ({tokens}); pass one "
                "of them, or its number (causal language models explain several, step by step)"
            )
        if asked.position is not None or asked.against is not None:
            self._resolver.one(asked.output, "output")  # says that one token is meant

    def _continued(self, text: EncodedText, ids: Sequence[int]) -> Job:
        """Each token of the output is explained from what stands before it, all in one row."""
        last = len(text.source.ids) - 1
        row = self._encoder.continued(text, ids[:-1])
        return Job(row, tuple(Question(last + i, token) for i, token in enumerate(ids)), True)

    def _written(self, asked: TextQuestion) -> Job:
        """An encoder-decoder without a target: the output is what it is made to write from the start."""
        if asked.position is not None:
            raise InputError("position needs a target, none was given; pass target=… with it, or leave position out")
        ids = self._resolver.ids(asked.output, "output")
        against = None if asked.against is None else self._resolver.one(asked.against, "against")
        if against is not None:
            self._resolver.one(asked.output, "output")
        prompt = self._prompt(asked)
        row = self._encoder.with_target(prompt, [self._resolver.start_token(), *ids[:-1]])
        steps = tuple(Question(i, token, against) for i, token in enumerate(ids))
        return Job(row, steps, len(ids) > 1)

    def _generated(self, asked: TextQuestion) -> Job:
        """The text that the model writes; of a causal model without the token that ends it."""
        if any(x is not None for x in (asked.target, asked.output, asked.against, asked.position)):
            raise InputError(
                "generate=True excludes target, output, against and position, which belong to a text that is "
                "given; drop them"
            )
        model: Any = self._model
        writes = getattr(model, "can_generate", lambda: hasattr(model, "generate"))()
        if self._resolver.head not in ("causal", "translation") or not writes:
            raise InputError(f"{type(model).__name__} cannot generate text; load it with its language-model head")
        prompt = self._prompt(asked)
        written = self._write(prompt)
        notes = prompt.notes | {"generated": True, "seed": self._reading.seed}
        if self._resolver.head == "translation":
            row = self._encoder.with_target(prompt, written[:-1])
            steps = tuple(Question(i, token) for i, token in enumerate(written[1:]))
            return Job(replace(row, notes=notes), steps, True)
        start = len(prompt.source.ids)
        if len(written) == start:
            raise InputError("the model wrote nothing for this text, so there is nothing to explain")
        job = self._continued(prompt, written[start:])
        return replace(job, text=replace(job.text, notes=notes))

    def _write(self, prompt: EncodedText) -> list[int]:
        """The tokens of prompt and continuation (of an encoder-decoder: of the target), up to the token that ends them."""
        batch = pad_rows([prompt.inputs], self._encoder.padding, next(self._model.parameters()).device)
        return written_tokens(self._resolver, self._reading, batch, self._encoder.padding, len(prompt.source.ids))


def written_tokens(
    resolver: Resolver, reading: Reading, batch: Mapping[str, Tensor], padding: int, prompt_length: int
) -> list[int]:
    """The tokens that a model writes for one row, its prompt (or its decoder's start token) included.

    Args:
        resolver: Knows the model and its head.
        reading: The options of generation.
        batch: The inputs of the row.
        padding: The id of padding.
        prompt_length: The tokens of the prompt. Of a causal model's text the token that ends it is left out.
    """
    model: Any = resolver.model
    accepted = inspect.signature(model.forward).parameters  # a tokenizer may give more than its model takes
    options: Kwargs = {name: value for name, value in batch.items() if name in accepted}
    options |= {"num_beams": 1, "do_sample": reading.seed is not None, "pad_token_id": padding}
    most = reading.max_new_tokens
    if most is None and resolver.head == "causal":
        most = _MOST_NEW_TOKENS
    if most is not None:  # a translation ends where its model says
        options["max_new_tokens"] = most
    with PassScope(model), torch.random.fork_rng():
        if reading.seed is not None:
            torch.manual_seed(reading.seed)
        try:
            written = [int(i) for i in model.generate(**options)[0]]
        except NormlensError:
            raise
        except Exception as error:  # each family checks its generation configuration in its own way
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            raise InputError(
                f"{type(model).__name__} failed to generate: {type(error).__name__}: {reason}; pass what it is made to write"
            ) from error
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    if resolver.head == "causal" and len(written) > prompt_length + 1 and written[-1] in ends:
        written = written[:-1]
    return written
