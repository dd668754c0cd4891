"""Every file format that normlens reads, and a command that reads it."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from functools import cache
from pathlib import Path
from typing import Any

import normlens.lens as lens_module
from normlens.lens import Lens

from ..alignment.models_for_tests import SENTENCES
from ..alignment.models_for_tests import lens as translation_lens
from ..corpus.conftest import WORDS, paragraphs, tiny_bert, tiny_tokenizer
from .campaign import Target

TEXTS = paragraphs(6, seed=3)
_TABLES = ("statistics", "histograms", "correlations", "relative", "categories", "pair_sample", "token_sample")
_OUTPUTS = tuple(f"out/{name}.parquet" for name in _TABLES)


@cache
def tiny() -> Lens:
    return Lens(tiny_bert(), tiny_tokenizer(), name="tiny")


def use_tiny(_: Path) -> None:
    """In the child: whatever model is asked for is the tiny one, which is in memory already."""
    lens_module.load = lambda *names, **options: tiny()  # type: ignore[assignment]


def warm_up() -> None:
    """Import everything and make the models once; every case is a fork of this process."""
    import datasets  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich.progress
    import rich.table  # noqa: F401
    import zarr  # noqa: F401

    import normlens.alignment.aligner
    import normlens.corpus.run
    import normlens.experiments.comparison
    import normlens.experiments.kobayashi2020_bert
    import normlens.experiments.kobayashi2020_nmt
    import normlens.experiments.kobayashi2024
    import normlens.faithfulness.report
    import normlens.families.table
    import normlens.viewer.page  # noqa: F401

    for lens in (tiny(), tiny_masked(), tiny_causal()):
        _ = lens.anatomy
    translation_lens("marian", seed=0)


def use_translation(folder: Path) -> None:
    import os

    os.environ["NORMLENS_CACHE"] = str(folder / "cache")
    lens_module.load = lambda *names, **options: translation_lens("marian", seed=0)  # type: ignore[assignment]


# ---- corpora ----------------------------------------------------------------------------------------------------------


def _records(name: str) -> bytes:
    rows = [{"text": text, "n": number, "tags": text.split()} for number, text in enumerate(TEXTS)]
    lines = "\n".join(TEXTS).encode() + b"\n"
    match name:
        case "corpus.txt":
            return lines
        case "corpus.txt.gz":
            return gzip.compress(lines, mtime=0)
        case "corpus.txt.xz":
            return lzma.compress(lines)
        case "corpus.txt.zst":
            import pyarrow as pa

            return bytes(pa.Codec("zstd").compress(lines))
        case "corpus.jsonl":
            return "".join(json.dumps(row) + "\n" for row in rows).encode()
        case "corpus.csv" | "corpus.tsv":
            comma = "," if name.endswith("csv") else "\t"
            quote = '"' if name.endswith("csv") else ""
            return "\n".join(
                ["n" + comma + "text", *(f"{r['n']}{comma}{quote}{r['text']}{quote}" for r in rows)]
            ).encode()
        case "corpus.parquet":
            import pandas as pd

            stream = io.BytesIO()
            pd.DataFrame(rows).to_parquet(stream)
            return stream.getvalue()
    raise ValueError(name)


def _corpus(name: str, *options: str, misused: bool = False) -> Target:
    return Target(
        f"corpus-{name}{''.join(options)}".replace("/", "-"),
        lambda folder: (folder / name).write_bytes(_records(name)) and None,
        lambda folder: ["corpus", name, "--out", "out", *options],
        damage=(name,),
        own=("out",),
        prepare=use_tiny,
        misused=misused,
    )


def _make_dataset(folder: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(folder / "dataset"))


def _make_ranks(folder: Path) -> None:
    (folder / "corpus.txt").write_bytes(_records("corpus.txt"))
    (folder / "ranks.txt").write_text("".join(f"{n + 1} {100 - n} {n}\n" for n in range(20)))


def _make_finished(folder: Path) -> None:
    (folder / "corpus.txt").write_bytes(_records("corpus.txt"))
    _in_folder(folder, lambda: tiny().corpus("corpus.txt", "out", per_token=True))


def small_chunks() -> None:
    """For this process and its children: a damaged shard must cost something."""
    from normlens.corpus import batches

    batches.CHUNK_SIZE = 2


def use_tiny_in_small_chunks(folder: Path) -> None:
    small_chunks()
    use_tiny(folder)


class _StoppedError(Exception):
    pass


def _make_unfinished(folder: Path) -> None:
    """A run of three chunks that was stopped after the second."""
    small_chunks()
    (folder / "corpus.txt").write_bytes(_records("corpus.txt"))

    def stop(step: Any) -> None:
        if step.sequences >= 4:
            raise _StoppedError

    def run() -> None:
        tiny().corpus("corpus.txt", "out", range_seconds=0.0, progress=stop)

    try:
        _in_folder(folder, run)
    except _StoppedError:
        assert list((folder / "out" / "unfinished").glob("*.shard"))


def _in_folder(folder: Path, run: Any) -> None:
    import os

    before = Path.cwd()
    os.chdir(folder)
    try:
        run()
    finally:
        os.chdir(before)


# ---- saved runs and models --------------------------------------------------------------------------------------------


def _make_analysis(folder: Path) -> None:
    tiny().analyze("the old bridge").save(folder / "run.zarr")


def _make_model(folder: Path) -> None:
    tiny_bert().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")


def _make_explanation(folder: Path) -> None:
    import torch

    tiny().explain("the old bridge", direction=torch.ones(16)).save(folder / "why.zarr")


@cache
def tiny_masked() -> Lens:
    import torch
    import transformers

    torch.manual_seed(0)
    return Lens(transformers.BertForMaskedLM(tiny_bert().config).eval(), tiny_tokenizer(), name="tiny")


def use_masked(_: Path) -> None:
    lens_module.load = lambda *names, **options: tiny_masked()  # type: ignore[assignment]


def _make_masked_model(folder: Path) -> None:
    tiny_masked().model.save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")


@cache
def tiny_causal() -> Lens:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=5 + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    return Lens(transformers.LlamaForCausalLM(config).eval(), tiny_tokenizer(), name="tiny")


def use_causal(_: Path) -> None:
    lens_module.load = lambda *names, **options: tiny_causal()  # type: ignore[assignment]


def _make_texts(folder: Path) -> None:
    (folder / "texts.txt").write_text("\n".join(TEXTS))


def _make_evidence(folder: Path) -> None:
    rows = ["UID,one_prefix_prefix,one_prefix_word_good,one_prefix_word_bad,target"]
    rows += [f"x,the {word} of,river,stone,{word}" for word in ("bridge", "town", "water", "old")]
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")


def _make_studied(folder: Path) -> None:
    """A study that was finished: it goes on from the numbers that it kept."""
    _make_texts(folder)
    from normlens.faithfulness.samples import read_texts
    from normlens.faithfulness.studies import study

    samples = [read_texts(tiny_masked(), folder / "texts.txt", limit=2, skip=0, seed=0, longest=64)]
    study(tiny_masked(), samples, methods=["gradient_x_input"], protocols=["agreement"], folder=folder / "out")


#: The same five sentences with marks, in every format that carries them.
_MARKED = {
    "html": ["the <b>little <i>house</i></b> stands", "a <b>big</b> house", "it is <i>10</i>", "the garden", "stop"],
    "xml": ['the <g id="1">little house</g> stands', 'a <x id="2"/>big house', "it is 10", "the garden", "stop"],
    "markdown": ["the **little *house*** stands", "a `big` house", "it is [10](x)", "the garden", "stop"],
    "json": [
        '{"text": "the little house stands", "spans": [{"start": 4, "end": 16, "label": "thing", "n": 1}]}',
        '{"text": "a big house", "spans": [{"start": 2, "end": 5, "label": "a"}, {"start": 4, "end": 11, "label": "b"}]}',
        '{"text": "it is 10", "spans": []}', '{"text": "the garden"}', '{"text": "stop", "spans": []}',
    ],
    "conll": [
        "the O\nlittle B-THING\nhouse I-THING\nstands O\n", "a O\nbig B-SIZE\nhouse O\n", "it O\nis O\n10 B-N\n",
        "the O\ngarden B-THING\n", "stop O\n",
    ],
}  # fmt: skip


def _marked(form: str) -> Target:
    def make(folder: Path) -> None:
        _make_pairs(folder)
        (folder / "source").write_text("\n".join(_MARKED[form]) + "\n")

    command = ["project", "--model", "0", "--source", "source", "--target", "target", "--format", form, "--out", "out"]
    return Target(
        f"project-{form}",
        make,
        lambda folder: command,
        damage=("source", "target"),
        own=("out*", "cache"),
        prepare=use_translation,
        misused=form in ("html", "json"),
    )


# ---- alignments -------------------------------------------------------------------------------------------------------


def _make_pairs(folder: Path) -> None:
    for side, name in enumerate(("source", "target")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in SENTENCES), encoding="utf-8")
    (folder / "links").write_text("0-0 1-1\n0-0\n0-1 1-0\n0-0\n0-0\n")


def _make_stopped_alignment(folder: Path) -> None:
    """An alignment that was killed after its second pair of sentences."""
    _make_pairs(folder)
    import os

    child = os.fork()
    if child == 0:
        os.chdir(folder)
        use_translation(folder)
        from normlens.cli import main
        from normlens.cli.commands import align as command

        small_windows()
        line, count = command.LineStyle.line, [0]

        def interrupted(*arguments: Any) -> str:
            count[0] += 1
            if count[0] > 3:
                os._exit(0)
            return line(*arguments)

        command.LineStyle.line = interrupted  # type: ignore[method-assign]
        sys.argv = ["normlens", *_ALIGN]
        with Path(os.devnull).open("w") as nowhere:
            sys.stderr = nowhere
            main.main()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert json.loads((folder / "out.run.json").read_text())["durable"]["lines"] == 2


_STUDY = ["faithful", "--method", "gradient_x_input", "--protocol", "agreement", "--limit", "2", "--out", "out"]
_COMPARE = ["compare", "a", "b", "--data", "data.txt", "--out", "out", "--single"]
_DATA = ["--data", "corpus.txt"]
_SMALL = ["--limit", "3", "--max-length", "32"]
_ALIGN = ["align", "--model", "0", "--source", "source", "--target", "target", "--out", "out"]


def small_windows() -> None:
    """For this process: what is done must be kept after two lines."""
    from normlens.cli import line_output

    assert line_output.WINDOW and line_output.SAVE_EVERY
    line_output.WINDOW, line_output.SAVE_EVERY = 2, 0.0


def _resume(folder: Path) -> None:
    use_translation(folder)
    small_windows()


def _make_cache(folder: Path) -> None:
    _make_pairs(folder)
    import os

    before = os.environ.get("NORMLENS_CACHE")
    os.environ["NORMLENS_CACHE"] = str(folder / "cache")
    try:
        from normlens.alignment.aligner import Aligner

        Aligner(translation_lens("marian", seed=0)).choose_layers(SENTENCES)
    finally:
        if before is None:
            del os.environ["NORMLENS_CACHE"]
        else:
            os.environ["NORMLENS_CACHE"] = before


def _make_choice(folder: Path) -> None:
    _make_pairs(folder)
    from normlens.alignment.aligner import Aligner

    aligner = Aligner(translation_lens("marian", seed=0))
    aligner.choose_layers(SENTENCES)
    aligner.choice().write(folder / "choice")


def _make_reproduced(folder: Path) -> None:
    """A report that was finished: the same command goes on from its passes."""
    _make_ranks(folder)
    from normlens.experiments import find_experiment
    from normlens.experiments.encoder_study import EncoderStudy

    def run() -> None:
        study = EncoderStudy(tiny(), Path("out"), (Path("corpus.txt"),), limit=3, max_length=32)
        find_experiment("kobayashi2021").load().run(study).write(Path("out"))

    _in_folder(folder, run)


def _make_gold(folder: Path) -> None:
    _make_pairs(folder)
    (folder / "gold").write_text("1 1 1 S\n1 2 2 P\n2 1 1 S\n3 1 1\n5 1 1 S\n")
    (folder / "talp").write_text("0-0 1p1\n0-0\n0-0\n\n0-0\n")


_SKIP = ("--on-error", "skip")
_READABLE = ("corpus.txt", "corpus.jsonl", "corpus.csv", "corpus.tsv", "corpus.parquet")
_PACKED = ("corpus.txt.gz", "corpus.txt.xz", "corpus.txt.zst")

TARGETS: list[Target] = [
    *(_corpus(name, misused=name == "corpus.txt") for name in (*_READABLE, *_PACKED)),
    *(_corpus(name, *_SKIP) for name in ("corpus.jsonl", "corpus.csv", "corpus.parquet", *_PACKED)),
    _corpus("corpus.jsonl", "--tag-column", "tags", *_SKIP),
    Target(
        "corpus-dataset", _make_dataset, lambda folder: ["corpus", "dataset", "--out", "out", *_SKIP],
        damage=("dataset/*",), own=("out",), prepare=use_tiny,
    ),
    Target(
        "corpus-ranks", _make_ranks,
        lambda folder: ["corpus", "corpus.txt", "--frequency", "ranks.txt", "--out", "out"],
        damage=("ranks.txt",), own=("out",), prepare=use_tiny,
    ),
    Target(
        "corpus-finished", _make_finished,
        lambda folder: ["corpus", "corpus.txt", "--per-token", "--out", "out"],
        damage=("out/*.json", "out/*.parquet", "out/tokens/*"), own=(), prepare=use_tiny,
    ),
    Target(
        "corpus-unfinished", _make_unfinished, lambda folder: ["corpus", "corpus.txt", "--out", "out"],
        damage=("out/unfinished/*",), own=("out",), prepare=use_tiny_in_small_chunks, same=_OUTPUTS,
    ),
    Target(
        "corpus-fresh", _make_finished,
        lambda folder: ["corpus", "corpus.txt", "--per-token", "--out", "out", "--fresh"],
        damage=("out/*.json", "out/tokens/*"), own=("out",), prepare=use_tiny,
    ),
    Target(
        "view", _make_analysis, lambda folder: ["view", "run.zarr", "--out", "page.html"],
        damage=("run.zarr/**/*",), own=("page.html",), same=("page.html",), misused=True,
    ),
    Target(
        "view-explanation", _make_explanation, lambda folder: ["view", "why.zarr", "--out", "page.html"],
        damage=("why.zarr/**/*",), own=("page.html",), same=("page.html",),
    ),
    Target(
        "model-explain", _make_masked_model,
        lambda folder: ["explain", "the old [MASK]", "--model", "model", "--out", "out"],
        damage=("model/*",), own=("out",), misused=True,
    ),
    Target("model-info", _make_model, lambda folder: ["info", "model"], damage=("model/*",), misused=True),
    Target(
        "model-analyze", _make_model, lambda folder: ["analyze", "the old bridge", "--model", "model", "--out", "out"],
        damage=("model/*",), own=("out",), misused=True,
    ),
    Target(
        "align", _make_pairs, lambda folder: [*_ALIGN, "--reverse-links", "links", "--symmetrize", "union"],
        damage=("source", "target", "links"), own=("out*", "cache"), prepare=use_translation, misused=True,
    ),
    Target(
        "align-resume", _make_stopped_alignment, lambda folder: [*_ALIGN, "--resume"],
        damage=("out.unfinished", "out.run.json"), own=("out*", "cache"), prepare=_resume, same=("out",),
    ),
    Target(
        "align-choice", _make_choice,
        lambda folder: [*_ALIGN, "--layers-from", "choice", "--page", "page.html", "--gold", "links"],
        damage=("choice", "links"), own=("out*", "cache", "page.html"), prepare=use_translation, misused=True,
    ),
    Target(
        "align-cache", _make_cache, lambda folder: _ALIGN, damage=("cache/layers/*",), own=("out*", "cache"),
        prepare=use_translation,
    ),
    Target(
        "aer", _make_gold,
        lambda folder: ["aer", "links", "talp", "--gold", "gold", "--source", "source", "--target", "target"],
        damage=("links", "talp", "gold", "source", "target"), misused=True,
    ),
    Target("aer-alone", _make_gold, lambda folder: ["aer", "links", "--gold", "talp"], damage=("links", "talp")),
    Target(
        "compare", lambda folder: (folder / "data.txt").write_text("\n".join(TEXTS)) and None,
        lambda folder: [*_COMPARE, "--limit", "4", "--max-length", "32"],
        damage=("data.txt",), own=("out", "compare"), prepare=use_tiny, misused=True,
    ),
    Target(
        "faithful-texts", _make_texts, lambda folder: [*_STUDY, "--texts", "texts.txt"],
        damage=("texts.txt",), own=("out", "faithful"), prepare=use_masked, misused=True,
    ),
    Target(
        "faithful-evidence", _make_evidence, lambda folder: [*_STUDY, "--evidence", "rows.csv"],
        damage=("rows.csv",), own=("out",), prepare=use_causal,
    ),
    Target(
        "faithful-kept", _make_studied, lambda folder: [*_STUDY, "--texts", "texts.txt"],
        damage=("out/scores/*",), own=("out",), prepare=use_masked,
    ),
    *map(_marked, _MARKED),
    Target(
        "reproduce-encoder", _make_ranks,
        lambda folder: [
            "reproduce", "kobayashi2020-bert", *_DATA, "--frequency", "ranks.txt", *_SMALL, "--out", "out",
        ],
        damage=("corpus.txt", "ranks.txt"), own=("out", "reproduce"), prepare=use_tiny, misused=True,
    ),
    Target(
        "reproduce-again", _make_reproduced,
        lambda folder: ["reproduce", "kobayashi2021", *_DATA, *_SMALL, "--out", "out"],
        damage=("out/results.json", "out/report.html", "out/passes/*/*"), own=("out",), prepare=use_tiny,
    ),
    Target(
        "reproduce-layers", _make_ranks,
        lambda folder: ["reproduce", "kobayashi2024", *_DATA, "--limit", "2", "--max-length", "16", "--out", "out"],
        damage=("corpus.txt",), own=("out", "reproduce"), prepare=use_tiny,
    ),
    Target(
        "reproduce-translation", _make_gold,
        lambda folder: [
            "reproduce", "kobayashi2020-nmt", "--model", "0", "--source", "source", "--target", "target",
            "--gold", "links", "--other", "other=links", "--out", "out",
        ],
        damage=("source", "target", "links"), own=("out", "reproduce", "cache"), prepare=use_translation, misused=True,
    ),
    Target("families", _make_texts, lambda folder: ["families", "bert"], damage=("texts.txt",), misused=True),
    Target("methods", _make_texts, lambda folder: ["methods"], damage=("texts.txt",), misused=True),
]  # fmt: skip
