"""Tiny tokenizers of every kind, trained on made-up sentences."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

CORPUS = [
    "the little house stands on the hill",
    "a big house and a little garden",
    "la petite maison est sur la colline",
    "une grande maison et un petit jardin",
    "don't stop , he said : it is 10 000 francs !",
    "l' été dernier , nous étions là .",
] * 4
KINDS = ("byte-level", "wordpiece", "metaspace", "bpe-end-of-word", "marian")


@cache
def tokenizer(kind: str) -> Any:
    """A tokenizer of that kind; only `marian` is a slow one."""
    if kind == "marian":
        return _marian()
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<unk>", "</s>"]
    if kind == "byte-level":
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=330, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif kind == "wordpiece":
        inner = Tokenizer(models.WordPiece(unk_token="<unk>"))
        inner.normalizer = normalizers.BertNormalizer()
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special)
    elif kind == "metaspace":
        inner = Tokenizer(models.Unigram())
        inner.normalizer = normalizers.NFKC()
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>")
    else:
        inner = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=special, end_of_word_suffix="</w>")
    inner.train_from_iterator(CORPUS, trainer)
    end = inner.token_to_id("</s>")
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def _marian() -> Any:
    import sentencepiece
    from transformers import MarianTokenizer

    folder = Path(mkdtemp())
    vocabulary = {"</s>": 0, "<unk>": 1}
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_prefix=str(folder / side),
            vocab_size=64,
            hard_vocab_limit=False,  # how many pieces this corpus can give differs between versions
            minloglevel=2,
            bos_id=-1,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        for index in range(processor.get_piece_size()):
            vocabulary.setdefault(processor.id_to_piece(index), len(vocabulary))
    vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return MarianTokenizer(str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"))
