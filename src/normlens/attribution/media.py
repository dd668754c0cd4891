"""Explain models that see or hear: from images, sound and text to rows, and which number of each is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normlens.anatomy.examine import is_encoder_decoder
from normlens.attribution.jobs import Job, Reading, written_tokens
from normlens.attribution.questions import Output, Question, Resolver, real_positions
from normlens.errors import InputError
from normlens.inputs.encoding import EncodedText
from normlens.inputs.media import MediaRow, extended, joined
from normlens.inputs.tokens import Tokens

if TYPE_CHECKING:
    from normlens.lens import Lens


class MediaJobs:
    """Makes the inputs of rows of images or sound, and what is asked of each.

    Args:
        lens: The model with its processor.
        resolver: Turns names of outputs into numbers.
        reading: Options for reading and writing.
        direction: Whether a direction is explained, and no output.
    """

    def __init__(self, lens: Lens, resolver: Resolver, reading: Reading, *, direction: bool) -> None:
        self._lens, self._resolver, self._reading, self._direction = lens, resolver, reading, direction
        self._two_sided = is_encoder_decoder(resolver.model)

    def write(
        self, row: MediaRow, target: str | None, output: Output, against: Output, position: int | None
    ) -> tuple[MediaRow, Job | None]:
        """The row with all that the model reads, and its job; None where one number of a single pass is asked for."""
        if self._reading.generate:
            if any(x is not None for x in (target, output, against, position)):
                raise InputError("generate=True excludes target, output, against and position; drop them")
            return self._generated(row)
        if target is not None:
            return self._with_target(row, target), None
        if self._two_sided and self._resolver.head == "translation":
            if output is None:
                raise InputError("target is missing; pass target=…, output=…, or generate=True")
            if position is not None:
                raise InputError(
                    "position needs a target, none was given; pass target=… with it, or leave position out"
                )
            ids = self._resolver.ids(output, "output")
            second = None if against is None else self._resolver.one(against, "against")
            if second is not None:
                self._resolver.one(output, "output")  # says that one token is meant
            return self._written(row, [self._resolver.start_token(), *ids], second)
        if self._resolver.head == "causal" and isinstance(output, str) and not self._direction:
            ids = self._resolver.ids(output, "output")
            if len(ids) > 1:
                if position is not None or against is not None:
                    self._resolver.one(output, "output")  # says that one token is meant
                return self._continued(row, ids)
        return row, None

    def _with_target(self, row: MediaRow, target: str) -> MediaRow:
        if not self._two_sided:
            raise InputError("target is for encoder-decoder models, this one has one side; pass output=…")
        shifted, _, _ = self._lens.encoder.target(target, truncate=self._reading.truncate, pretokenized=False)
        return _with_decoder(row, shifted.ids, {"target": target})

    def _generated(self, row: MediaRow) -> tuple[MediaRow, Job]:
        model: Any = self._resolver.model
        if self._resolver.head not in ("causal", "translation") or not hasattr(model, "generate"):
            raise InputError(f"{type(model).__name__} cannot generate text; load it with its language-model head")
        first = next(model.parameters())
        batch = joined([row], first.device, first.dtype)
        prompt = [] if self._two_sided else batch["input_ids"][0].tolist()
        written = written_tokens(self._resolver, self._reading, batch, self._lens.encoder.padding, len(prompt))
        notes = {"generated": True, "seed": self._reading.seed}
        if self._two_sided:
            start = self._resolver.start_token()
            found = self._written(row, written if written[:1] == [start] else [start, *written])
        else:
            new = written[len(prompt) :] if written[: len(prompt)] == prompt else written
            if not new:
                raise InputError("the model wrote nothing for this input, so there is nothing to explain")
            found = self._continued(row, new)
        return replace(found[0], notes=found[0].notes | notes), found[1]

    def _written(self, row: MediaRow, written: Sequence[int], against: int | None = None) -> tuple[MediaRow, Job]:
        """What a decoder writes from its start token on, token by token."""
        read = _with_decoder(row, written[:-1], {})
        steps = tuple(Question(place, token, against) for place, token in enumerate(written[1:]))
        target = self._lens.encoder.label(list(written[:-1]))
        source = self._source(read)
        return read, Job(EncodedText({}, source, target), steps, len(steps) > 1)

    def _continued(self, row: MediaRow, ids: Sequence[int]) -> tuple[MediaRow, Job]:
        """Each token of an output is explained from what stands before it, all in one row."""
        last = row.inputs["input_ids"].shape[1] - 1
        read = replace(row, inputs=extended(row.inputs, torch.tensor([list(ids[:-1])], dtype=torch.long)))
        steps = tuple(Question(last + place, token) for place, token in enumerate(ids))
        return read, Job(EncodedText({}, self._source(read)), steps, True)

    def _source(self, row: MediaRow) -> Tokens:
        ids = row.inputs.get("input_ids")
        if not isinstance(ids, Tensor):
            return Tokens((), (), ())
        return self._lens.encoder.label([int(ids[0, i]) for i in real_positions(row.inputs, 0, decoder=False)])


def _with_decoder(row: MediaRow, ids: Sequence[int], notes: dict[str, Any]) -> MediaRow:
    decoder = {"decoder_input_ids": torch.tensor([list(ids)], dtype=torch.long)}
    return MediaRow({**row.inputs, **decoder}, row.notes | notes)
