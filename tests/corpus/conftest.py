"""A tiny BERT with a word-piece tokenizer of its own, and a small corpus, both made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch
import transformers

from normlens.corpus.result import CorpusResult
from normlens.lens import Lens

TABLES = ("statistics", "histograms", "correlations", "relative", "categories", "pair_sample", "token_sample")
RANKS = np.arange(20, dtype=float) % 7
WORDS = ["the", "a", "river", "stone", "bridge", "was", "built", "by", "old", "town", "and", "of", "water", ",", "."]


def tiny_tokenizer(max_length: int = 64, upside_down: bool = False) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer with BERT's special tokens and a handful of words, in one order or the other."""
    words = WORDS[::-1] if upside_down else WORDS
    vocabulary = {token: n for n, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_max_length=max_length, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def tiny_bert(seed: int = 0) -> transformers.BertModel:
    """Two layers, two heads, random weights large enough that attention is not flat."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def tiny_roberta(positions: int) -> transformers.RobertaModel:
    """A RoBERTa, whose positions are counted from after the padding id: it takes two tokens fewer than `positions`."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=5 + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=positions, pad_token_id=1, type_vocab_size=2, initializer_range=0.5,
    )  # fmt: skip
    return transformers.RobertaModel(config).eval()


def paragraphs(count: int, seed: int = 0) -> list[str]:
    """Texts of three to twelve words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 12))) for _ in range(count)]


def same(first: CorpusResult, second: CorpusResult) -> None:
    """Whether two runs say the same, to the last digits of float64."""
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name), rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and lose a lot where other tests run beside these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def lens() -> Lens:
    return Lens(tiny_bert(), tiny_tokenizer(), name="tiny")


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(paragraphs(40)) + "\n")
    return path


@pytest.fixture(scope="session")
def reference(lens: Lens, tmp_path_factory: pytest.TempPathFactory) -> CorpusResult:
    """One run over twenty pairs of paragraphs, beside its source `corpus.txt`."""
    folder = tmp_path_factory.mktemp("reference")
    source = folder / "corpus.txt"
    source.write_text("\n".join(paragraphs(40)))
    return lens.corpus(source, folder / "out", pairs=True, covariates={"rank": RANKS}, per_token=True)
