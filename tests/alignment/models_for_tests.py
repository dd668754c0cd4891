"""Tiny random translation models of several families, each with a tokenizer of its own kind."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from normlens.lens import Lens
from tests.text.tokenizers_for_tests import CORPUS, tokenizer

FAMILIES = ("marian", "t5", "m2m_100", "bart")
SENTENCES = [
    ("the little house stands on the hill", "la petite maison est sur la colline"),
    ("a big house", "une grande maison"),
    ("it is 10 000 francs !", "l' été dernier , nous étions là ."),
    ("the \u200b garden", "un jardin"),
    ("stop", "nous étions"),
]


@cache
def lens(family: str, seed: int = 0) -> Lens:
    """A lens on a random model of that family, the same for the same seed."""
    torch.manual_seed(seed)
    model, words = _BUILD[family]()
    return Lens(model.eval(), words)


def _marian() -> tuple[Any, Any]:
    from transformers import MarianConfig, MarianMTModel

    words = tokenizer("marian")
    config = MarianConfig(
        **_SIZES, vocab_size=len(words.encoder), max_position_embeddings=40, decoder_start_token_id=words.pad_token_id,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id, forced_eos_token_id=None,
    )  # fmt: skip
    return MarianMTModel(config), words


def _bart() -> tuple[Any, Any]:
    from transformers import BartConfig, BartForConditionalGeneration

    words = tokenizer("byte-level")
    config = BartConfig(
        **_SIZES, vocab_size=len(words), max_position_embeddings=200, decoder_start_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id, bos_token_id=None, forced_eos_token_id=None,
    )  # fmt: skip
    return BartForConditionalGeneration(config), words


def _t5() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    words = tokenizer("metaspace")
    config = T5Config(
        d_model=16, d_kv=4, d_ff=24, num_layers=3, num_decoder_layers=3, num_heads=4, vocab_size=len(words),
        decoder_start_token_id=words.pad_token_id, pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
    )  # fmt: skip
    return T5ForConditionalGeneration(config), words


def _m2m() -> tuple[Any, Any]:
    import sentencepiece
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    folder = Path(mkdtemp())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(folder / "spm"),
        vocab_size=64,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    pieces = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces += [p for i in range(processor.get_piece_size()) if (p := processor.id_to_piece(i)) not in pieces]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    words = M2M100Tokenizer(
        vocab_file=str(folder / "vocab.json"), spm_file=str(folder / "spm.model"), src_lang="en", tgt_lang="fr"
    )
    config = M2M100Config(
        **_SIZES, vocab_size=max(words.lang_token_to_id.values()) + 1, max_position_embeddings=64,
        decoder_start_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
    )  # fmt: skip
    return M2M100ForConditionalGeneration(config), words


_SIZES: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "init_std": 0.4,  # with the usual 0.02 attention is flat, and every head gives the same links
}  # fmt: skip
_BUILD = {"marian": _marian, "t5": _t5, "m2m_100": _m2m, "bart": _bart}
