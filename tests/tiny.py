"""Tiny random models of the nine families, each with the oddities of its family, and padded batches for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import transformers as tf
from torch import Tensor, nn

VOCABULARY = 60
WIDTH = 24


def bert(**changes: object) -> nn.Module:
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 40,
    }
    return tf.BertModel(tf.BertConfig(**(settings | changes)))


def roberta() -> nn.Module:
    config = tf.RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=42,
        type_vocab_size=1,
        layer_norm_eps=1e-2,  # large, so that a wrong one shows
    )
    return tf.RobertaModel(config)


def distilbert() -> nn.Module:
    config = tf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=32, max_position_embeddings=40
    )
    return tf.DistilBertModel(config)


def albert(inner: int = 1) -> nn.Module:
    config = tf.AlbertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        embedding_size=16,
        num_hidden_layers=4,
        num_hidden_groups=2,
        inner_group_num=inner,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    return tf.AlbertModel(config)


def gpt2() -> nn.Module:
    config = tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=3, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=0
    )
    return tf.GPT2Model(config)


def llama(bias: bool = False) -> nn.Module:
    config = tf.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,  # six heads of width 8 are twice as wide as the model
        attention_bias=bias,
        max_position_embeddings=40,
    )
    return tf.LlamaModel(config)


def gemma2() -> nn.Module:
    config = tf.Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=3,
        attn_logit_softcapping=2.0,
        max_position_embeddings=40,
    )
    return tf.Gemma2Model(config)


def t5() -> nn.Module:
    config = tf.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=5,  # four heads of width 5 are narrower than the model
        d_ff=32,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        decoder_start_token_id=0,
    )
    return tf.T5Model(config)


def marian() -> nn.Module:
    config = tf.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=3,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=40,
        pad_token_id=VOCABULARY - 1,
        decoder_start_token_id=VOCABULARY - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
        scale_embedding=True,
    )
    return tf.MarianModel(config)


#: The nine families, and two more with and without biases or with layers inside shared groups.
FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "bert": bert,
    "roberta": roberta,
    "distilbert": distilbert,
    "albert": albert,
    "albert_inner": lambda: albert(inner=2),
    "gpt2": gpt2,
    "llama": llama,
    "llama_bias": lambda: llama(bias=True),
    "gemma2": gemma2,
    "t5": t5,
    "marian": marian,
}
TWO_SIDED = ("t5", "marian")
CAUSAL = ("gpt2", "llama", "llama_bias", "gemma2")
KINDS = dict.fromkeys(CAUSAL, ("decoder",)) | dict.fromkeys(TWO_SIDED, ("encoder", "decoder", "cross"))


def make(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """One tiny model with every parameter random: fresh normalizations are all ones and would hide errors."""
    torch.manual_seed(seed)
    return randomized(FAMILIES[family](), seed).to(dtype).eval()


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # Marian's positions are a fixed table
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.4 * noise)  # around what it was: ones for a scale, zeros for a shift or Gemma's scale
            else:
                parameter.copy_(noise * min(1.0, parameter.shape[-1] ** -0.5))
            if name.endswith("Attention.q.weight"):
                parameter.mul_(0.4)  # T5 does not scale its logits: what would be a sharp softmax magnifies rounding
    return model


def batch(
    family: str,
    lengths: tuple[int, ...] = (9, 5, 7),
    targets: tuple[int, ...] | None = None,
    seed: int = 0,
    padded_to: int | None = None,
) -> dict[str, Tensor]:
    """A batch of random ids, padded on the right where the lengths differ."""
    targets = targets if targets is not None else tuple(max(2, length - 2) for length in reversed(lengths))
    generator = torch.Generator().manual_seed(seed)
    inputs = _side("input_ids", "attention_mask", lengths, generator, padded_to)
    if family in TWO_SIDED:
        inputs |= _side("decoder_input_ids", "decoder_attention_mask", targets, generator, padded_to)
    return inputs


def _side(
    ids_name: str, mask_name: str, lengths: tuple[int, ...], generator: torch.Generator, padded_to: int | None
) -> dict[str, Tensor]:
    longest = max(max(lengths), padded_to or 0)
    ids = torch.randint(4, VOCABULARY - 2, (len(lengths), longest), generator=generator)
    mask = torch.arange(longest).expand(len(lengths), -1) < torch.tensor(lengths).unsqueeze(1)
    return {ids_name: ids * mask + 1 * ~mask, mask_name: mask.long()}


def row_of(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row of a batch without its padding, masks left out."""
    out = {}
    for ids_name, mask_name in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if ids_name in inputs:
            out[ids_name] = inputs[ids_name][row : row + 1, inputs[mask_name][row].bool()]
    return out


@contextmanager
def changed(owner: object, name: str, value: object) -> Iterator[None]:
    """An attribute set to another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "a",
    "dog",
    "ran",
    "fast",
    "slow",
    "and",
    "house",
    "tree",
    "red",
    "blue",
    "he",
    "she",
    "it",
    "was",
    "is",
    "not",
    "very",
]
CONTINUATIONS = ["##s", "##ing", "##ly", "##er", "##ed"]


def tokenizer(ends: str = "both", pad: int | None = None) -> tf.PreTrainedTokenizerFast:
    """A word-piece tokenizer over the tiny vocabulary; `ends`: special tokens of a text (`both`, `last`, `none`)."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = [*special, *WORDS, *CONTINUATIONS, ",", "."]
    vocabulary = {token: number for number, token in enumerate(entries)}
    if pad is not None:
        vocabulary["<pad>"] = pad
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    if ends == "both":
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
        )
    elif ends == "last":
        backend.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=around)
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        pad_token="[PAD]" if pad is None else "<pad>",
        model_max_length=40,
    )


def tokenizer_for(family: str) -> tf.PreTrainedTokenizerFast:
    """The tokenizer that fits a family: special tokens around, at the end, or nowhere."""
    if family in TWO_SIDED:
        return tokenizer("last", pad=VOCABULARY - 1 if family == "marian" else None)
    return tokenizer("none" if family in CAUSAL else "both")
