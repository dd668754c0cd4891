"""Lens: load or wrap a model, analyse texts with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import xarray as xr
from torch import Tensor, nn

from normlens.analysis import Analysis
from normlens.anatomy.description import Anatomy, Kind, Site
from normlens.anatomy.examine import backbone, examine, family_of, is_encoder_decoder, run_arguments
from normlens.anatomy.interface import all_modules, evaluating
from normlens.anatomy.trace import tensors_in
from normlens.capture import Request, capture
from normlens.collect import RowCollector
from normlens.decompose.affine import Variant
from normlens.decompose.block import Block, BlockTensors
from normlens.decompose.words import WordMode
from normlens.encoding import Encoded, Encoder, Text, Tokens, collate
from normlens.errors import InputError
from normlens.loading import EMBEDDED_NAME, check_model, default_model, load_pretrained
from normlens.memory import check_fits
from normlens.observe import Observer, Positions, SiteResult, merge_words
from normlens.prepared import WeightCache
from normlens.proof import Subject, check_output
from normlens.provenance import describe_model, versions
from normlens.settings import Precision, Settings
from normlens.streaming import pulled
from normlens.weights import expansion_rates, singular_value_table

if TYPE_CHECKING:
    from normlens.corpus.result import CorpusResult

Item = TypeVar("Item")


def load(name: str | Path | None = None, *, dtype: torch.dtype | str | None = None, **options: Any) -> Lens:
    """A lens on a model by hub name or folder; without a name, on the embedded default model.

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
    """

    def __init__(self, model: nn.Module, tokenizer: Any = None, *, name: str | None = None) -> None:
        check_model(model)
        self.model = model
        self.tokenizer = tokenizer
        self._name = name
        self._body = backbone(model)
        self._two_sided = is_encoder_decoder(model)
        self._anatomy: Anatomy | None = None
        self._read_from: tuple[int, ...] = ()  # the parameters that the anatomy refers to
        self._hashed: tuple[tuple[tuple[int, int], ...], dict[str, Any]] | None = None
        self._weights = WeightCache()
        self._verified: dict[bool, float] = {}  # padded or not -> difference of the outputs

    # ---- what the model is ---------------------------------------------------------------------------------------

    @property
    def anatomy(self) -> Anatomy:
        """The model's attention sites and what they are made of, read once (and anew when parameters were replaced)."""
        if self._anatomy is None or self._replaced():
            self._anatomy, self._read_from = examine(self._body), self._parameters()
        return self._anatomy

    def _parameters(self) -> tuple[int, ...]:
        return tuple(id(found) for module in all_modules(self._body) for found in module._parameters.values())

    def _replaced(self) -> bool:
        """Whether the model holds other parameters than when it was read (`load_state_dict(assign=True)`, say)."""
        return self._read_from != self._parameters()

    @property
    def family(self) -> str:
        """The model's type, as its configuration names it."""
        return family_of(self.model)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.model, self.tokenizer)

    @property
    def _identity(self) -> dict[str, Any]:
        # Keyed by each parameter and its version: a model that is trained further is another model.
        key = tuple((id(tensor), tensor._version) for tensor in (*self.model.parameters(), *self.model.buffers()))
        if self._hashed is None or self._hashed[0] != key:
            self._hashed = key, describe_model(self.model, self._name, self.family)
        return dict(self._hashed[1])

    @property
    def _device(self) -> torch.device:
        return next(self._body.parameters()).device

    def singular_values(self) -> xr.DataArray:
        """Singular values of each head's `f`, as an affine map (2020, Appendices A and B): (layer, head, rank)."""
        return singular_value_table(self.anatomy)

    def expansion_rate(self, variant: Variant = "code") -> xr.DataArray:
        """How much each layer's `f` stretches a vector (2021, Section 4.4): the authors' variant or the plain one."""
        return expansion_rates(self.anatomy, variant)

    # ---- texts ---------------------------------------------------------------------------------------------------

    def analyze(
        self,
        text: Text | Sequence[Text],
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
    ) -> Any:
        """Analyse one text, or a list of texts.

        One text in, one `Analysis` out; a list in, a list out, in the same order. `pair` is a second segment, `target`
        what an encoder-decoder model is made to write; `generate=True` analyses what the model itself writes.
        With `pretokenized=True` a text is a list of words. `words` merges subwords to words.
        """
        settings = Settings.of(
            self.anatomy, measures=measures, mixing=mixing, layers=layers, words=words, precision=precision
        )
        single, texts = _as_list(text, pretokenized)
        pairs = _matching(pair, len(texts), single, "pair")
        targets = _matching(target, len(texts), single, "target")
        encoded = [
            self._encode(*item, generate=generate, truncate=truncate, pretokenized=pretokenized)
            for item in zip(texts, pairs, targets, strict=True)
        ]
        check_fits(settings, [sequence.lengths for sequence in encoded])
        found = self._analyze_encoded(encoded, settings, batch_size, progress)
        return found[0] if single else found

    def stream(
        self, text: Text, pair: Text | None = None, target: Text | None = None, **options: Any
    ) -> Iterator[SiteResult]:
        """Yield one site at a time, in the order in which the model runs them; nothing is kept in between."""
        encoded = self._encode(
            text, pair, target, generate=False, truncate=options.pop("truncate", False), pretokenized=False
        )
        yield from self.stream_inputs(collate([encoded], self._pad, self._device), **options)

    @property
    def _pad(self) -> int:
        for owner in (self.tokenizer, getattr(self.model, "config", None)):
            pad = getattr(owner, "pad_token_id", None)
            if isinstance(pad, int) and pad >= 0:
                return pad
        return 0

    def _encode(
        self, text: Text, pair: Text | None, target: Text | None, *, generate: bool, truncate: bool, pretokenized: bool
    ) -> Encoded:
        if self.tokenizer is None:
            raise InputError(
                "a text needs a tokenizer: this lens has none; pass Lens(model, tokenizer), or tensors to analyze_inputs"
            )
        if not generate:
            return self._encoder(text, pair, target, truncate=truncate, pretokenized=pretokenized)
        if target is not None:
            raise InputError(
                "generate=True analyses what the model itself writes: a target was given as well; drop one"
            )
        return self._generated(self._encoder.prompt(text, pair, truncate=truncate, pretokenized=pretokenized))

    def _generated(self, prompt: Encoded) -> Encoded:
        if not hasattr(self.model, "generate") or not getattr(self.model, "can_generate", lambda: False)():
            raise InputError(
                f"generate=True needs a model with a language-modelling head: {type(self.model).__name__} has none; "
                "load it with its head, or pass the text to analyse"
            )
        batch = collate([prompt], self._pad, self._device)
        with evaluating(self.model):
            written = self.model.generate(**batch, do_sample=False)[0].tolist()  # type: ignore[operator]
        if self._two_sided:
            end = self._end_ids()
            kept = [i for n, i in enumerate(written) if n == 0 or i not in end]  # the last step only says: stop
            return self._encoder.from_ids(prompt.source, kept)
        return self._encoder.from_ids(self._encoder.label(written))

    def _end_ids(self) -> set[int]:
        ends = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        return set(ends) if isinstance(ends, list) else {ends} if isinstance(ends, int) else set()

    def _analyze_encoded(
        self,
        encoded: Sequence[Encoded],
        settings: Settings,
        batch_size: int,
        progress: Callable[[int, int], None] | None,
    ) -> list[Analysis]:
        if batch_size < 1:
            raise InputError(f"a batch holds at least one sequence: batch_size is {batch_size}")
        results: dict[int, Analysis] = {}
        order = sorted(range(len(encoded)), key=lambda i: encoded[i].length)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [encoded[i] for i in chosen]
            analyses = self._analyze_batch(collate(batch, self._pad, self._device), batch, settings)
            results.update(zip(chosen, analyses, strict=True))
            if progress is not None:
                progress(min(start + batch_size, len(order)), len(order))
        return [results[i] for i in range(len(encoded))]

    def corpus(self, source: str | Path | Sequence[str | Path], out: str | Path, **options: Any) -> CorpusResult:
        """Statistics over a whole corpus, in one pass that can be resumed (see `corpus.api.corpus_statistics`)."""
        from normlens.corpus.api import corpus_statistics

        return corpus_statistics(self, source, out, **options)

    # ---- tensors -------------------------------------------------------------------------------------------------

    def analyze_inputs(
        self,
        inputs: Mapping[str, Any],
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        precision: Precision = "float32",
    ) -> list[Analysis]:
        """Analyse tensors that you prepared yourself: one `Analysis` per row."""
        self._read_on(inputs)
        settings = Settings.of(self.anatomy, measures=measures, mixing=mixing, layers=layers, precision=precision)
        return self._analyze_batch(inputs, None, settings)

    def stream_inputs(
        self,
        inputs: Mapping[str, Any],
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        sites: Sequence[str] | None = None,
        precision: Precision = "float32",
    ) -> Iterator[SiteResult]:
        """Yield one site of a prepared batch at a time (see `SiteResult`); nothing is kept in between."""
        self._read_on(inputs)
        settings = Settings.of(
            self.anatomy, measures=measures, mixing=mixing, layers=layers, sites=sites, precision=precision
        )
        return pulled(lambda give: self.run(inputs, settings, lambda site, block, result: give(result)))

    def run(
        self, inputs: Mapping[str, Any], settings: Settings, handle: Callable[[Site, Block, SiteResult], None]
    ) -> None:
        """One forward pass; each site's proved numbers are handed to `handle` as the site ends."""
        positions = Positions.of(inputs, self._two_sided)
        own = self._own_output(inputs, positions.padded)
        # The coarser of what the model computed in and what the decomposition is computed in: rounding comes from there.
        dtype = max(next(self._body.parameters()).dtype, settings.dtype, key=lambda d: torch.finfo(d).eps)

        observer = Observer(positions, settings, self.family, dtype)

        def seen(site: Site, tensors: BlockTensors) -> None:
            handle(site, *observer.observe(site, tensors))

        request = Request(settings.sites, settings.needs, settings.dtype, observer.sample)
        output = capture(self._body, self.anatomy, inputs, seen, request, self._weights)
        if own is not None:
            last: Kind = "decoder" if self._two_sided else "encoder"
            mask = positions.queries(last)
            captured = _first_output(output)
            real = mask if mask is not None and mask.shape == captured.shape[:2] else torch.ones(captured.shape[:2]) > 0
            subject = Subject(self.family, "last hidden state", type(self._body).__name__, dtype)
            self._verified[positions.padded] = check_output(captured, own, real, subject)

    def _read_on(self, inputs: Mapping[str, Any]) -> None:
        """A model without a vocabulary is read on the first row of what it is given."""
        has_ids = "input_ids" in inputs and hasattr(self._body, "config")
        if (self._anatomy is None or self._replaced()) and not has_ids:
            first = {name: value[:1] if isinstance(value, Tensor) else value for name, value in inputs.items()}
            self._anatomy, self._read_from = examine(self._body, first), self._parameters()

    def _own_output(self, inputs: Mapping[str, Any], padded: bool) -> Tensor | None:
        """The model's output with its own attention, once per kind of input."""
        if padded in self._verified:
            return None
        with evaluating(self._body):
            return _first_output(self._body(**run_arguments(self._body, inputs)))

    def _analyze_batch(
        self, inputs: Mapping[str, Any], batch: Sequence[Encoded] | None, settings: Settings
    ) -> list[Analysis]:
        rows = next(value.shape[0] for value in inputs.values() if isinstance(value, Tensor))
        collectors = [RowCollector() for _ in range(rows)]
        shapes: dict[str, list[tuple[Tensor, Tensor]]] = {}

        def handle(site: Site, block: Block, result: SiteResult) -> None:
            shapes[site.kind] = list(zip(result.query_mask, result.key_mask, strict=True))
            for row, collector in enumerate(collectors):
                if settings.words is None or batch is None:
                    collector.add_tokens(result, row)
                    continue
                query_words, key_words = (
                    torch.tensor(tokens.words) for tokens in (batch[row].queries(site.kind), batch[row].keys(site.kind))
                )
                collector.add_words(result, row, merge_words(block, row, result, settings, query_words, key_words))

        self.run(inputs, settings, handle)
        encoded = batch if batch is not None else [self._labels(inputs, shapes, row) for row in range(rows)]
        return [
            Analysis(
                collector.datasets({kind: _labels_of(sequence, kind, settings.words) for kind in shapes}),
                self._record(settings, sequence),
            )
            for collector, sequence in zip(collectors, encoded, strict=True)
        ]

    def _labels(
        self, inputs: Mapping[str, Any], shapes: Mapping[str, list[tuple[Tensor, Tensor]]], row: int
    ) -> Encoded:
        """Labels for a prepared row: its tokens where there are ids, positions elsewhere."""

        def side(name: str, mask: Tensor) -> Tokens:
            ids = inputs.get(name)
            if isinstance(ids, Tensor) and ids.ndim == 2 and ids.shape[1] == mask.shape[0]:
                return self._encoder.label(ids[row][mask.to(ids.device)].tolist())
            count = int(mask.sum())
            return Tokens(tuple(range(count)), tuple(map(str, range(count))), tuple(range(count)))

        masks = {kind: pairs[row] for kind, pairs in shapes.items()}
        if "cross" in masks:
            source, target = side("input_ids", masks["cross"][1]), side("decoder_input_ids", masks["cross"][0])
            return Encoded({}, source, target)
        return Encoded({}, side("input_ids", next(iter(masks.values()))[0]))

    def _record(self, settings: Settings, sequence: Encoded) -> dict[str, Any]:
        return {
            "model": self._identity,
            **settings.requested,
            "versions": versions(),
            "output_check": {("padded" if padded else "plain"): error for padded, error in self._verified.items()},
            **sequence.notes,
        }


def _labels_of(sequence: Encoded, kind: Any, words: WordMode | None) -> tuple[Sequence[str], Sequence[str]]:
    sides = sequence.queries(kind), sequence.keys(kind)
    query, key = (tokens.strings if words is None else tokens.word_strings() for tokens in sides)
    return query, key


def _first_output(output: Any) -> Tensor:
    """The model's main output: the first tensor of numbers in what it returns (last hidden state, or logits)."""
    structure = dict(output.items()) if hasattr(output, "items") else output
    return next(tensor for _, tensor in tensors_in(structure) if tensor.is_floating_point())


def _as_list(text: Text | Sequence[Text], pretokenized: bool) -> tuple[bool, list[Text]]:
    single = isinstance(text, str) or (pretokenized and bool(text) and isinstance(text[0], str))
    texts: list[Text] = [text] if single else list(text)  # type: ignore[list-item]
    if not texts:
        raise InputError("an analysis needs at least one text: the list is empty")
    return single, texts


def _matching(given: Any, count: int, single: bool, what: str) -> list[Any]:
    if given is None:
        return [None] * count
    items = [given] if single else list(given)
    if isinstance(given, str) and not single:
        raise InputError(f"a list of texts needs a list of {what}s: got one string for {count} texts")
    if len(items) != count:
        raise InputError(f"each text needs its {what}: {count} texts, {len(items)} {what}s")
    return items
