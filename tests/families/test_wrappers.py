"""Task heads, wrappers, plain PyTorch, dtypes, images and sounds: whatever holds attention is read and proved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from normlens import Lens
from normlens.families.table import IMAGES, SOUNDS
from normlens.families.tiny import randomize, tiny_config, tiny_inputs, tiny_model
from normlens.measures.proof import TOLERANCE
from tests.families.beyond_text import example

HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "NextSentencePrediction")


def proved(model: nn.Module, inputs: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> tuple[str, ...]:
    """Analyse a batch; the kinds of site, each proved below the dtype's tolerance."""
    analyses = Lens(model).analyze_inputs(inputs, precision="float64" if dtype == torch.float64 else "float32")
    for analysis in analyses:
        for site in analysis.sites.values():
            assert float(site["proof"].max()) < TOLERANCE[dtype]
    return tuple(analyses[0].sites)


@pytest.mark.parametrize("head", HEADS)
def test_task_heads(head: str) -> None:
    model = getattr(transformers, f"AutoModelFor{head}").from_config(tiny_config("bert")).eval()
    randomize(model)
    assert proved(model, tiny_inputs(model, padded=True)) == ("encoder",)


def test_encoder_of_an_encoder_decoder() -> None:
    model = transformers.T5EncoderModel(tiny_config("t5")).eval()
    randomize(model)
    inputs = {name: value for name, value in tiny_inputs(model, padded=True).items() if "decoder" not in name}
    assert proved(model, inputs) == ("encoder",)


@pytest.mark.parametrize("family", ["bert", "llama", "bloom", "t5", "xlnet", "deberta", "gpt_neox"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(family: str, dtype: torch.dtype) -> None:
    model = tiny_model(family, dtype=dtype)
    assert proved(model, tiny_inputs(model, padded=True), dtype)


@pytest.mark.parametrize("family", ["gemma2", "qwen3_next"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_a_norm_or_a_gate_on_the_way(family: str, dtype: torch.dtype) -> None:
    model = tiny_model(family, dtype=dtype)
    assert proved(model, tiny_inputs(model, padded=True), dtype)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("bert", ["query", "value", "dense"]),
        ("llama", ["q_proj", "v_proj", "o_proj"]),
        ("gpt2", ["c_attn", "c_proj"]),
    ],
)
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_lora(family: str, targets: list[str]) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    model = tiny_model(family)
    inputs = tiny_inputs(model, padded=True)
    plain = Lens(model).analyze_inputs(inputs)[0]
    config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)  # adapters that do something
    wrapped = peft.get_peft_model(model, config).eval()
    adapted = Lens(wrapped).analyze_inputs(inputs)[0]
    merged = Lens(wrapped.merge_and_unload()).analyze_inputs(inputs)[0]
    kind = next(iter(plain.sites))
    theirs, ours = (torch.tensor(a.site(kind)["attn_n"].values) for a in (merged, adapted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours, torch.tensor(plain.site(kind)["attn_n"].values), rtol=1e-2)


def test_first_module_of_a_sentence_transformer() -> None:
    class FirstModule(nn.Module):
        """What sentence-transformers puts in front of its pooling: a module that holds the model."""

        def __init__(self) -> None:
            super().__init__()
            self.auto_model = tiny_model("bert").base_model

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            output: Tensor = self.auto_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return output

    assert proved(FirstModule().eval(), tiny_inputs(tiny_model("bert"), padded=True)) == ("encoder",)


class PlainEncoder(nn.Module):
    """A user's own model around `nn.TransformerEncoder`."""

    def __init__(self, *, norm_first: bool, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Embedding(50, 24)
        layer = nn.TransformerEncoderLayer(24, 4, 48, norm_first=norm_first, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        x = x if self.batch_first else x.transpose(0, 1)
        y: Tensor = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        return y if self.batch_first else y.transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_plain_encoder(norm_first: bool, batch_first: bool) -> None:
    model = PlainEncoder(norm_first=norm_first, batch_first=batch_first).eval()
    randomize(model)
    ids = torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7) < torch.tensor([[7], [4], [5]])
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    assert proved(model, inputs) == ("encoder",)
    lens = Lens(model)
    lens.analyze_inputs(inputs)
    assert {site.placement for site in lens.anatomy.sites} == {"pre" if norm_first else "post"}


class PlainTranslator(nn.Module):
    """A user's own model around `nn.Transformer`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.transformer = nn.Transformer(24, 4, 2, 2, 48, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        out: Tensor = self.transformer(
            self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True
        )
        return out


def test_plain_translator() -> None:
    model = PlainTranslator().eval()
    randomize(model)
    drawn = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(0))
    assert proved(model, {"source": drawn[:, :7], "target": drawn[:, 7:]}) == ("encoder", "decoder", "cross")


class PlainAttention(nn.Module):
    """`nn.MultiheadAttention` on its own, with a residual and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(5, 24)
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Tensor:
        h = self.map(x)
        y, _ = self.attention(h, h, h)
        out: Tensor = self.norm(h + y)
        return out


def test_plain_attention() -> None:
    model = PlainAttention().eval()
    randomize(model)
    assert proved(model, {"x": torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))}) == ("encoder",)


@pytest.mark.parametrize("family", [*IMAGES, *SOUNDS])
def test_images_and_sounds(family: str) -> None:
    expected = ("encoder", "decoder", "cross") if family == "whisper" else ("encoder",)
    assert proved(*example(family)) == expected
