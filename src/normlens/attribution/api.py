"""Explain: texts or tensors in, explanations out. What `Lens.explain` and `Lens.explain_inputs` call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normlens.anatomy.examine import family_of, is_encoder_decoder
from normlens.anatomy.interface import evaluating, run_arguments
from normlens.attribution.labelling import Labels, labelled
from normlens.attribution.questions import Answer, Numbers, Output, Question, Resolver, real_positions
from normlens.attribution.terms import REPLAY_TOLERANCE, TOLERANCE, Run, Terms, check_sums
from normlens.attribution.walk import Wanted
from normlens.errors import DecompositionError, InputError
from normlens.explanation import BY_DEFAULT, PARTS, Explanation, Proof
from normlens.provenance import versions
from normlens.request import available_bytes
from normlens.text.encoding import EncodedText, Text, TextEncoder, pad_batch, padding_id
from normlens.text.tokens import Tokens

AttentionRule = Literal["carried", "chosen"]
#: Attention implementations whose operations the rules can see; any other is run as the family's eager one.
_SEEN = ("eager", "sdpa")


@dataclass(frozen=True)
class Solved:
    """The terms of one row, step by step, with what was explained and how far it was checked."""

    steps: list[Terms]
    answers: list[Answer]
    replay: float
    output: float


@dataclass(frozen=True)
class _Settings:
    parts: tuple[str, ...]
    attention: AttentionRule
    direction: Tensor | None
    explicit: bool  # whether the parts were asked for by name
    edges_top: int | None = None

    @property
    def wanted(self) -> Wanted:
        kept = set(self.parts)
        return Wanted(
            heads="heads" in kept or "edges" in kept,
            edges="edges" in kept,
            edges_top=self.edges_top,
            blocks="blocks" in kept,
            direct="direct" in kept,
        )


# ---- texts -----------------------------------------------------------------------------------------------------------


def explain(
    lens: Any,
    text: Text | Sequence[Text],
    pair: Text | Sequence[Text] | None = None,
    target: Text | Sequence[Text] | None = None,
    *,
    output: Output | Sequence[Output] = None,
    against: Output | Sequence[Output] = None,
    position: int | Sequence[int] | None = None,
    direction: Any = None,
    attention: AttentionRule = "carried",
    parts: Sequence[str] | None = None,
    edges_top: int | None = None,
    generate: bool = False,
    pretokenized: bool = False,
    truncate: bool = False,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Explain one number that the model puts out for a text, or one for each text of a list.

    One text in, one `Explanation` out; a list in, a list out. `output` is a token, a label or its number (None: the model's
    own choice), `against` makes it a difference of two. `parts` names the terms to keep: all but edges where none are
    named; `edges_top=100` keeps the strongest edges alone, and says what it leaves out. See docs/explain.md.
    """
    settings = _settings(parts, attention, direction, edges_top)
    lens._refresh()
    if lens.tokenizer is None:
        raise InputError(
            "a text needs a tokenizer: this lens has none; pass Lens(model, tokenizer), or tensors to explain_inputs"
        )
    model = _plain_model(lens.model)
    resolver = Resolver(model, lens.tokenizer)
    _check_head(resolver, settings, output, against)
    single = isinstance(text, str) or (pretokenized and bool(text) and isinstance(text[0], str))
    texts: list[Any] = [text] if single else list(text)
    if not texts:
        raise InputError("an explanation needs at least one text: the list is empty")
    if batch_size < 1:
        raise InputError(f"a batch holds at least one sequence: batch_size is {batch_size}")
    pairs, targets = (_each(x, len(texts), single, what) for x, what in ((pair, "pair"), (target, "target")))
    outputs, againsts, positions = (
        _asked(x, len(texts), what) for x, what in ((output, "output"), (against, "against"), (position, "position"))
    )
    encoder = TextEncoder(model, lens.tokenizer)
    jobs = [
        _text_job(
            lens,
            model,
            resolver,
            encoder,
            settings,
            *row,
            generate=generate,
            truncate=truncate,
            pretokenized=pretokenized,
        )
        for row in zip(texts, pairs, targets, outputs, againsts, positions, strict=True)
    ]
    _check_fits(model, settings, [(job.text.lengths, len(job.steps)) for job in jobs])
    found: dict[int, Explanation] = {}
    plain = sorted((i for i, job in enumerate(jobs) if len(job.steps) == 1), key=lambda i: jobs[i].text.length)
    batches = [plain[i : i + batch_size] for i in range(0, len(plain), batch_size)]
    batches += [[i] for i, job in enumerate(jobs) if len(job.steps) != 1]
    for batch in _unpadded(lens, model, batches, jobs, settings):
        rows = [jobs[i] for i in batch]
        inputs = pad_batch([job.text for job in rows], padding_id(model, lens.tokenizer), _device(model))
        solved = _solve(lens, model, inputs, [job.steps for job in rows], settings)
        for i, job, row, result in zip(batch, rows, range(len(rows)), solved, strict=True):
            found[i] = _explanation(lens, model, resolver, settings, inputs, row, job, result)
        if progress is not None:
            progress(len(found), len(jobs))
    results = [found[i] for i in range(len(jobs))]
    return results[0] if single else results


@dataclass
class _Known:
    """What was found out about a model, good for one state of it."""

    state: Any
    verified: dict[Any, tuple[float, float]]  # by kind of input: the gaps of the replay and of the output
    padding_matters: bool | None = None


_known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def _known_of(lens: Any) -> _Known:
    """What is known of the lens' model as it is now; numbers changed in place and adapters make it another."""
    state = lens._state
    key = (state.tensors, state.entries, state.adapters, state.hooks)
    if lens.model not in _known or _known[lens.model].state != key:
        _known[lens.model] = _Known(key, {})
    return _known[lens.model]


def _unpadded(
    lens: Any, model: nn.Module, batches: list[list[int]], jobs: Sequence[_Job], settings: _Settings
) -> list[list[int]]:
    """The same batches, or one row in each where padding changes what this model puts out (convolutions, FNet)."""
    padded = [batch for batch in batches if len({jobs[i].text.lengths for i in batch}) > 1]
    known = _known_of(lens)
    if padded and known.padding_matters is None:
        pad, device = padding_id(model, lens.tokenizer), _device(model)
        both = [jobs[i].text for i in (padded[0][0], padded[0][-1])]
        ask = Numbers([jobs[padded[0][0]].steps[0]], settings.direction)
        with evaluating(model):
            alone = ask(model(**run_arguments(model, pad_batch(both[:1], pad, device))))
            beside = ask(_rows(model(**run_arguments(model, pad_batch(both, pad, device)))))
        size = max(float(alone.abs().max()), float(beside.abs().max()))
        allowed = 100 * torch.finfo(alone.dtype).eps * max(size, 1.0)
        known.padding_matters = not float((alone - beside).abs().max()) <= allowed
    if padded and known.padding_matters:
        return [[i] for batch in batches for i in batch]
    return batches


def _rows(output: Any) -> Any:
    """What a model put out, as its first row alone would have it."""
    first = output.logits if hasattr(output, "logits") else output[0]
    return (first[:1],)


@dataclass(frozen=True)
class _Job:
    """One row: its text, and what is asked of it, step by step (positions among the real ones)."""

    text: EncodedText
    steps: tuple[Question, ...]
    stepwise: bool = False


def _text_job(
    lens: Any,
    model: nn.Module,
    resolver: Resolver,
    encoder: TextEncoder,
    settings: _Settings,
    text: Any,
    pair: Any,
    target: Any,
    output: Output,
    against: Output,
    position: int | None,
    *,
    generate: bool,
    truncate: bool,
    pretokenized: bool,
) -> _Job:
    two_sided = is_encoder_decoder(model)
    if generate:
        return _generated_job(
            model, resolver, encoder, text, pair, target, output, against, position, truncate, pretokenized
        )
    if two_sided and target is None and resolver.head == "sequence":  # it feeds its own input to its decoder
        encoded = encoder.prompt(text, pair, truncate=truncate, pretokenized=pretokenized)
    else:
        encoded = encoder(text, pair, target, truncate=truncate, pretokenized=pretokenized)
    if settings.direction is not None:
        return _Job(encoded, (_at(resolver, encoded, position, None, None, direction=True),))
    contrast = None if against is None else resolver.one(against, "against")
    if output is None:
        chosen = _target_token(resolver, encoder, encoded, target, position, pretokenized) if two_sided else None
        return _Job(encoded, (_at(resolver, encoded, position, chosen, contrast),))
    ids = resolver.ids(output, "output")
    if len(ids) == 1:
        return _Job(encoded, (_at(resolver, encoded, position, ids[0], contrast),))
    if resolver.head != "causal":
        tokens = ", ".join(map(repr, resolver.tokenizer.convert_ids_to_tokens(ids)))
        raise InputError(
            f"an output of several tokens is explained step by step by a causal language model: {type(model).__name__} is "
            f"none, so output must be one token, and {output!r} has {len(ids)} ({tokens}); pass one of them, or its number"
        )
    if position is not None or contrast is not None:
        resolver.one(output, "output")  # says that one token is meant
    return _continued(encoder, encoded, ids)


def _continued(encoder: TextEncoder, encoded: EncodedText, ids: Sequence[int]) -> _Job:
    """An output of several tokens: each is explained from what stands before it."""
    prompt = list(encoded.source.ids)
    whole = encoder.from_ids(encoder.label([*prompt, *ids[:-1]]))
    last = len(prompt) - 1
    return _Job(whole, tuple(Question(last + i, token) for i, token in enumerate(ids)), True)


def _generated_job(
    model: nn.Module,
    resolver: Resolver,
    encoder: TextEncoder,
    text: Any,
    pair: Any,
    target: Any,
    output: Output,
    against: Output,
    position: int | None,
    truncate: bool,
    pretokenized: bool,
) -> _Job:
    if any(x is not None for x in (target, output, against, position)):
        raise InputError(
            "generate=True explains each token that the model writes: target, output, against and position belong to a "
            "text that is given; drop them"
        )
    writes = getattr(model, "can_generate", lambda: hasattr(model, "generate"))()
    if resolver.head not in ("causal", "translation") or not writes:
        raise InputError(
            f"generate=True needs a model that writes: {type(model).__name__} does not; load it with its language-model head"
        )
    prompt = encoder.prompt(text, pair, truncate=truncate, pretokenized=pretokenized)
    batch = pad_batch([prompt], padding_id(model, resolver.tokenizer), _device(model))
    with evaluating(model):
        written = [int(i) for i in model.generate(**batch, do_sample=False, num_beams=1)[0]]  # type: ignore[operator]
    if resolver.head == "translation":
        whole = encoder.from_ids(prompt.source, written[:-1])
        return _Job(whole, tuple(Question(i, token) for i, token in enumerate(written[1:])), True)
    start = len(prompt.source.ids)
    if len(written) == start:
        raise InputError("generate=True explains what the model writes: it wrote nothing for this text")
    whole = encoder.from_ids(encoder.label(written[:-1]))
    return _Job(whole, tuple(Question(start - 1 + i, t) for i, t in enumerate(written[start:])), True)


def _target_token(
    resolver: Resolver,
    encoder: TextEncoder,
    encoded: EncodedText,
    target: Any,
    position: int | None,
    pretokenized: bool,
) -> int | None:
    """The target token that an encoder-decoder is made to write at a position."""
    if encoded.target is None or resolver.head != "translation":
        return None
    tokenized = resolver.tokenizer(
        text_target=list(target) if pretokenized else target, is_split_into_words=pretokenized
    )
    ids = encoded.target.ids
    place = -1 if position is None else position
    if not -len(ids) <= place < len(ids):
        return None  # the position is refused later, with what is valid
    place %= len(ids)
    return int(ids[place + 1]) if place + 1 < len(ids) else int(tokenized["input_ids"][len(ids) - 1])


def _at(
    resolver: Resolver,
    encoded: EncodedText,
    position: int | None,
    output: int | None,
    against: int | None,
    *,
    direction: bool = False,
) -> Question:
    side = encoded.source if encoded.target is None else encoded.target
    count = len(side.ids)
    if direction and position is None:
        return Question(count - 1, None)
    place = resolver.position(position, range(count), side.ids)
    return Question(place, output, against)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def explain_inputs(
    lens: Any,
    inputs: Mapping[str, Any],
    *,
    output: Output | Sequence[Output] = None,
    against: Output | Sequence[Output] = None,
    position: int | Sequence[int] | None = None,
    direction: Any = None,
    attention: AttentionRule = "carried",
    parts: Sequence[str] | None = None,
    edges_top: int | None = None,
) -> list[Explanation]:
    """Explain tensors that you prepared yourself: one `Explanation` per row."""
    settings = _settings(parts, attention, direction, edges_top)
    lens._refresh()
    model = _plain_model(lens.model)
    resolver = Resolver(model, lens.tokenizer)
    _check_head(resolver, settings, output, against)
    two_sided = is_encoder_decoder(model) and "decoder_input_ids" in inputs
    rows = next((x.shape[0] for x in inputs.values() if isinstance(x, Tensor) and x.ndim), 0)
    if not rows:
        raise InputError("explain_inputs needs tensors with a row for each text: none was given")
    outputs, againsts, positions = (
        _asked(x, rows, what) for x, what in ((output, "output"), (against, "against"), (position, "position"))
    )
    ids = inputs.get("decoder_input_ids" if two_sided else "input_ids")
    questions = []
    for row in range(rows):
        real = real_positions(inputs, row, decoder=two_sided)
        own = None if ids is None else [int(ids[row, i]) for i in real]
        if settings.direction is not None:
            place = real[-1] if positions[row] is None else resolver.position(positions[row], real, own)
            questions.append((Question(place, None),))
            continue
        place = resolver.position(positions[row], real, own)
        wanted = None if outputs[row] is None else resolver.one(outputs[row], "output")
        if wanted is None and two_sided and own is not None and place in real[:-1] and resolver.head == "translation":
            wanted = own[real.index(place) + 1]
        contrast = None if againsts[row] is None else resolver.one(againsts[row], "against")
        questions.append((Question(place, wanted, contrast),))
    lengths = [
        tuple(len(real_positions(inputs, row, decoder=d)) for d in (False, True)[: 1 + two_sided])
        for row in range(rows)
    ]
    _check_fits(model, settings, [((n[0], n[1] if two_sided else 0), 1) for n in lengths])
    solved = _solve(lens, model, dict(inputs), questions, settings)
    encoder = TextEncoder(model, lens.tokenizer)
    found = []
    for row, result in enumerate(solved):
        job = _Job(_tensor_labels(encoder, inputs, row, two_sided), questions[row])
        found.append(_explanation(lens, model, resolver, settings, inputs, row, job, result))
    return found


def _tensor_labels(encoder: TextEncoder, inputs: Mapping[str, Any], row: int, two_sided: bool) -> EncodedText:
    def side(name: str, decoder: bool) -> Tokens:
        real = real_positions(inputs, row, decoder=decoder)
        ids = inputs.get(name)
        if isinstance(ids, Tensor) and ids.ndim == 2:
            return encoder.label([int(ids[row, i]) for i in real])
        return Tokens(tuple(real), tuple(map(str, real)), tuple(range(len(real))))

    target = side("decoder_input_ids", True) if two_sided else None
    return EncodedText({}, side("input_ids", False), target)


# ---- one batch -------------------------------------------------------------------------------------------------------


def _solve(
    lens: Any,
    model: nn.Module,
    inputs: Mapping[str, Any],
    questions: Sequence[tuple[Question, ...]],
    settings: _Settings,
) -> list[Solved]:
    """The terms of every row, proved; rows go one by one where a model mixes them."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputError(
            "an explanation is of what the model computes in its own type: autocast is on; leave it, or load the model in "
            "the type that you want"
        )
    arguments = run_arguments(model, inputs)
    with evaluating(model), _seen_attention(model), torch.enable_grad():
        try:
            return _solve_rows(lens, model, arguments, questions, settings)
        except (DecompositionError, _MixedRowsError):
            rows = len(questions)
            if rows == 1:
                raise
        return [
            _solve_rows(lens, model, _one_row(arguments, row, rows), [questions[row]], settings)[0]
            for row in range(rows)
        ]


class _MixedRowsError(Exception):
    """A constant of the model could not be told apart by rows."""


def _one_row(arguments: Mapping[str, Any], row: int, rows: int) -> dict[str, Any]:
    return {
        name: x[row : row + 1] if isinstance(x, Tensor) and x.ndim and x.shape[0] == rows else x
        for name, x in arguments.items()
    }


def _solve_rows(
    lens: Any,
    model: nn.Module,
    arguments: Mapping[str, Any],
    questions: Sequence[tuple[Question, ...]],
    settings: _Settings,
) -> list[Solved]:
    key = (*lens._kind_of(arguments), settings.attention, settings.direction is None)
    known = _known_of(lens).verified
    first = key not in known
    family, dtype = family_of(model), next(p.dtype for p in model.parameters() if p.is_floating_point())
    steps = len(questions[0])
    numbers = [Numbers([row[step] for row in questions], settings.direction) for step in range(steps)]
    own = _own_numbers(model, arguments, numbers[0]) if first else None
    run = Run(model, arguments, settings.wanted, chosen=settings.attention == "chosen", record=first)
    found = [run.explain(number, again=step + 1 < steps) for step, number in enumerate(numbers)]
    if run.walk.mixed_rows:
        raise _MixedRowsError
    for terms, number in zip(found, numbers, strict=True):
        check_sums(terms, dtype, family, chosen=settings.attention == "chosen", sizes=number.sizes)
    if own is not None:
        known[key] = _verify(run, found[0], numbers[0], own, dtype, family)
    replay, output = known[key]
    return [
        Solved([terms.row(row) for terms in found], [number.answers[row] for number in numbers], replay, output)
        for row in range(len(questions))
    ]


def _own_numbers(model: nn.Module, arguments: Mapping[str, Any], numbers: Numbers) -> tuple[Tensor, float]:
    """The numbers that the model puts out when nobody looks, and the size of its largest logit."""
    with torch.no_grad():
        output = model(**arguments)
        first = output.logits if hasattr(output, "logits") else output[0]
        return numbers(output).double().cpu(), float(first.abs().max())


def _verify(
    run: Run, terms: Terms, numbers: Numbers, own: tuple[Tensor, float], dtype: torch.dtype, family: str
) -> tuple[float, float]:
    """Once per model and kind of input: the number is the model's own, and the frozen map runs forwards too."""
    size = max(own[1], float(own[0].abs().max()), torch.finfo(dtype).tiny)
    output = float((terms.value - own[0]).abs().max()) / size
    if not output <= TOLERANCE[dtype]:
        raise DecompositionError(
            f"the explained number must be the model's own: in {family!r} it differs by {output:.1e} of its largest logit "
            f"(allowed: {TOLERANCE[dtype]:.0e}); please report it"
        )
    replay = float(run.replay_gap(terms, numbers, numbers.sizes).max())
    allowed = REPLAY_TOLERANCE * TOLERANCE[dtype]
    if not replay <= allowed:
        raise DecompositionError(
            f"the frozen map must be affine: in {family!r}, with the input vectors multiplied by random numbers, it misses "
            f"the sum of the terms by {replay:.1e} of their absolute sum (allowed: {allowed:.0e}); something in this model "
            "is not held as the rules say, please report it"
        )
    return replay, output


@contextmanager
def _seen_attention(model: nn.Module) -> Iterator[None]:
    """Run attention by functions that the rules see: the model's own eager or fused one."""
    config = getattr(model, "config", None)
    name = getattr(config, "_attn_implementation", None)
    if name in (None, *_SEEN) or not hasattr(model, "set_attn_implementation"):
        yield
        return
    try:
        model.set_attn_implementation("eager")  # type: ignore[operator]
        yield
    finally:
        model.set_attn_implementation(name)  # type: ignore[operator]


# ---- results ---------------------------------------------------------------------------------------------------------


def _explanation(
    lens: Any,
    model: nn.Module,
    resolver: Resolver,
    settings: _Settings,
    inputs: Mapping[str, Any],
    row: int,
    job: _Job,
    solved: Solved,
) -> Explanation:
    two_sided = len(solved.steps[0].tokens) > 1
    real = [real_positions(inputs, row, decoder=False)]
    sides = [job.text.source]
    if two_sided:
        real.append(real_positions(inputs, row, decoder=True))
        sides.append(job.text.target or job.text.source)
        if job.text.target is None:
            real[1] = real[0]
    names = ["encoder", "decoder"] if two_sided else ["decoder" if resolver.head == "causal" else "encoder"]
    stepwise = job.stepwise
    outputs = [resolver.name(answer.output) for answer in solved.answers]
    labels = Labels(names, sides, real, stepwise, [str(name) for name in outputs])
    named = labelled(solved.steps, labels, settings.parts, settings.edges_top)
    left_out = named.left_out
    if settings.explicit and left_out:
        raise InputError(
            f"these terms cannot be had from this model: {', '.join(left_out)} (its attention is no single product of "
            f"weights and values per head); ask for others with parts=[…]"
        )
    gap = max(float(terms.gaps.max()) for terms in solved.steps)
    last = solved.steps
    over = max(
        float((cut.total - terms.value).abs().max() / terms.value.abs().clamp_min(1e-300).max())
        for terms in last
        for cut in terms.cuts
    )
    answers = solved.answers
    question = job.steps[0]
    side = job.text.source if job.text.target is None else job.text.target
    record: dict[str, Any] = {
        "model": lens.identity,
        "output": outputs if stepwise else outputs[0],
        "against": resolver.name(answers[0].against),
        "output_id": [a.output for a in answers] if stepwise else answers[0].output,
        "probability": [a.probability for a in answers] if stepwise else answers[0].probability,
        "probability_against": None if stepwise else answers[0].probability_against,
        "position": None if resolver.head == "sequence" else question.position,
        "token_at_position": None if resolver.head == "sequence" else _string_at(side, question.position, real[-1]),
        "attention": settings.attention,
        "parts": [p for p in settings.parts if p not in left_out],
        "left_out": left_out,
        "direction": settings.direction is not None,
        "versions": versions(),
        **job.text.notes,
    }
    if settings.attention == "chosen":
        record["quadrature"] = gap
    return Explanation(named.sites, named.value, Proof(gap, over, solved.replay, solved.output), record)


def _string_at(side: Tokens, index: int, real: Sequence[int]) -> str | None:
    return side.strings[real.index(index)] if index in real and real.index(index) < len(side.strings) else None


# ---- what may be asked -----------------------------------------------------------------------------------------------


def _settings(parts: Sequence[str] | None, attention: str, direction: Any, edges_top: int | None) -> _Settings:
    if attention not in ("carried", "chosen"):
        raise InputError(f"attention must be one of carried, chosen: got {attention!r}")
    if parts is not None:
        unknown = [part for part in parts if part not in PARTS]
        if isinstance(parts, str) or unknown:
            raise InputError(f"parts must be a list of {', '.join(PARTS)}: got {parts!r}")
    vector = None if direction is None else torch.as_tensor(direction)
    if vector is not None and vector.ndim != 1:
        raise InputError(f"a direction is one vector: got a shape of {tuple(vector.shape)}")
    if edges_top is not None and (isinstance(edges_top, bool) or not isinstance(edges_top, int) or edges_top < 1):
        raise InputError(f"edges_top is how many edges to keep, the strongest, at least 1: got {edges_top!r}")
    named = BY_DEFAULT if parts is None else ("tokens", *parts)
    if edges_top is not None:
        named = (*named, "edges")
    kept = tuple(part for part in PARTS if part in named)
    return _Settings(kept, attention, vector, parts is not None or edges_top is not None, edges_top)  # type: ignore[arg-type]


def _check_fits(model: nn.Module, settings: _Settings, rows: Sequence[tuple[tuple[int, int], int]]) -> None:
    """Edges are the one part that grows with the square of the length; `rows` are lengths of both sides, and steps."""
    config: Any = getattr(model, "config", None)
    heads, layers = (getattr(config, name, None) for name in ("num_attention_heads", "num_hidden_layers"))
    free = available_bytes()
    if "edges" not in settings.parts or settings.edges_top is not None or free is None:
        return
    if not isinstance(heads, int) or not isinstance(layers, int):
        return
    pairs = sum(steps * (source**2 + target * (source + target)) for (source, target), steps in rows)
    needed = 8 * layers * heads * pairs
    if needed > free:
        raise InputError(
            f"edges must fit in memory: they take {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; keep the "
            "strongest alone (edges_top=1000), or leave them out of parts=[…]"
        )


def _check_head(resolver: Resolver, settings: _Settings, output: Any, against: Any) -> None:
    if settings.direction is not None:
        if output is not None or against is not None:
            raise InputError("a direction takes the place of an output: both were given; drop one")
        if resolver.head != "none":
            raise InputError(
                f"a direction is put on the last state of a model without a head: {type(resolver.model).__name__} has one; "
                "pass output=…, or wrap its body (lens of model.base_model)"
            )
    elif resolver.head == "none":
        raise InputError(
            f"an explanation needs a head, or a direction on the last state: {type(resolver.model).__name__} has no head; "
            "pass direction=…, or load the model with its head"
        )


def _each(given: Any, count: int, single: bool, what: str) -> list[Any]:
    if given is None:
        return [None] * count
    items = [given] if single else list(given)
    if isinstance(given, str) and not single:
        raise InputError(f"a list of texts needs a list of {what}s: got one string for {count} texts")
    if len(items) != count:
        raise InputError(f"each text needs its {what}: {count} texts, {len(items)} {what}s")
    return items


def _asked(given: Any, count: int, what: str) -> list[Any]:
    """One for all, or a list with one for each."""
    if given is None or isinstance(given, str | int):
        return [given] * count
    if not isinstance(given, Sequence):
        raise InputError(f"{what} is one for all texts or a list with one for each: got {type(given).__name__}")
    if len(given) != count:
        raise InputError(f"{what} is one for all texts or a list with one for each: {count} texts, {len(given)} given")
    return list(given)


def _plain_model(model: nn.Module) -> nn.Module:
    """The model itself where it was compiled: a compiled graph shows no operations."""
    return getattr(model, "_orig_mod", model)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
