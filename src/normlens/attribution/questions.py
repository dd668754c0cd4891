"""The explained numbers: which number of the model's output, at which position, for each row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.models.auto import modeling_auto

from normlens.anatomy.inputs import sequences_first
from normlens.attribution.operands import tensors
from normlens.errors import InputError
from normlens.inputs.tokens import readable
from normlens.types import ModelInputs

#: `sequence`: labels for the whole input; `token`: labels at each position; `frames`: symbols at each frame (CTC);
#: `queries`: labels of each detected object; `similarity`: one number for a pair of image or sound and text.
Head = Literal["causal", "masked", "sequence", "token", "translation", "frames", "queries", "similarity", "none"]
Output = int | str | None
#: How a head's logits become probabilities; a regression has none.
Probability = Literal["softmax", "sigmoid", "none"]

#: Tokens that an error lists with their positions.
_NAMED = 12
_MAPPINGS: tuple[tuple[Head, Any], ...] = (
    ("sequence", modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    ("sequence", modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    ("sequence", modeling_auto.MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES),
    ("sequence", modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES),
    ("sequence", modeling_auto.MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES),
    ("sequence", modeling_auto.MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES),
    ("token", modeling_auto.MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING_NAMES),
    ("frames", modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES),
    ("queries", modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES),
    ("similarity", modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    ("token", modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
    ("translation", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    ("masked", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    ("causal", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    ("translation", modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES),
    ("causal", modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
    ("causal", modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES),
)


def head_of(model: nn.Module) -> Head:
    """The kind of a model's head, by its class."""
    unwrap: Any = getattr(model, "get_base_model", None)  # an adapter around it
    base = model if unwrap is None else unwrap()
    name = type(base).__name__
    for kind, mapping in _MAPPINGS:
        if any(name == known or (isinstance(known, list | tuple) and name in known) for known in mapping.values()):
            if kind in ("causal", "translation"):
                return (
                    "translation" if getattr(getattr(base, "config", None), "is_encoder_decoder", False) else "causal"
                )
            return kind
    for kind, ending in (
        ("sequence", "ForSequenceClassification"),
        ("token", "ForTokenClassification"),
        ("masked", "ForMaskedLM"),
        ("causal", "ForCausalLM"),
        ("causal", "LMHeadModel"),
    ):
        if name.endswith(ending):
            return kind
    return "none"


@dataclass(frozen=True)
class Question:
    """One number of one row: the logit of `output` (None: the model's own choice), less that of `against`."""

    position: int  # an index of the padded row; 0 where the output has no positions
    output: int | None
    against: int | None = None


@dataclass(frozen=True)
class Answer:
    """The output that was explained."""

    output: int | None
    against: int | None
    probability: float | None
    probability_against: float | None = None


class Numbers:
    """Picks the numbers that are asked for out of a model's output."""

    def __init__(
        self,
        questions: Sequence[Question],
        direction: Tensor | None,
        probability: Probability,
        length: int | None = None,
    ) -> None:
        self._questions = questions
        self._direction = direction
        self._probability = probability
        self._length = length  # positions of the side that the output stands on; None: not checked
        self.answers: list[Answer] = []
        self.sizes: Tensor | None = None  # row: how large the numbers are that a difference was taken of

    def __call__(self, output: Any) -> Tensor:
        """One number per row."""
        self._check_length(first_tensor(output))
        if self._direction is not None:
            states = flat_output(first_tensor(output))
            if states.ndim != 3:
                raise InputError(
                    f"the model's first output has shape {tuple(states.shape)}, direction= takes (row, position, width); "
                    "wrap the model so that it returns such states"
                )
            for question in self._questions:
                if not -states.shape[1] <= question.position < states.shape[1]:
                    raise InputError(f"position must be from 0 to {states.shape[1] - 1}, got {question.position}")
            direction = self._direction.to(states)
            if direction.shape != states.shape[-1:]:
                raise InputError(
                    f"direction must have the width of the last state, {states.shape[-1]}, got a shape of "
                    f"{tuple(direction.shape)}"
                )
            self.answers = [Answer(None, None, None) for _ in self._questions]
            along = torch.stack([states[row, q.position] for row, q in enumerate(self._questions)]) * direction
            self.sizes = along.detach().abs().sum(-1).double().cpu()
            return along.sum(-1)
        scores = getattr(output, "logits_per_image", None)
        if isinstance(scores, Tensor):
            return self._similarities(scores)
        logits = flat_output(first_tensor(output))
        if logits.ndim not in (2, 3):
            raise InputError(
                f"the model's first output has shape {tuple(logits.shape)}, explain() takes (row, label) or (row, position, "
                "label); wrap the model so that it returns such logits"
            )
        for question in self._questions:
            if logits.ndim > 2 and not -logits.shape[1] <= question.position < logits.shape[1]:
                raise InputError(
                    f"position must be from 0 to {logits.shape[1] - 1}, or negative from the end, got {question.position}"
                )
        rows = [
            logits[row] if logits.ndim == 2 else logits[row, question.position]
            for row, question in enumerate(self._questions)
        ]
        if not self.answers:  # a choice is made once: the replay asks for the same number
            self.answers = [
                _answer(q, scores.detach(), self._probability) for q, scores in zip(self._questions, rows, strict=True)
            ]
        numbers, sizes = [], []
        for answer, scores in zip(self.answers, rows, strict=True):
            number = scores[answer.output]
            sizes.append(number.detach().abs())
            if answer.against is not None:
                sizes[-1] = sizes[-1] + scores[answer.against].detach().abs()
                number = number - scores[answer.against]
            numbers.append(number)
        self.sizes = torch.stack(sizes).cpu().double()
        return torch.stack(numbers)

    def _similarities(self, scores: Tensor) -> Tensor:
        """The score of each image with the text of its own row."""
        if scores.shape != (len(self._questions),) * 2:
            raise InputError(
                f"each row must have one image and one text, got {scores.shape[0]} images and {scores.shape[1]} texts"
            )
        numbers = scores.diagonal()
        self.answers = [Answer(None, None, None) for _ in self._questions]
        self.sizes = numbers.detach().abs().double().cpu()
        return numbers

    def _check_length(self, output: Tensor) -> None:
        """Refuse an output whose positions are not those of the input."""
        if self._length is not None and output.ndim > 2 and output.shape[1] != self._length:
            raise InputError(
                f"the model's output has {output.shape[1]} positions for {self._length} input positions; explain "
                "its body with direction=…"
            )


def _answer(question: Question, scores: Tensor, probability: Probability) -> Answer:
    chosen = int(scores.argmax()) if question.output is None else question.output
    for name, number in (("output", chosen), ("against", question.against)):
        if number is not None and number >= len(scores):
            raise InputError(f"{name} must be a number from 0 to {len(scores) - 1}, got {number}")
    shares = {"softmax": scores.float().softmax(-1), "sigmoid": scores.float().sigmoid()}.get(probability)
    first, second = (None if shares is None or n is None else float(shares[n]) for n in (chosen, question.against))
    return Answer(chosen, question.against, first, second)


def flat_output(output: Tensor) -> Tensor:
    """An output for each pixel (row, label, height, width) as one for each position, row by row of the image."""
    return output.flatten(2).transpose(1, 2) if output.ndim == 4 else output


def first_tensor(output: Any) -> Tensor:
    """The first output of a model: its logits, its last state, or the first of what it returns."""
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    first = output if isinstance(output, Tensor) else next(tensors(output), None)
    if first is None:
        raise InputError(
            f"the model returns {type(output).__name__} without a tensor, so there is no number to explain; wrap "
            "it so that it returns its logits or its last state"
        )
    return first


class Resolver:
    """Turns what a user names (a token, a label, a number, a position) into numbers of one model's output."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.head: Head = head_of(model)
        self.config: Any = getattr(model, "config", None)

    @property
    def probability(self) -> Probability:
        """Labels that do not exclude each other have a probability each; a single label is a number, not a choice."""
        if self.head in ("none", "similarity"):
            return "none"
        if self.head == "sequence":
            if getattr(self.config, "problem_type", None) == "multi_label_classification":
                return "sigmoid"
            if (
                int(getattr(self.config, "num_labels", 2)) == 1
                or getattr(self.config, "problem_type", None) == "regression"
            ):
                return "none"
        return "softmax"

    @property
    def only_side(self) -> str:
        """The name of a single stack of layers: a model that reads from left to right is a decoder."""
        return "decoder" if self.head == "causal" or _reads_leftwards(self.model) else "encoder"

    def start_token(self) -> int:
        """The token from which an encoder-decoder begins to write."""
        owners = (getattr(self.model, "generation_config", None), self.config)
        for owner, name in ((o, n) for n in ("decoder_start_token_id", "bos_token_id") for o in owners):
            found = getattr(owner, name, None)
            if isinstance(found, int):
                return found
        raise InputError(f"{type(self.model).__name__} names no start token for its decoder; pass target=…")

    def check(self, direction: bool, output: Any, against: Any) -> None:
        """Return True if the model has what is asked for: a head for an output, none for a direction."""
        name = type(self.model).__name__
        if direction:
            if output is not None or against is not None:
                raise InputError("direction and output exclude each other, both were given; drop one")
            if self.head != "none":
                raise InputError(
                    f"direction needs a model without a head, {name} has one; pass output=…, or wrap its body "
                    "(Lens(model.base_model))"
                )
        elif self.head == "none":
            raise InputError(
                f"{name} has no head, so there is no output to explain; pass direction=…, or load the model with "
                "its head"
            )

    def ids(self, output: Output, what: str) -> list[int]:
        """The entries of the output that a name stands for: one, or several where a text has several tokens."""
        if isinstance(output, bool) or not isinstance(output, int | str):
            raise InputError(f"{what} must be a token, a label or its number, got {type(output).__name__}")
        if self.head == "similarity":
            raise InputError(f"{type(self.model).__name__} puts out one score for a pair; leave {what} out")
        if self.head == "none":
            raise InputError(
                f"{type(self.model).__name__} has no head, which {what} needs; pass direction=… (a vector on the "
                "last state), or load the model with its head"
            )
        if isinstance(output, int):
            return [self._in_range(output, what)]
        if self.head in ("sequence", "token", "queries"):
            return [self._label(output, what)]
        if self.tokenizer is None:
            raise InputError(f"this lens has no tokenizer, which {what} as a text needs; pass the token's number")
        # A translation model may write with other pieces than it reads.
        given = {"text_target": output} if self.head == "translation" else {"text": output}
        ids = self.tokenizer(**given, add_special_tokens=False)["input_ids"]
        if not ids:
            raise InputError(f"{what} has no token, got {output!r}")
        return [int(i) for i in ids]

    def one(self, output: Output, what: str) -> int:
        """As `ids`, where one entry is meant."""
        ids = self.ids(output, what)
        if len(ids) > 1:
            tokens = self.tokenizer.convert_ids_to_tokens(ids)
            raise InputError(
                f"{what} must be one token, got {output!r} with {len(ids)} ({', '.join(map(repr, tokens))}); pass "
                "one of them, or its number"
            )
        return ids[0]

    def _label(self, name: str, what: str) -> int:
        labels = {str(v): int(k) for k, v in (getattr(self.config, "id2label", None) or {}).items()}
        alike = [number for label, number in labels.items() if label.lower() == name.lower()]
        if name in labels or len(alike) == 1:
            return labels.get(name, alike[0])
        if name.isdecimal() and int(name) in labels.values():  # a shell has no other way to write a number
            return int(name)
        raise InputError(f"{what} must be one of the labels {', '.join(labels)}, got {name!r}")

    def _in_range(self, number: int, what: str) -> int:
        size = self._size()
        if size is not None and not 0 <= number < size:
            raise InputError(f"{what} must be a number from 0 to {size - 1}, got {number}")
        return number

    def _size(self) -> int | None:
        if self.head in ("sequence", "token"):
            return int(self.config.num_labels)
        if self.head == "queries":
            return int(self.config.num_labels) + 1  # and no object
        weight = getattr(getattr(self.model, "get_output_embeddings", lambda: None)(), "weight", None)
        return int(weight.shape[0]) if isinstance(weight, Tensor) else getattr(self.config, "vocab_size", None)

    def name(self, number: int | None) -> str | None:
        """An entry of the output as people read it."""
        if number is None:
            return None
        if self.head in ("sequence", "token", "queries"):
            return str((getattr(self.config, "id2label", None) or {}).get(number, number))
        if self.tokenizer is None:
            return str(number)
        found = self.tokenizer.convert_ids_to_tokens([number])[0]
        return str(number) if found is None else str(found)

    def position(self, position: int | None, real: Sequence[int], ids: Sequence[int] | None) -> int:
        """The index in the padded row of a position among its real ones."""
        count = len(real)
        if self.head in ("sequence", "similarity"):
            if position is not None:
                raise InputError("position is not used: this model has one output for the whole input; leave it out")
            return 0
        if self.head in ("frames", "queries") or ids is None:
            return self._unnumbered(position)
        if position is None:
            return real[self._default_position(count, ids)]
        if isinstance(position, bool) or not isinstance(position, int) or not -count <= position < count:
            raise InputError(
                f"position must be from 0 to {count - 1}, or negative from the end, got {position!r} for {count} "
                "positions"
            )
        return real[position]

    def _unnumbered(self, position: int | None) -> int:
        """A position of the output itself, whose number is known after the pass."""
        if position is None:
            what = {"frames": "frame", "queries": "detected object"}.get(self.head, "position")
            raise InputError(f"position is missing: this model has an output for each {what}; pass position=…")
        if isinstance(position, bool) or not isinstance(position, int):
            raise InputError(f"position must be a whole number, got {position!r}")
        return position

    def _default_position(self, count: int, ids: Sequence[int] | None) -> int:
        if self.head == "token":
            raise InputError(
                "position is missing: a token classifier has an output at each position; pass position=… "
                f"(--position on the shell), one of 0 to {count - 1}{self._numbered(ids)}"
            )
        if self.head != "masked":
            return count - 1
        mask = getattr(self.tokenizer, "mask_token_id", None)
        places = [i for i, token in enumerate(ids or ()) if token == mask and mask is not None]
        if len(places) == 1:
            return places[0]
        token = getattr(self.tokenizer, "mask_token", None)
        if not places:
            raise InputError(
                f"the text has no mask; put {token or 'the mask token'} into it, or pass position=… (--position "
                f"on the shell), one of 0 to {count - 1}{self._numbered(ids)}"
            )
        raise InputError(
            f"the text has {len(places)} masks, at positions {', '.join(map(str, places))}; choose one with "
            "position=… (--position on the shell)"
        )

    def _numbered(self, ids: Sequence[int] | None) -> str:
        """The first tokens with their numbers, for somebody who must name one."""
        if self.tokenizer is None or not ids:
            return ""
        found = self.tokenizer.convert_ids_to_tokens(list(ids[:_NAMED]))
        names = [str(i) if token is None else readable(token) for i, token in zip(ids, found, strict=False)]
        shown = [f"{n} {name}" for n, name in enumerate(names)]
        return f" ({', '.join(shown)}{', …' if len(ids) > _NAMED else ''})"


def _reads_leftwards(model: nn.Module) -> bool:
    """Return True if a model of this family is a language model that sees earlier positions alone, whatever head it has."""
    config: Any = getattr(model, "config", None)
    family = getattr(config, "model_type", None)
    if family is None or getattr(config, "is_encoder_decoder", False):
        return False
    writes, fills = (
        family in mapping
        for mapping in (
            modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        )
    )
    return bool(getattr(config, "is_decoder", False)) or (writes and not fills)


def one_for_each(given: Any, count: int, what: str) -> list[Any]:
    """One for all, or a list with one for each."""
    if isinstance(given, Integral) and not isinstance(given, bool):
        given = int(given)
    if given is None or isinstance(given, str | int):
        return [given] * count
    if not isinstance(given, Sequence):
        raise InputError(f"{what} must be one for all texts or a list with one for each, got {type(given).__name__}")
    if len(given) != count:
        raise InputError(f"{what} must be one for all {count} texts, or a list with one for each, got {len(given)}")
    return [int(x) if isinstance(x, Integral) and not isinstance(x, bool) else x for x in given]


def output_length(inputs: ModelInputs) -> int | None:
    """The number of positions of the side on which a model's output stands; None where no input says so."""
    for side in ("decoder_", ""):
        for name in (f"{side}input_ids", f"{side}inputs_embeds"):
            if isinstance(inputs.get(name), Tensor):
                return int(inputs[name].shape[1])
    return None


def real_positions(inputs: ModelInputs, row: int, *, decoder: bool) -> list[int]:
    """The indices of a row that are no padding."""
    prefix = "decoder_" if decoder else ""
    mask = inputs.get(f"{prefix}attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        return [int(i) for i in mask[row].nonzero().flatten()]
    for name in (f"{prefix}input_ids", f"{prefix}inputs_embeds", *(() if decoder else ("inputs_embeds",))):
        if isinstance(inputs.get(name), Tensor):
            return list(range(inputs[name].shape[1]))
    first = next((x for _, x in sequences_first(inputs) if x.ndim >= 2), None)
    if first is None:
        raise InputError("inputs hold no tensor of (batch, position, …), which explain() needs")
    return list(range(first.shape[1]))
