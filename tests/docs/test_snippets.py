"""Every snippet of README and docs runs as it is written.

Hub names are folders of the working directory here: tiny models, and the embedded one in place of BERT. A snippet that
cannot run stands behind a line `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from scipy.io import wavfile

import normlens
from normlens.anatomy.loading import default_model
from normlens.cli.main import main
from tests.modalities import models as seeing

ROOT = Path(__file__).parents[2]
#: Of the tiny translation model: with this one, every mark of the snippets finds words.
SEED = 30
#: Generated pages, and pages whose snippets are outputs.
OTHERS = {"docs/commands.md", "docs/gallery/README.md"}
#: Reasons that a snippet may have not to run.
REASONS = {
    "installs packages", "needs a GPU", "needs a notebook", "needs a cluster", "needs inseq", "needs a GGUF file",
    "needs the change above, which a test applies", "needs a folder of documents",
    "an excerpt of transformers", "an excerpt of the source", "a benchmark", "needs the data of the paper",
    "checks every family, for minutes", "four studies, for minutes; tests/experiments runs each",
}  # fmt: skip
_FENCE = re.compile(r"(?:<!-- not run: (?P<reason>[^>]*) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.S | re.M)


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    language: str
    code: str
    reason: str | None


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        found.append(Snippet(name, line, match["language"], match["code"], match["reason"]))
    return found


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [s for page in PAGES if page.relative_to(ROOT).as_posix() not in OTHERS for s in snippets(page)]


def commands(snippet: Snippet) -> list[str]:
    """The command lines of a snippet: all lines, or those after a prompt where there are such."""
    lines = snippet.code.replace("\\\n", " ").splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in prompted or lines if line.startswith(("normlens ", "printf "))]


def test_what_is_not_run_says_why() -> None:
    assert {s.reason for s in SNIPPETS if s.reason is not None} == REASONS
    runs = [s for s in SNIPPETS if s.reason is None and (s.language == "python" or commands(s))]
    assert len(runs) > 25


@cache
def classifier_and_writer() -> tuple[Any, Any, Any]:
    folder = default_model()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    torch.manual_seed(0)
    classifier = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, vocab_size=len(tokenizer)))
    writer = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=len(tokenizer)))
    for model in (classifier, writer):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return classifier.eval(), writer.eval(), tokenizer


def _save(model: Any, tokenizer: Any, *folders: Path) -> None:
    for folder in folders:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _save_media(here: Path) -> None:
    """Tiny models that see and hear, a picture and a recording."""
    image_processor = transformers.ViTImageProcessorPil(size={"height": 12, "width": 12})
    float32: dict[str, Any] = {"dtype": torch.float32}
    _save(seeing.dinov2(**float32), image_processor, here / "facebook" / "dinov2-small")
    _save(seeing.vit(**float32), image_processor, here / "google" / "vit-base-patch16-224")
    extractor = transformers.WhisperFeatureExtractor(feature_size=6, chunk_length=1)
    whisper = here / "openai" / "whisper-tiny.en"
    _save(seeing.whisper(50, **float32), extractor, whisper)
    noise = np.random.default_rng(0)
    Image.fromarray(noise.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(here / "cat.png")
    wavfile.write(here / "speech.wav", 16_000, noise.standard_normal(2_000).astype(np.float32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with everything that snippets name."""
    from tests.alignment.models_for_tests import SENTENCES, lens

    here = tmp_path_factory.mktemp("snippets")
    embedded = here / "bert-base-uncased"
    shutil.copytree(default_model(), embedded)
    for name in ("MODEL_A", "MODEL_B", "runs/checkpoint-1200"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).symlink_to(embedded)
    classifier, writer, tokenizer = classifier_and_writer()
    _save(classifier, tokenizer, here / "textattack" / "bert-base-uncased-SST-2")
    _save(writer, tokenizer, here / "gpt2", here / "MODEL")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    _save(writer, tokenizer, here / "HuggingFaceTB" / "SmolLM2-135M-Instruct")
    tokenizer.chat_template = None
    _save_media(here)
    translation = lens("bart", SEED)
    names = ("Helsinki-NLP/opus-mt-en-fr", "Helsinki-NLP/opus-mt-fr-en")
    _save(translation.model, translation.tokenizer, *(here / name for name in names))
    english, french = ("\n".join(side) + "\n" for side in zip(*SENTENCES[:2], strict=True))
    alignment = "1-1 2-2\n1-1 2-2\n"
    files = {
        "wiki.txt": "A little house stands on a hill.\nThe garden is big, and it is old.\nA third paragraph follows.\n" * 3,
        "text.en": english, "text.fr": french, "test.en": english, "test.fr": french,
        "page.en": english.replace("house", "<b>house</b>"), "page.fr": french,
        "gold.talp": alignment, "alignment.talp": alignment, "fastalign.talp": alignment,
        "entities.conll": "the O\nhouse B-LOC\n\na O\nhouse B-LOC\n",
        "pairs.tsv": "fr\ten\nla petite maison\tthe little house\nun jardin\tthe garden\n",
        "prompts.txt": "a fine film\na bad film about it\nthe garden was very old\n",
        "dev.tsv": "a fine film\t1\na bad film about it\t0\n",
    }  # fmt: skip
    evidence = "one_prefix_prefix,one_prefix_word_good,one_prefix_word_bad,target\nthe old man saw,him,her,man\n" * 1
    evidence += "the women in the house,are,is,women\nthat old queen hurt,herself,himself,queen\n"
    files["blimp.csv"] = files["anaphor_gender_agreement.csv"] = evidence
    for name, content in files.items():
        (here / name).write_text(content, encoding="utf-8")
    return here


@pytest.fixture
def workplace(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name in ("text.en", "text.fr"):  # these are written by a snippet
        (tmp_path / name).unlink()
        shutil.copy(folder / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("webbrowser.open", lambda *args, **kwargs: True)
    matplotlib.use("agg")
    return tmp_path


def _names(page: str) -> dict[str, Any]:
    """What a page takes for granted: objects that its reader holds."""
    _, writer, tokenizer = classifier_and_writer()
    held: dict[str, Any] = {"__name__": "snippet", "text": "a text of some words"}
    lens = normlens.load("bert-base-uncased")
    held |= {"model": lens.model, "tokenizer": lens.tokenizer}
    if page == "docs/howto/other_tools.md":
        held["analysis"] = lens.analyze("The man went to the store.")
        held["explanation"] = normlens.Lens(writer, tokenizer).explain("a text of some words", output="him")
        held["result"] = lens.corpus("wiki.txt", "counted", limit=2)
    if page == "docs/howto/own_model.md":
        from sentence_transformers import SentenceTransformer

        held["pipeline"] = transformers.pipeline("feature-extraction", model=lens.model, tokenizer=lens.tokenizer)
        held["sentence_transformer"] = SentenceTransformer("bert-base-uncased", device="cpu")
        held["ids"] = torch.tensor([[101, 2023, 2003, 102]])
        held["mask"] = torch.ones_like(held["ids"])
    return held


PYTHON = sorted({s.page for s in SNIPPETS if s.language == "python" and s.reason is None})


@pytest.mark.parametrize("page", PYTHON)
def test_python(page: str, workplace: Path) -> None:
    names = _names(page)
    for snippet in SNIPPETS:
        if snippet.page == page and snippet.language == "python" and snippet.reason is None:
            code = "\n" * snippet.line + snippet.code
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, str(ROOT / page), "exec"), names)


#: Commands that take half a minute, run by `make test-real`; tests of their own run smaller ones.
LONG = re.compile(r"normlens (compare|reproduce kobayashi2021|families\s*(#|$))")
SHELL = sorted({s.page for s in SNIPPETS if s.language != "python" and s.reason is None and commands(s)})


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.real)])
@pytest.mark.parametrize("page", SHELL)
def test_shell(page: str, long: bool, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    normlens.load("bert-base-uncased").analyze("The man went to the store.").save("run.zarr")
    for snippet in SNIPPETS:
        if snippet.page != page or snippet.language == "python" or snippet.reason is not None:
            continue
        for line in commands(snippet):
            if bool(LONG.match(line)) != long:
                continue
            if line.startswith("printf "):
                subprocess.run(["bash", "-c", line], check=True)
                continue
            words = shlex.split(line, comments=True)
            target = words[words.index(">") + 1] if ">" in words else None
            words = words[: words.index(">")] if target else words
            printed = io.StringIO()
            monkeypatch.setattr(sys, "argv", words)
            with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as stopped:
                main()
            assert stopped.value.code in (0, None), f"{page}, line {snippet.line}: {line}"
            if target:
                Path(target).write_text(printed.getvalue(), encoding="utf-8")
