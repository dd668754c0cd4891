"""Lens: load or wrap a model, analyse texts with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy
from normlens.anatomy.inputs import checked_inputs, rows_of
from normlens.anatomy.kinds import Kind
from normlens.anatomy.loading import (
    EMBEDDED_NAME,
    LoadOptions,
    check_model,
    default_model,
    load_pretrained,
    model_and_tokenizer,
    split_processor,
)
from normlens.anatomy.scope import SEED, PassScope, is_seeded, one_pass_at_a_time
from normlens.anatomy.traced_model import TracedModel
from normlens.decompose.singular_values import Variant
from normlens.errors import CallbackError, InputError, unexpected_keyword
from normlens.inputs.encoding import EncodedText, Text, TextEncoder, as_lists, pad_rows
from normlens.inputs.labels import InputLabels, check_media_rows, images_in
from normlens.inputs.media import MediaEncoder, MediaOptions, batches_of, joined
from normlens.inputs.places import PlaceReader
from normlens.io.remote import AnyPath
from normlens.measures.request import AnalyzeOptions, Request, check_fits
from normlens.measures.run import OnSite, SiteResult, run
from normlens.measures.streaming import iterate
from normlens.options import Precision, WordMode
from normlens.results.analysis import Analysis, AnalysisBuilder
from normlens.types import Json, Kwargs, ModelInputs, Options

if TYPE_CHECKING:
    import xarray as xr

    from normlens.attribution.request import ExplainOptions, InputOptions
    from normlens.corpus.options import CorpusOptions
    from normlens.corpus.reading import Source
    from normlens.corpus.result import CorpusResult
    from normlens.corpus.run import Progress
    from normlens.results.explanation import Explanation


#: Requests that are kept; after so many different ones, all are dropped.
_MAX_REQUESTS = 32


def load(
    name: str | Path | None = None, *, dtype: torch.dtype | str | None = None, **options: Unpack[LoadOptions]
) -> Lens:
    """A lens on a model by hub name or folder; without a name, on the embedded default model.

    Options (`revision`, `subfolder`, `gguf_file`, `device_map`, …) go to transformers' `from_pretrained`.

    >>> import normlens
    >>> lens = normlens.load()
    >>> lens.anatomy.kinds
    ('encoder',)
    """
    model, tokenizer = load_pretrained(str(name) if name is not None else default_model(), dtype, **options)
    return Lens(model, tokenizer, name=EMBEDDED_NAME if name is None else Path(str(name)).name)


class Lens:
    """A model seen through norm-based analysis.

    The model is used as it is: its attention implementation, its training mode and its weights are left as they were.
    One pass at a time runs through a model; other threads wait. A Hugging Face pipeline, a `SentenceTransformer` or a
    `CrossEncoder` may be given as it is: `Lens(pipeline)`.
    """

    def __init__(self, model: nn.Module | Any, tokenizer: Any = None, *, name: str | None = None) -> None:
        model, tokenizer = model_and_tokenizer(model, tokenizer)
        self.tokenizer, self.processor = split_processor(tokenizer)
        check_model(model)
        self.traced = TracedModel(model, name)
        self._requests: dict[tuple[int, str], tuple[Anatomy, Request]] = {}

    def __repr__(self) -> str:
        config_name = getattr(getattr(self.model, "config", None), "_name_or_path", "")
        name = self.traced.name or config_name or type(self.model).__name__
        weight = next(self.model.parameters())
        numbers = sum(p.numel() for p in self.model.parameters())
        dtype = str(weight.dtype).removeprefix("torch.")
        tokenizer = "" if self.tokenizer is not None else ", no tokenizer"
        what = f"{self.family}, {numbers / 1e6:.1f}M parameters, {dtype}, {weight.device}{tokenizer}"
        return f"<normlens.Lens on {name!r}: {what}>"

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.traced.model

    @property
    def family(self) -> str:
        """The model's type, as its configuration names it."""
        return self.traced.family

    @property
    def anatomy(self) -> Anatomy:
        """The model's attention sites."""
        return self.traced.anatomy

    @property
    def identity(self) -> Json:
        """Name, class, family, revision, content hash and dtype of the model, for records."""
        self.traced.refresh()
        return self.traced.description()

    @property
    def max_output_error(self) -> float:
        """The largest difference so far between the model's output under capture and its own; 0 before the first pass."""
        return max(self.traced.output_errors.values(), default=0.0)

    @property
    def extractor(self) -> Any:
        """The part of the processor that reads sound; None where there is none."""
        inner = getattr(self.processor, "feature_extractor", None)
        return self.processor if inner is None else inner

    @cached_property
    def media(self) -> MediaEncoder:
        """Turns images and sound into inputs for this model."""
        return MediaEncoder(self.processor)

    @cached_property
    def encoder(self) -> TextEncoder:
        """Turns texts into sequences for this model."""
        return TextEncoder(self.model, self.tokenizer)

    def singular_values(self) -> xr.DataArray:
        """Singular values of each head's `f`, as an affine map (2020, Appendices A and B): (layer, head, rank)."""
        from normlens.anatomy.expansion import singular_value_table

        with self.traced.named_errors():
            return singular_value_table(self.anatomy)

    def expansion_rate(self, variant: Variant = "code") -> xr.DataArray:
        """The expansion rate of each layer's `f` (2021, Section 4.4): the authors' variant or the plain one."""
        from normlens.anatomy.expansion import expansion_rates

        with self.traced.named_errors():
            return expansion_rates(self.anatomy, variant)

    # ---- texts ---------------------------------------------------------------------------------------------------

    @overload
    def analyze(
        self,
        text: str | None = None,
        pair: str | None = None,
        target: str | None = None,
        *,
        pretokenized: Literal[False] = False,
        **options: Unpack[AnalyzeOptions],
    ) -> Analysis: ...

    @overload
    def analyze(
        self,
        text: list[str] | tuple[str, ...],
        pair: list[str] | tuple[str, ...] | None = None,
        target: list[str] | tuple[str, ...] | None = None,
        *,
        pretokenized: Literal[False] = False,
        **options: Unpack[AnalyzeOptions],
    ) -> list[Analysis]: ...

    @overload
    def analyze(
        self,
        text: list[str] | tuple[str, ...],
        pair: list[str] | tuple[str, ...] | None = None,
        target: list[str] | tuple[str, ...] | None = None,
        *,
        pretokenized: Literal[True],
        **options: Unpack[AnalyzeOptions],
    ) -> Analysis: ...

    @overload
    def analyze(
        self,
        text: list[list[str]] | tuple[list[str], ...],
        pair: list[list[str]] | tuple[list[str], ...] | None = None,
        target: list[list[str]] | tuple[list[str], ...] | None = None,
        *,
        pretokenized: Literal[True],
        **options: Unpack[AnalyzeOptions],
    ) -> list[Analysis]: ...

    def analyze(
        self,
        text: Text | Sequence[Text] | None = None,
        pair: Text | Sequence[Text] | None = None,
        target: Text | Sequence[Text] | None = None,
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        words: WordMode | None = None,
        precision: Precision = "float32",
        generate: bool = False,
        pretokenized: bool = False,
        truncate: bool = False,
        batch_size: int = 8,
        progress: Callable[[int, int], None] | None = None,
        **media: Unpack[MediaOptions],
    ) -> Analysis | list[Analysis]:
        """Analyse one text, image or recording, or a list of them.

        Args:
            text: A text, or a list of texts; None for images or sound alone.
            pair: A second segment, as in `[CLS] text [SEP] pair [SEP]`.
            target: The text that an encoder-decoder model is made to write.
            measures: Names of measures; by default the nine standard ones. Maps through the feed-forward block cost about
                half as many feed-forward passes as there are tokens, and are asked for by name.
            mixing: Maps whose mixing ratios are computed, beside those of the maps among `measures`.
            layers: Numbers of layers, from 1; by default all.
            words: Merge subwords to words: `norms` adds norms, `vectors` adds vectors before their norm is taken.
            precision: The dtype of the computation.
            generate: Analyse what the model itself writes.
            pretokenized: A text is a list of words.
            truncate: Cut a text that is too long for the model.
            batch_size: Texts in a forward pass.
            progress: Called with the number of texts that are done and of all texts; where all are one batch, with sites.
            **media: `images` (paths, PIL images, arrays), `audio` (paths of WAV files, or samples) and the
                `sampling_rate` of samples. With a text they belong to it; without one, a list is several inputs.

        Returns:
            One `Analysis` for one input, a list in the same order for a list.

        Raises:
            InputError: The inputs or the options do not fit the model.
            AnatomyError: The structure of the model cannot be read.
            DecompositionError: The parts do not rebuild what the model computed.
        """
        check_batch_size(batch_size)
        if media:
            options = _request_options(words, precision, measures=measures, mixing=mixing, layers=layers)
            unused = {
                "pair": pair,
                "words": words,
                "generate": generate,
                "pretokenized": pretokenized,
                "truncate": truncate,
            }
            return self._analyze_media(text, target, media, options, unused, batch_size, progress)
        single, items = as_lists(text, pair, target, pretokenized)
        options = _request_options(words, precision, measures=measures, mixing=mixing, layers=layers)
        request = self._request(self.anatomy, options)
        encode = self._generated if generate else self.encoder
        encoded = [encode(*item, truncate=truncate, pretokenized=pretokenized) for item in items]
        lengths = [sequence.lengths for sequence in encoded]
        if sum(map(sum, lengths)) > request.always_fits or self.traced.state.devices != {"cpu"}:
            check_fits(request, lengths, batch_size)
        order = sorted(range(len(encoded)), key=lambda i: sum(lengths[i]))
        one_batch = len(order) <= batch_size
        analyses: dict[int, Analysis] = {}
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            rows = [encoded[i] for i in chosen]
            by_site = progress if one_batch else None
            if start > 0:
                self.traced.refresh()
            analyses.update(zip(chosen, self._analyze_batch(self._padded(rows), rows, options, by_site), strict=True))
            if progress is not None and not one_batch:
                progress(min(start + batch_size, len(order)), len(order))
        return analyses[0] if single else [analyses[i] for i in range(len(encoded))]

    def _analyze_media(
        self,
        text: Any,
        target: Any,
        media: MediaOptions,
        options: Options,
        unused: Options,
        batch_size: int,
        progress: Callable[[int, int], None] | None,
    ) -> Analysis | list[Analysis]:
        """Analyse images or sound, with or without text."""
        for name in media:
            if name not in MediaOptions.__optional_keys__:
                raise unexpected_keyword("analyze", name, AnalyzeOptions.__optional_keys__)
        for name, value in unused.items():
            if value:
                raise InputError(f"{name} cannot be used with images or audio; leave it out")
        single, rows = self.media.rows(text, media)
        targets = target if isinstance(target, list | tuple) else [target] * len(rows)
        if len(targets) != len(rows):
            raise InputError(f"got {len(rows)} rows and {len(targets)} targets; each row needs its target")
        starts = getattr(getattr(self.model, "config", None), "decoder_start_token_id", None)
        for number, written in enumerate(targets):
            if written is None and starts is not None and self.traced.two_sided:
                raise InputError(
                    "target is missing for an encoder-decoder model; pass target=… (--target on the shell)"
                )
            if written is not None and not self.traced.two_sided:
                raise InputError("target is for encoder-decoder models, this one has one side; leave it out")
            if written is not None:
                shifted, _, _ = self.encoder.target(written, truncate=False, pretokenized=False)
                decoder = {"decoder_input_ids": torch.tensor([shifted.ids])}
                row = rows[number]
                rows[number] = replace(row, inputs=row.inputs | decoder, notes=row.notes | {"target": written})
        first = next(self.traced.body.parameters())
        analyses: list[Analysis] = []
        for batch in batches_of(rows, batch_size):
            self.traced.refresh()
            chosen = [rows[i] for i in batch]
            inputs = joined(chosen, first.device, first.dtype)
            analyses += self._analyze_batch(inputs, None, options, notes=[row.notes for row in chosen])
            if progress is not None:
                progress(len(analyses), len(rows))
        return analyses[0] if single else analyses

    def stream(
        self,
        text: Text,
        pair: Text | None = None,
        target: Text | None = None,
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        sites: Sequence[str] | None = None,
        precision: Precision = "float32",
        truncate: bool = False,
    ) -> Iterator[SiteResult]:
        """Yield one site at a time, in the order in which the model runs them; nothing is kept in between.

        Args:
            text: The text.
            pair: A second segment.
            target: The text that an encoder-decoder model is made to write.
            measures: Names of measures; by default the nine standard ones.
            mixing: Maps whose mixing ratios are computed.
            layers: Numbers of layers, from 1; by default all.
            sites: Kinds of sites: `encoder`, `decoder`, `cross`; by default all.
            precision: The dtype of the computation.
            truncate: Cut a text that is too long for the model.
        """
        encoded = self.encoder(text, pair, target, truncate=truncate, pretokenized=False)
        yield from self.stream_inputs(
            self._padded([encoded]), measures=measures, mixing=mixing, layers=layers, sites=sites, precision=precision
        )

    def _generated(
        self, text: Text, pair: Text | None, target: Text | None, *, truncate: bool, pretokenized: bool
    ) -> EncodedText:
        """The text and the model's continuation, encoded."""
        if target is not None:
            raise InputError(
                "generate=True analyses what the model itself writes: a target was given as well; drop one"
            )
        if not getattr(self.model, "can_generate", lambda: False)():
            raise InputError(
                f"{type(self.model).__name__} has no language-modelling head, which generate=True needs; load it "
                "with its head, or pass the text to analyse"
            )
        prompt = self.encoder.prompt(text, pair, truncate=truncate, pretokenized=pretokenized)
        with PassScope(self.model):
            written = self.model.generate(**self._padded([prompt]), do_sample=False)[0].tolist()  # type: ignore[operator]
        if not self.traced.two_sided:
            return _noted(self.encoder.continued(prompt, written[len(prompt.source.ids) :]))
        ends = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [ends]
        kept = [i for n, i in enumerate(written) if n == 0 or i not in ends]  # the last step only says: stop
        return _noted(self.encoder.with_target(prompt, kept))

    def corpus(
        self,
        source: Source,
        out: str | AnyPath,
        *,
        progress: Callable[[Progress], None] | None = None,
        **options: Unpack[CorpusOptions],
    ) -> CorpusResult:
        """Compute statistics of a whole corpus in one pass and write them to a folder.

        The same call resumes what an earlier one left unfinished. The tables depend neither on the engine nor on the
        number of workers, nor on interruptions.

        Args:
            source: Files, folders or addresses (`s3://…`), `hub:NAME`, a `Dataset` or streaming `IterableDataset` of the
                datasets library, or a list of them.
            out: The output folder, or its address. Files in it that are not of a run are left alone.
            progress: Called as sequences are counted.
            **options: What to read (`Reading`), what to compute (`Plan`) and how to run (`Running`), by the names in
                `normlens.corpus.options`. `covariates` gives each token id a number: an array over the vocabulary (NaN
                leaves a token out), a file of frequency ranks, or "corpus" to rank by the corpus' own counts.

        Returns:
            The results: tables as pandas frames.
        """
        from normlens.corpus.run import count_corpus

        return count_corpus(self, source, out, options, progress)

    def _padded(self, rows: Sequence[EncodedText]) -> dict[str, Tensor]:
        return pad_rows([row.inputs for row in rows], self.encoder.padding, next(self.traced.body.parameters()).device)

    # ---- explanations --------------------------------------------------------------------------------------------

    @overload
    def explain(
        self,
        text: str | None = None,
        pair: str | None = None,
        target: str | None = None,
        **options: Unpack[ExplainOptions],
    ) -> Explanation: ...

    @overload
    def explain(
        self,
        text: list[str] | tuple[str, ...],
        pair: list[str] | tuple[str, ...] | None = None,
        target: list[str] | tuple[str, ...] | None = None,
        **options: Unpack[ExplainOptions],
    ) -> list[Explanation]: ...

    def explain(
        self,
        text: Text | Sequence[Text] | None = None,
        pair: Text | Sequence[Text] | None = None,
        target: Text | Sequence[Text] | None = None,
        **options: Unpack[ExplainOptions],
    ) -> Explanation | list[Explanation]:
        """Explain one number that the model puts out: how much each input, head and layer contributed to it, exactly.

        Args:
            text: A text, or a list of texts; None for images or sound alone.
            pair: A second segment.
            target: The text that an encoder-decoder model is made to write.
            **options: The number: `output` (a token, a label or its number; by default the model's own choice),
                `against` (explain the difference of two outputs), `position`, or `direction` (a vector on a state).
                Chats and documents: `messages` in place of a text, with `tools`; `sources`, texts by name that the text
                or the messages place as `{name}`. What the model writes: `generate`, `max_new_tokens`, and `seed` to
                draw it. Images and sound: `images`, `audio`, `sampling_rate`, as in `analyze`, and `through` ("vision" or
                "audio") to carry the terms of a language model's image positions on to the patches. The rules:
                `attention` (`fixed` or `integrated`), `baseline` (`mean` or `zero`). The result: `parts`, `edges_top`. How
                it runs: `pretokenized`, `truncate`, `batch_size`, `progress`.

        Returns:
            One `Explanation` for one text or chat, a list for a list.

        Raises:
            InputError: The question cannot be asked of this model.
            AnatomyError: An operation of the model has no rule.
            DecompositionError: The terms do not add up to the number.

        Example:
            >>> lens = load("gpt2")  # doctest: +SKIP
            >>> lens.explain("The capital of France is", output=" Paris")["tokens"]  # doctest: +SKIP
        """
        from normlens.attribution.explain import explain_texts

        with one_pass_at_a_time(self.traced.body):
            return explain_texts(self, text, pair, target, options)

    def explain_inputs(self, inputs: ModelInputs, **options: Unpack[InputOptions]) -> list[Explanation]:
        """Explain tensors that you prepared yourself: one `Explanation` per row.

        Args:
            inputs: The model's inputs by name.
            options: `output`, `against`, `position`, `direction`, `attention`, `baseline`, `parts` and `edges_top`, as for
                `explain`.
        """
        from normlens.attribution.explain import explain_inputs

        checked = checked_inputs(self.traced.body, inputs)
        with one_pass_at_a_time(self.traced.body):
            return explain_inputs(self, checked, options)

    # ---- tensors -------------------------------------------------------------------------------------------------

    def analyze_inputs(
        self,
        inputs: ModelInputs,
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        precision: Precision = "float32",
    ) -> list[Analysis]:
        """Analyse tensors that you prepared yourself.

        Args:
            inputs: The model's inputs by name: `input_ids`, `attention_mask` and so on.
            measures: Names of measures; by default the nine standard ones.
            mixing: Maps whose mixing ratios are computed.
            layers: Numbers of layers, from 1; by default all.
            precision: The dtype of the computation.

        Returns:
            One `Analysis` per row.
        """
        options = _request_options(None, precision, measures=measures, mixing=mixing, layers=layers)
        checked = checked_inputs(self.traced.body, inputs)
        self.traced.refresh()
        return self._analyze_batch(checked, None, options)

    def stream_inputs(
        self,
        inputs: ModelInputs,
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        sites: Sequence[str] | None = None,
        precision: Precision = "float32",
    ) -> Iterator[SiteResult]:
        """Yield one site of a prepared batch at a time; nothing is kept in between.

        Args:
            inputs: The model's inputs by name.
            measures: Names of measures; by default the nine standard ones.
            mixing: Maps whose mixing ratios are computed.
            layers: Numbers of layers, from 1; by default all.
            sites: Kinds of sites: `encoder`, `decoder`, `cross`; by default all.
            precision: The dtype of the computation.
        """
        inputs = checked_inputs(self.traced.body, inputs)
        self.traced.refresh()
        options = _request_options(None, precision, measures=measures, mixing=mixing, layers=layers, sites=sites)
        with self.traced.named_errors(inputs):
            request = Request.of(self.traced.anatomy_for(inputs), **options)
        reader = threading.get_ident()
        return iterate(
            lambda give: self.run(inputs, request, lambda result, block: give(result), prepared=True, reader=reader)
        )

    def run(
        self,
        inputs: ModelInputs,
        request: Request,
        on_site: OnSite,
        *,
        prepared: bool = False,
        reader: int | None = None,
    ) -> None:
        """Run one forward pass and deliver each site to `on_site` as soon as it is measured and proved.

        Args:
            inputs: The model's inputs.
            request: The measures and sites.
            on_site: Receives each site and its block, which is valid only during the call.
            prepared: Whether a user prepared the inputs, so that nothing is added to them.
            reader: The thread that reads the results, if it is another one.
        """
        with one_pass_at_a_time(self.traced.body, reader), self.traced.named_errors(inputs):
            self.traced.refresh()
            run(self.traced, inputs, request, on_site, prepared=prepared)

    def _request(self, anatomy: Anatomy, options: Options) -> Request:
        """The checked request; the same options are usually given again and again."""
        key = (id(anatomy), repr(options))
        if key not in self._requests:
            if len(self._requests) >= _MAX_REQUESTS:
                self._requests.clear()
            # The anatomy is kept with its request, so that no other takes its identity.
            self._requests[key] = anatomy, Request.of(anatomy, **options)
        return self._requests[key][1]

    def _analyze_batch(
        self,
        inputs: ModelInputs,
        rows: Sequence[EncodedText] | None,
        options: Options,
        progress: Callable[[int, int], None] | None = None,
        notes: Sequence[Json] | None = None,
    ) -> list[Analysis]:
        """Analyse one batch: one analysis per row.

        Args:
            inputs: The padded batch.
            rows: The texts it was made of; None: the user prepared the inputs.
            options: The request.
            progress: Called with the sites done and the sites in all.
            notes: For the provenance of each row, where they are no texts.
        """

        if rows is None:
            check_media_rows(getattr(self.model, "config", None), inputs)
        images = 1 if rows is not None else images_in(inputs)

        def analyze() -> list[Analysis]:
            with self.traced.named_errors(inputs):
                anatomy = self.traced.anatomy_for(inputs)
                request = self._request(anatomy, options)
                count = len(rows) if rows is not None else rows_of(inputs)
                report = None if progress is None else _guarded(progress)
                builder = AnalysisBuilder(count, len(request.sites), report, images=images)
                words = _row_words(anatomy.kinds, rows) if request.words is not None and rows is not None else None
                error = run(self.traced, inputs, request, builder.update, prepared=rows is None, words=words)
                labels = self.labels(inputs) if rows is None else None
                analyses = []
                for n in range(count):
                    if labels is None:
                        assert rows is not None
                        noted = rows[n].notes
                        tokens = {kind: rows[n].sides(kind) for kind in builder.kinds}
                    else:
                        noted = notes[n] if notes is not None else {}
                        masks = builder.masks_of(n)
                        tokens = {kind: labels.sides(kind, n, *pair) for kind, pair in masks.items()}
                    record = {"model": self.traced.description(), **deepcopy(request.record)}
                    record |= {"output_check": error, **noted}
                    if is_seeded(self.model):
                        record["pass_seed"] = SEED
                    analyses.append(builder.result(n, tokens, record, by_word=request.words is not None))
                return analyses

        with one_pass_at_a_time(self.traced.body):
            try:
                return self.traced.with_fresh_caches(analyze)
            except CallbackError as error:
                assert error.__cause__ is not None
                raise error.__cause__ from None

    def labels(self, inputs: ModelInputs) -> InputLabels:
        """Labels for the positions of prepared inputs: tokens, patches and frames where they are known."""
        places = PlaceReader(getattr(self.model, "config", None), self.extractor, shuffled=is_seeded(self.model))
        return InputLabels(self.encoder, places, inputs)


def _guarded(progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Mark the errors of a user's callback, which are no errors of the model."""

    def report(done: int, total: int) -> None:
        try:
            progress(done, total)
        except Exception as error:
            raise CallbackError from error

    return report


def check_batch_size(batch_size: Any) -> None:
    """Refuse a batch size that is not a positive whole number."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")


def _noted(text: EncodedText) -> EncodedText:
    return replace(text, notes=text.notes | {"generated": True})


def _row_words(kinds: Sequence[Kind], rows: Sequence[EncodedText]) -> dict[Kind, list[tuple[Tensor, Tensor]]]:
    """The words of the queries and keys of each row, by kind of site."""
    words: dict[Kind, list[tuple[Tensor, Tensor]]] = {kind: [] for kind in kinds}
    for kind, row in product(kinds, rows):
        queries, keys = row.sides(kind)
        words[kind].append((torch.tensor(queries.words), torch.tensor(keys.words)))
    return words


def _request_options(words: WordMode | None, precision: Precision, **several: Iterable[Any] | None) -> Kwargs:
    """The options of a request. An iterable is made a list, since it is read more than once; one name is a list of one."""
    options: Kwargs = {"words": words, "precision": precision}
    for name, value in several.items():
        if value is not None and not isinstance(value, Iterable):
            raise InputError(f"{name} must be a list, got {value!r}; write {name}=[{value!r}]")
        if isinstance(value, str):
            value = [value]
        options[name] = None if value is None else list(value)
    return options
