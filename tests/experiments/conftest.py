"""A tiny BERT on a tiny corpus, each experiment run on it once; and sentence pairs with gold links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from normlens.alignment.aligner import Aligner
from normlens.alignment.formats import format_line
from normlens.experiments import kobayashi2020_bert, kobayashi2021
from normlens.experiments.encoder_study import EncoderStudy
from normlens.experiments.outcome import Outcome
from normlens.lens import Lens
from tests.alignment.models_for_tests import SENTENCES, lens
from tests.corpus.conftest import paragraphs, tiny_bert, tiny_tokenizer


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_lens() -> Lens:
    """Biases and normalization weights are random too: at their initial 0 and 1 they would hide mistakes."""
    model = tiny_bert()
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "LayerNorm" in name:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return Lens(model, tiny_tokenizer(), name="tiny")


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "paragraphs.txt"
    path.write_text("\n".join(["= A heading =", *paragraphs(40, seed=3)]) + "\n")
    return path


@pytest.fixture(scope="session")
def study_2020(tiny_lens: Lens, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> EncoderStudy:
    return EncoderStudy(tiny_lens, tmp_path_factory.mktemp("bert2020"), (tiny_text,), max_length=24)


@pytest.fixture(scope="session")
def study_2021(tiny_lens: Lens, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> EncoderStudy:
    return EncoderStudy(tiny_lens, tmp_path_factory.mktemp("mixing2021"), (tiny_text,), max_length=24)


@pytest.fixture(scope="session")
def outcome_2020(study_2020: EncoderStudy) -> Outcome:
    return kobayashi2020_bert.run(study_2020)


@pytest.fixture(scope="session")
def outcome_2021(study_2021: EncoderStudy) -> Outcome:
    return kobayashi2021.run(study_2021)


@pytest.fixture(scope="session")
def written_2020(outcome_2020: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return outcome_2020.write(tmp_path_factory.mktemp("written2020")).parent


@pytest.fixture(scope="session")
def written_2021(outcome_2021: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return outcome_2021.write(tmp_path_factory.mktemp("written2021")).parent


@pytest.fixture
def pair_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Five sentence pairs and gold links for them, as `TranslationStudy` takes them."""
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in SENTENCES), encoding="utf-8")
    # One head's own links, so that heads and layers differ in how far they are from them.
    truth = Aligner(lens("marian"), measure="af_norm", head=2, layer=1, combine="mean", extract="argmax").align(
        SENTENCES
    )
    (tmp_path / "gold").write_text("".join(format_line(r.links, one_based=True) + " 1p1\n" for r in truth))
    return {name: tmp_path / name for name in ("source", "target", "gold")}
