"""A tiny BERT on a tiny corpus, and each experiment run on it once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from normlens.experiments import kobayashi2020_bert, kobayashi2021
from normlens.experiments.outcome import Outcome
from normlens.experiments.setup import Setup
from normlens.lens import Lens
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
def setup_2020(tiny_lens: Lens, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tiny_lens, tmp_path_factory.mktemp("bert2020"), (tiny_text,), max_length=24)


@pytest.fixture(scope="session")
def setup_2021(tiny_lens: Lens, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tiny_lens, tmp_path_factory.mktemp("mixing2021"), (tiny_text,), max_length=24)


@pytest.fixture(scope="session")
def outcome_2020(setup_2020: Setup) -> Outcome:
    return kobayashi2020_bert.run(setup_2020)


@pytest.fixture(scope="session")
def outcome_2021(setup_2021: Setup) -> Outcome:
    return kobayashi2021.run(setup_2021)


@pytest.fixture(scope="session")
def written_2020(outcome_2020: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return outcome_2020.write(tmp_path_factory.mktemp("written2020")).parent


@pytest.fixture(scope="session")
def written_2021(outcome_2021: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return outcome_2021.write(tmp_path_factory.mktemp("written2021")).parent
