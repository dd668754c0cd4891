"""Explain, from the question to the result: what `Lens.explain` and `Lens.explain_inputs` call.

question ─▶ frozen pass (`terms.Run`) ─▶ terms ─▶ proof ─▶ result. Rows of a batch are explained together, each step of a
text by one backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normlens.anatomy.examine import family_of, is_encoder_decoder
from normlens.anatomy.inputs import holds_media, modality_of, rows_of
from normlens.anatomy.interface import Rounding, clone_inputs, run_arguments
from normlens.anatomy.layers import LayerCall
from normlens.anatomy.scope import PassScope
from normlens.attribution.jobs import Job, JobWriter, Reading, TextQuestion
from normlens.attribution.media import MediaJobs
from normlens.attribution.observer import TermSelection
from normlens.attribution.operands import mapped
from normlens.attribution.proof import (
    ProofSettings,
    check_edges,
    check_finite,
    check_layers,
    check_number,
    check_replay,
    check_sums,
)
from normlens.attribution.questions import (
    Numbers,
    Output,
    Question,
    Resolver,
    first_tensor,
    one_for_each,
    output_length,
    real_positions,
)
from normlens.attribution.request import ExplainOptions, ExplainRequest, InputOptions
from normlens.attribution.results import ExplainedRow, explanation
from normlens.attribution.terms import Run, Terms
from normlens.errors import AnatomyError, DecompositionError, InputError
from normlens.inputs.encoding import EncodedText, Text, as_lists, pad_rows
from normlens.inputs.labels import check_media_rows
from normlens.inputs.media import batches_of, joined
from normlens.inputs.prompts import place_sources, render_chat
from normlens.inputs.tokens import Tokens
from normlens.lens import Lens, check_batch_size
from normlens.results.explanation import Explanation
from normlens.types import Kwargs, ModelInputs, Options


def explain_texts(
    lens: Lens,
    text: Text | Sequence[Text] | None,
    pair: Text | Sequence[Text] | None,
    target: Text | Sequence[Text] | None,
    options: ExplainOptions,
) -> Explanation | list[Explanation]:
    """Explain one number that the model puts out for a text, or one for each text of a list (see `Lens.explain`)."""
    batch_size, progress = options.get("batch_size", 8), options.get("progress")
    pretokenized = options.get("pretokenized", False)
    check_batch_size(batch_size)
    request, resolver = _checked(lens, options, ExplainOptions)
    reading = Reading(
        options.get("generate", False),
        options.get("truncate", False),
        pretokenized,
        options.get("max_new_tokens"),
        options.get("seed"),
    )
    if options.get("images") is not None or options.get("audio") is not None:
        if pair is not None:
            raise InputError("pair cannot be used with images or audio; leave it out")
        return _explain_media(lens, resolver, request, reading, text, target, options)
    write = JobWriter(lens, resolver, reading, direction=request.direction is not None)
    single, rows = _rows(lens, text, pair, target, options)
    jobs = [
        write(TextQuestion(*row, *which)) for row, which in zip(rows, _for_each_row(len(rows), options), strict=True)
    ]
    request.check_fits(resolver.model, [(job.text.lengths, len(job.steps)) for job in jobs])
    explanations: dict[int, Explanation] = {}
    for batch in _batches(lens, resolver.model, jobs, batch_size):
        batch_jobs = [jobs[i] for i in batch]
        inputs = _padded(lens, resolver.model, batch_jobs)
        explanations.update(zip(batch, _explain_batch(lens, resolver, request, inputs, batch_jobs), strict=True))
        if progress is not None:
            progress(len(explanations), len(jobs))
    results = [explanations[i] for i in range(len(jobs))]
    return results[0] if single else results


def _explain_media(
    lens: Lens,
    resolver: Resolver,
    request: ExplainRequest,
    reading: Reading,
    text: Any,
    target: Any,
    options: ExplainOptions,
) -> Explanation | list[Explanation]:
    """Explain one number for images or sound, with or without text."""
    for name in ("messages", "tools", "sources", "pretokenized"):
        if options.get(name):
            raise InputError(f"{name} cannot be used with images or audio; leave it out")
    single, rows = lens.media.rows(text, options)
    targets = target if isinstance(target, list | tuple) else [target] * len(rows)
    if len(targets) != len(rows):
        raise InputError(f"got {len(rows)} rows and {len(targets)} targets; each row needs its target")
    direction, progress = request.direction is not None, options.get("progress")
    write = MediaJobs(lens, resolver, reading, direction=direction).write
    each = []
    for row, goal, which in zip(rows, targets, _for_each_row(len(rows), options), strict=True):
        each.append((*write(row, goal, *which), which))
    first = next(resolver.model.parameters())
    found: list[Explanation] = []
    for batch in batches_of([row for row, _, _ in each], options.get("batch_size", 8)):
        if any(each[i][1] is not None for i in batch):
            groups = [[i] for i in batch]
        else:
            groups = [batch]
        for group in groups:
            inputs = joined([each[i][0] for i in group], first.device, first.dtype)
            jobs = []
            for number, i in enumerate(group):
                media, job, which = each[i]
                if job is None:
                    job = _prepared_job(lens, resolver, inputs, number, *which, direction=direction)
                jobs.append(replace(job, text=replace(job.text, notes=job.text.notes | media.notes)))
            request.check_fits(resolver.model, [(job.text.lengths, len(job.steps)) for job in jobs])
            found += _explain_batch(lens, resolver, request, inputs, jobs)
            if progress is not None:
                progress(len(found), len(each))
    return found[0] if single else found


def _rows(
    lens: Lens,
    text: Text | Sequence[Text] | None,
    pair: Text | Sequence[Text] | None,
    target: Text | Sequence[Text] | None,
    options: ExplainOptions,
) -> tuple[bool, list[tuple[Any, Any, Any]]]:
    """Return whether one text was given, and for each text (or prompt) its pair and target."""
    messages, sources = options.get("messages"), options.get("sources") or {}
    pretokenized = options.get("pretokenized", False)
    if messages is not None or sources:
        excluded = {"pair": pair, "target": target, "pretokenized": pretokenized, "truncate": options.get("truncate")}
        for name, value in excluded.items():
            if value:
                raise InputError(f"{name} cannot be used with messages or sources; leave it out")
    if messages is None and options.get("tools") is not None:
        raise InputError("tools needs messages; pass a chat, or leave it out")
    if messages is None:
        if text is None:
            raise InputError("text is missing; pass a text, or a chat as messages=[…]")
        single, rows = as_lists(text, pair, target, pretokenized)
        if sources:
            rows = [(place_sources(template, sources), None, None) for template, _, _ in rows]
        return single, rows
    if text is not None:
        raise InputError("text and messages exclude each other; leave out one")
    if isinstance(messages, str | Mapping):
        raise InputError(f"messages must be a list of messages, got {type(messages).__name__}")
    if not messages:
        raise InputError("messages is empty; pass at least one message")
    single = isinstance(messages[0], Mapping)
    chats: list[Any] = [messages] if single else list(messages)
    prompts = [render_chat(lens.tokenizer, chat, sources, options.get("tools")) for chat in chats]
    return single, [(prompt, None, None) for prompt in prompts]


def explain_inputs(lens: Lens, inputs: ModelInputs, options: InputOptions) -> list[Explanation]:
    """Explain prepared tensors: one `Explanation` per row (see `Lens.explain_inputs`)."""
    request, resolver = _checked(lens, options, InputOptions)
    if holds_media(inputs):
        check_media_rows(resolver.config, inputs)
    for name in ("logits_to_keep", "num_logits_to_keep"):
        if isinstance(inputs.get(name), Tensor) or inputs.get(name):
            raise InputError(f"explain_inputs() needs the whole output, got {name}={inputs[name]}; leave it out")
    jobs = []
    for row, which in enumerate(_for_each_row(rows_of(inputs), options)):
        jobs.append(_prepared_job(lens, resolver, inputs, row, *which, direction=request.direction is not None))
    request.check_fits(resolver.model, [(job.text.lengths, 1) for job in jobs])
    return _explain_batch(lens, resolver, request, inputs, jobs)


def _checked(lens: Lens, options: Options, allowed: Any) -> tuple[ExplainRequest, Resolver]:
    """Check what can be checked before anything is read."""
    request = ExplainRequest.of(options, allowed)
    model: nn.Module = getattr(lens.model, "_orig_mod", lens.model)  # a compiled graph shows no operations
    resolver = Resolver(model, lens.tokenizer)
    resolver.check(request.direction is not None, options.get("output"), options.get("against"))
    return request, resolver


def _explain_batch(
    lens: Lens, resolver: Resolver, request: ExplainRequest, inputs: ModelInputs, jobs: Sequence[Job]
) -> list[Explanation]:
    """The explanations of the rows of one batch; rows go one by one where a model mixes them."""
    if Rounding.of(resolver.model).autocast is not None:
        raise InputError("explain() does not support torch.autocast; exit the context or load the model in that dtype")
    batch = _Batch(lens, resolver, request)
    questions = [job.steps for job in jobs]
    with lens.traced.named_errors(inputs):
        try:
            rows = batch.explain(inputs, questions)
        except (DecompositionError, _MixedRowsError):
            if len(jobs) == 1:
                raise
            rows = []
            for row in range(len(jobs)):
                rows += batch.explain(_one_row(inputs, row, len(jobs)), [questions[row]])
    explanations = []
    for row, job in enumerate(jobs):
        explanations.append(explanation(lens, resolver, request, inputs, row, job, rows[row]))
    return explanations


def _for_each_row(count: int, options: Options) -> list[tuple[Any, ...]]:
    """Output, against and position of each row."""
    each = [one_for_each(options.get(name), count, name) for name in ("output", "against", "position")]
    return list(zip(*each, strict=True))


def _prepared_job(
    lens: Lens,
    resolver: Resolver,
    inputs: ModelInputs,
    row: int,
    output: Output,
    against: Output,
    position: int | None,
    *,
    direction: bool,
) -> Job:
    """One row of prepared tensors: its labels, and the number that is asked for."""
    if not any(modality_of(name) in ("text", "target") for name in inputs) and holds_media(inputs):
        return _media_job(resolver, inputs, output, against, position, direction=direction)
    both = is_encoder_decoder(resolver.model)
    two_sided = both and any(name.startswith("decoder_input") for name in inputs)
    if both and not two_sided and "labels" in inputs:
        raise InputError("explain_inputs() needs decoder_input_ids, got labels; pass the tokens that the decoder reads")

    def side(decoder: bool) -> Tokens:
        real = real_positions(inputs, row, decoder=decoder)
        ids = inputs.get("decoder_input_ids" if decoder else "input_ids")
        if isinstance(ids, Tensor) and ids.ndim == 2:
            return lens.encoder.label([int(ids[row, i]) for i in real])
        return Tokens((), tuple(map(str, range(len(real)))), tuple(range(len(real))))

    source = Tokens((), (), ()) if both and holds_media(inputs) and "input_ids" not in inputs else side(False)
    text = EncodedText({}, source, side(True) if two_sided else None)
    real = real_positions(inputs, row, decoder=two_sided)
    own = (text.target or text.source).ids
    if direction:
        place = real[-1] if position is None else resolver.position(position, real, own)
        return Job(text, (Question(place, None),))
    place = resolver.position(position, real, own)
    wanted = None if output is None else resolver.one(output, "output")
    if wanted is None and two_sided and own and place in real[:-1] and resolver.head == "translation":
        wanted = own[real.index(place) + 1]  # the target token that the decoder is made to write there
    return Job(text, (Question(place, wanted, None if against is None else resolver.one(against, "against")),))


def _media_job(
    resolver: Resolver, inputs: ModelInputs, output: Output, against: Output, position: int | None, *, direction: bool
) -> Job:
    """One row of images or sound alone; its positions are known after the pass."""
    empty = EncodedText({}, Tokens((), (), ()))
    if direction:
        sees = any(modality_of(name) == "vision" for name in inputs)
        place = 0 if position is None and sees else resolver.position(position, (), None)
        return Job(empty, (Question(place, None),))
    place = resolver.position(position, (), None)
    wanted = None if output is None else resolver.one(output, "output")
    return Job(empty, (Question(place, wanted, None if against is None else resolver.one(against, "against")),))


# ---- batches ---------------------------------------------------------------------------------------------------------


def _batches(lens: Lens, model: nn.Module, jobs: Sequence[Job], size: int) -> Iterator[list[int]]:
    """Rows of about one length together; a job of several steps alone, and all alone where padding changes a number."""
    plain = sorted((i for i, job in enumerate(jobs) if len(job.steps) == 1), key=lambda i: sum(jobs[i].text.lengths))
    batches = [plain[i : i + size] for i in range(0, len(plain), size)]
    padded = [[jobs[i] for i in batch] for batch in batches if len({jobs[i].text.lengths for i in batch}) > 1]
    if padded and _padding_matters(lens, model, padded[0]):
        batches = [[i] for i in plain]
    yield from batches
    yield from ([i] for i, job in enumerate(jobs) if len(job.steps) != 1)


def _padding_matters(lens: Lens, model: nn.Module, jobs: Sequence[Job]) -> bool:
    """Return True if this model puts out other numbers for a row that is padded (convolutions, FNet); found out once."""
    traced = lens.traced
    if traced.padding_matters is None:
        rows = [jobs[0], jobs[-1]]
        with PassScope(model):
            alone, beside = (
                first_tensor(model(**run_arguments(model, _padded(lens, model, mine))))[0] for mine in (rows[:1], rows)
            )
        allowed = 100 * torch.finfo(alone.dtype).eps * max(float(alone.abs().max()), 1.0)
        traced.padding_matters = not float((alone - beside[: len(alone)]).abs().max()) <= allowed
    return traced.padding_matters


def _padded(lens: Lens, model: nn.Module, jobs: Sequence[Job]) -> dict[str, Tensor]:
    return pad_rows([job.text.inputs for job in jobs], lens.encoder.padding, next(model.parameters()).device)


# ---- one batch -------------------------------------------------------------------------------------------------------


class _MixedRowsError(AnatomyError):
    """A constant of the model belongs to no single row."""


@dataclass(frozen=True)
class _Batch:
    """Explains rows together."""

    lens: Lens
    resolver: Resolver
    request: ExplainRequest

    def explain(self, inputs: ModelInputs, questions: Sequence[tuple[Question, ...]]) -> list[ExplainedRow]:
        """Run forward once and backward for each step, and prove the terms; once per kind of input, the whole proof."""
        request, model, traced = self.request, self.resolver.model, self.lens.traced
        traced.refresh()
        kind = (*traced.kind_of(inputs), request.attention, request.direction is None, request.through)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        settings = ProofSettings(family_of(model), dtype, request.attention)
        steps = self._numbers(inputs, questions)
        own = None if kind in traced.explain_errors else self._own_numbers(inputs, steps[0])
        with PassScope(model, grad=True):
            arguments = mapped(run_arguments(model, clone_inputs(dict(inputs))), _outside_of_inference)
            run = Run(
                model,
                arguments,
                _selection(request),
                integrated=request.attention == "integrated",
                record=own is not None,
                attending=self._attending(inputs) if holds_media(inputs) else (),
            )
            check_layers(run.observer.layers, lambda on_inputs: self._traced_layers(inputs, on_inputs), settings)
            terms = self._terms(run, steps, settings)
            if own is not None:
                output_error = check_number(terms[0], *own, settings)
                replay_error = check_replay(
                    run, terms[0], steps[0], steps[0].sizes, settings, through=request.through is not None
                )
                traced.explain_errors[kind] = replay_error, output_error
        if request.baseline == "mean":
            terms = [each.beyond_baseline() for each in terms]
        rows = []
        for row in range(len(questions)):
            answers = [numbers.answers[row] for numbers in steps]
            rows.append(ExplainedRow([each.row(row) for each in terms], answers, *traced.explain_errors[kind]))
        return rows

    def _numbers(self, inputs: ModelInputs, questions: Sequence[tuple[Question, ...]]) -> list[Numbers]:
        """The explained numbers of all rows, step by step."""
        # Queries and frames are no positions of the text beside them.
        own_positions = holds_media(inputs) and self.resolver.head in ("none", "frames", "queries", "similarity")
        length = None if own_positions else output_length(inputs)
        steps = []
        for step in range(len(questions[0])):
            asked = [row[step] for row in questions]
            steps.append(Numbers(asked, self.request.direction, self.resolver.probability, length))
        return steps

    def _terms(self, run: Run, steps: Sequence[Numbers], settings: ProofSettings) -> list[Terms]:
        """The terms of each step, which must add up."""
        through = self.request.through is not None
        terms = [run.explain(numbers, again=numbers is not steps[-1], through=through) for numbers in steps]
        if run.observer.mixed_rows:
            raise _MixedRowsError("a constant of this model belongs to no row of the batch; pass one row at a time")
        for each, numbers in zip(terms, steps, strict=True):
            check_finite(each.value, settings.family)
            if self.request.through is not None:
                self._check_through(each)
            check_sums(each, settings, numbers.sizes)
            check_edges(each, settings, numbers.sizes)
        return terms

    def _check_through(self, terms: Terms) -> None:
        """Refuse `through` where terms were carried on to no tower of that name."""
        tower = self.request.through
        if not any(modality_of(s.input) == tower and s.carried for s in terms.stacks):
            raise InputError(
                f"through={tower!r} found no {tower} tower in front of a language model whose layers take one vector for "
                "each position; leave it out"
            )

    def _traced_layers(self, inputs: ModelInputs, on_inputs: bool) -> tuple[LayerCall, ...]:
        try:
            return self.lens.traced.layer_calls(inputs, on_inputs=on_inputs)
        except Exception:
            if on_inputs:
                raise
            return ()  # a model need not run on a few tokens

    def _attending(self, inputs: ModelInputs) -> set[nn.Module]:
        """The layers with attention of a model that sees or hears: its other lists are convolutions."""
        return {call.module for call in self._traced_layers(inputs, True) if call.attends}

    def _own_numbers(self, inputs: ModelInputs, numbers: Numbers) -> tuple[Tensor, float]:
        """The numbers of the user's own call, and the size of its largest logit."""
        with torch.no_grad():
            output = self.lens.traced.call(inputs)
            own = numbers(output).cpu().double()
            check_finite(own, family_of(self.resolver.model))
            logits = first_tensor(output)
            return own, float(torch.where(logits.isfinite(), logits, 0.0).abs().max())


def _selection(request: ExplainRequest) -> TermSelection:
    return TermSelection(
        heads=request.keeps("heads", "edges"),
        edges=request.keeps("edges"),
        edges_top=request.edges_top,
        blocks=request.keeps("blocks"),
        direct=request.keeps("direct"),
    )


def _outside_of_inference(x: Tensor) -> Tensor:
    """The same numbers where gradients may use them: tensors made under `torch.inference_mode` take part in none."""
    return x.clone() if x.is_inference() else x


def _one_row(inputs: ModelInputs, row: int, rows: int) -> Kwargs:
    single = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows:
            single[name] = value[row : row + 1]
    return single
