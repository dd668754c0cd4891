"""Models from folders and from the hub: what loads, and the one sentence for what must not."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import normlens
from normlens import Lens
from normlens.anatomy.loading import check_model, load_pretrained
from normlens.errors import ModelError
from tests import tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads: a tiny BERT and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "whole"
    tiny.make("bert").save_pretrained(folder)
    tiny.tokenizer_for("bert").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop_weights(folder: Path, *prefixes: str) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(prefixes)}
    save_file(kept, path, metadata={"format": "pt"})


def replace(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def halve(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def configured(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


WHOLE = "did not load"
TOKENIZER = "the tokenizer of .* cannot be read"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights cut": (halve("model.safetensors"), WHOLE),
    "weights empty": (replace("model.safetensors", b""), WHOLE),
    "weights are text": (replace("model.safetensors", b"hello"), WHOLE),
    "weights claim an endless header": (replace("model.safetensors", b"\xff" * 64), WHOLE),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), WHOLE),
    "configuration cut": (halve("config.json"), WHOLE),
    "configuration is a list": (replace("config.json", b"[]"), WHOLE),
    "configuration is null": (replace("config.json", b"null"), WHOLE),
    "configuration is a number": (replace("config.json", b"5"), WHOLE),
    "configuration is nested without end": (replace("config.json", b"[" * 100_000), WHOLE),
    "configuration is no UTF-8": (replace("config.json", b"\xff\xfe{}"), WHOLE),
    "a number of 5,000 digits": (replace("config.json", b'{"model_type": "bert", "x": ' + b"9" * 5000 + b"}"), WHOLE),
    "a width that the weights do not have": (configured(hidden_size=48), WHOLE),
    "a huge vocabulary": (configured(vocab_size=10**12), WHOLE),
    "a width of text": (configured(hidden_size="wide"), WHOLE),
    "no heads": (configured(num_attention_heads=0), WHOLE),
    "fewer heads than none": (configured(num_attention_heads=-1), "num_attention_heads = -1, .*at least 0 heads"),
    "layers without end": (configured(num_hidden_layers=10**12), "num_hidden_layers = 1000.*at most 10000 layers"),
    "more layers than weights": (configured(num_hidden_layers=5), "has no weights for .* would be random"),
    "a layer's weights are missing": (
        lambda folder: drop_weights(folder, "encoder.layer.1.attention"),
        r"has no weights for encoder\.layer\.1\.attention\.output\.LayerNorm\.bias and \d+ others, which would be random",
    ),
    "a class that is no model": (configured(architectures=["pipeline", 7], model_type="no such"), WHOLE),
    "tokenizer cut": (halve("tokenizer.json"), TOKENIZER),
    "tokenizer empty": (replace("tokenizer.json", b""), TOKENIZER),
    "tokenizer is a list": (replace("tokenizer.json", b"[]"), TOKENIZER),
    "tokenizer's configuration cut": (halve("tokenizer_config.json"), TOKENIZER),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_sentence(what: str, folder: Path) -> None:
    damage, sentence = DAMAGES[what]
    damage(folder)
    with pytest.raises(ModelError, match=sentence) as refused:
        normlens.load(folder)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 900


def test_the_undamaged_folder_loads_as_it_was_saved(whole: Path) -> None:
    lens = normlens.load(whole)
    assert type(lens.model) is transformers.BertModel and lens.tokenizer is not None
    torch.manual_seed(0)
    expected = tiny.make("bert").state_dict()
    assert lens.model.state_dict().keys() == expected.keys()


def test_a_pooler_that_nothing_reads_may_be_missing(folder: Path) -> None:
    drop_weights(folder, "pooler.")
    assert normlens.load(folder).analyze("the cat")["attn_w"].sizes["layer"] == 3


def test_a_pooler_that_a_head_reads_may_not(tmp_path: Path) -> None:
    config = tiny.make("bert").config
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    assert isinstance(load_pretrained(str(tmp_path), None)[0], transformers.BertForSequenceClassification)
    drop_weights(tmp_path, "bert.pooler.")
    with pytest.raises(ModelError, match=r"has no weights for bert\.pooler\.dense\.bias and 1 others"):
        normlens.load(tmp_path)


def test_a_size_that_differs_is_not_filled_with_random_numbers(folder: Path) -> None:
    change_config(folder, vocab_size=70)
    with pytest.raises(ModelError, match=r"has no weights for embeddings\.word_embeddings\.weight"):
        normlens.load(folder, ignore_mismatched_sizes=True)


def test_a_folder_without_a_tokenizer_has_none(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert normlens.load(folder).tokenizer is None


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "sub/../../x", r"..\x", "C:/x", 7, None])
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_index_must_not_leave_its_folder(folder: Path, index: str, name: Any) -> None:
    (folder / index).write_text(json.dumps({"weight_map": {"embeddings.weight": name}}))
    with pytest.raises(ModelError, match=r"(a file outside of its own folder|does not map each weight)"):
        normlens.load(folder)


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', "{}"])
def test_a_damaged_index_is_refused(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match="does not map each weight to a file"):
        normlens.load(folder)


def test_a_model_in_several_files_loads(tmp_path: Path) -> None:
    tiny.make("bert").save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert isinstance(load_pretrained(str(tmp_path), None)[0], transformers.BertModel)


def test_code_that_comes_with_a_model_is_never_run(folder: Path) -> None:
    with pytest.raises(ModelError, match="never runs code that comes with a model"):
        normlens.load(folder, trust_remote_code=True)


def test_gguf_files_are_found_or_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=WHOLE):  # it was found, and read
        normlens.load(tmp_path)
    (tmp_path / "b.gguf").write_bytes(b"nothing")
    with pytest.raises(
        ModelError, match=r"holds several GGUF files \(a\.gguf, b\.gguf\); choose one with gguf_file=… \(--gguf-file"
    ):
        normlens.load(tmp_path)
    with pytest.raises(ModelError, match=r"has no 'c\.gguf'; check the name"):
        normlens.load(tmp_path, gguf_file="c.gguf")


def test_a_hub_that_cannot_be_reached_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    begun = time.process_time()
    with pytest.raises(
        ModelError, match=r"no folder 'some/model', and the hub cannot be reached \(Name or service not"
    ):
        normlens.load("some/model")
    assert time.process_time() - begun < 5


def test_a_name_that_is_neither_a_folder_nor_on_the_hub() -> None:
    with pytest.raises(ModelError, match="'a/b/c' is neither a folder nor a hub name"):
        normlens.load("a/b/c")
    with pytest.raises(ModelError, match="the model's name is empty"):
        normlens.load("")
    with pytest.raises(ModelError, match="is not a folder; check the path"):
        normlens.load("/" + "x" * 5000)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("bert-base-uncased", r"got str; to load a model, write normlens\.load\('bert-base-uncased'\)"),
        (None, r"got NoneType; to load a model, write normlens\.load\(name or folder\)"),
    ],
)
def test_a_lens_needs_a_model(given: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        Lens(given)


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config.json; is it the right folder"):
        normlens.load(tmp_path)
    with pytest.raises(ModelError, match=r"is not a folder; check the path"):
        normlens.load(tmp_path / "missing")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=WHOLE):
        normlens.load(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_remote_code_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "strange", "auto_map": {"AutoConfig": "strange.Config", "AutoModel": "strange.Model"}}'
    )
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match=r"needs code of its own, which normlens never runs"):
        normlens.load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_no_numbers() -> None:
    model = tiny.make("bert")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(
        ModelError, match=r"encoder\.layer\.1\.output\.dense\.weight holds NaN; the checkpoint is damaged"
    ):
        Lens(model)


def test_weights_packed_low_bit() -> None:
    model = tiny.make("bert")
    model.pooler.dense.weight = nn.Parameter(torch.zeros(3, 3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(
        ModelError,
        match=r"pooler.dense.weight holds torch.int8, packed low-bit, which is not supported; load the model in full",
    ):
        Lens(model)
    model = tiny.make("bert")
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(ModelError, match=r"packed low-bit \(bitsandbytes\)"):
        Lens(model)


def test_weights_that_cancel_to_nan_are_not_mistaken_for_damage() -> None:
    model = tiny.make("bert")
    with torch.no_grad():
        model.pooler.dense.weight[0, :2] = torch.tensor([float("inf"), float("-inf")])
    check_model(model)  # no number here is NaN, although their sum is


def same_numbers(left: normlens.Lens, right: normlens.Lens) -> None:
    one, other = (lens.analyze("the man went", measures=["attnresln_n"])["attnresln_n"] for lens in (left, right))
    assert one.equals(other) and list(one["key_token"].values) == list(other["key_token"].values)


def test_a_pipeline_is_taken_as_it_is() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    model, tokenizer = transformers.BertForMaskedLM(config).eval(), tiny.tokenizer_for("bert")
    pipe = transformers.pipeline("feature-extraction", model=model, tokenizer=tokenizer)
    same_numbers(normlens.Lens(pipe), normlens.Lens(model, tokenizer))
    assert normlens.Lens(pipe).model is model


def test_sentence_transformers_are_taken_by_the_transformer_in_them(whole: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(whole), device="cpu")
    lens = normlens.Lens(model)
    same_numbers(lens, normlens.Lens(lens.model, model.tokenizer))
    assert isinstance(lens.model, transformers.PreTrainedModel) and lens.model in list(model.modules())
    # It is the model that makes the embeddings: the mean of its last states is what encode gives, before normalization.
    inputs = model.tokenizer(["the man went"], return_tensors="pt")
    with torch.no_grad():
        states = lens.model(**inputs).last_hidden_state[0].mean(0)
    given = torch.as_tensor(model.encode(["the man went"])[0])
    torch.testing.assert_close(states / states.norm(), given / given.norm(), atol=1e-5, rtol=1e-4)
    with pytest.raises(ModelError, match="holds no Transformer of transformers"):
        normlens.Lens(library.SentenceTransformer(modules=[torch.nn.Identity()], device="cpu"))
