"""What the commands write: nothing that exists without being asked, nothing that is read, no formula, no markup."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from normlens.cli.main import main
from normlens.errors import InputError
from normlens.io.writing import (
    atomic_files,
    atomic_folder,
    check_outputs,
    escape_formula,
    lock_file,
    lock_folder,
    refuse_existing,
    refuse_input,
    write_table,
)
from normlens.lens import Lens
from tests import tiny
from tests.corpus.conftest import paragraphs, tiny_bert, tiny_tokenizer

#: Words that a spreadsheet would run, and words that rich would read as markup or as pictures.
WORDS = ["=1+1", "@sum", "-2", "+3", "[/x]", "[bold]", ":cat:", "the"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model whose words are all of these, kept whole; its own name is markup too."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("models") / "[bold]model"
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    tiny.make("bert").save_pretrained(folder)
    return folder


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run the command in this process, in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["normlens", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


# ---- what is written ----------------------------------------------------------------------------------------------


def test_analyze_shows_every_word_as_it_is(model: Path, shell: Any) -> None:
    code, out, err = shell("analyze", " ".join(WORDS), "--model", model)
    assert code == 0, err
    assert all(word in out for word in WORDS)


def test_analyze_writes_where_it_is_told_and_no_formulas(model: Path, shell: Any, tmp_path: Path) -> None:
    folder = tmp_path / "[/x]"
    arguments = ("analyze", " ".join(WORDS), "--model", model, "--measure", "attn_w", "--layer", 1, "--out", folder)
    code, out, err = shell(*arguments)
    assert code == 0, err
    assert f"wrote {folder / 'analysis.zarr'}" in out and f"wrote {folder / 'analysis.csv'}" in out
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    with (folder / "analysis.csv").open(newline="", encoding="utf-8") as file:
        cells = {cell for row in csv.reader(file) for cell in row}
    assert {"'=1+1", "'@sum", "'-2", "'+3", "[/x]", "the"} <= cells
    assert not {"=1+1", "@sum", "-2", "+3"} & cells

    before = (folder / "analysis.csv").read_bytes()
    code, out, err = shell(*arguments)
    assert code == 2 and "exists; choose another path" in err and "--overwrite" in err and out == ""
    assert (folder / "analysis.csv").read_bytes() == before
    code, _, err = shell(*arguments, "--overwrite")
    assert code == 0, err


def test_a_picture_of_the_users_is_not_replaced(model: Path, shell: Any, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "maps.png").write_bytes(b"mine")
    arguments = ("analyze", "the the", "--model", model, "--measure", "attn_w", "--layer", 1, "--out", folder)
    code, _, err = shell(*arguments)
    assert code == 2 and "maps.png" in err
    assert [path.name for path in folder.iterdir()] == ["maps.png"] and (folder / "maps.png").read_bytes() == b"mine"


def test_analyze_never_replaces_a_folder_that_is_no_analysis(model: Path, shell: Any, tmp_path: Path) -> None:
    (tmp_path / "out" / "analysis.zarr").mkdir(parents=True)
    (tmp_path / "out" / "analysis.zarr" / "thesis.txt").write_text("mine")
    code, _, err = shell("analyze", "the", "--model", model, "--out", tmp_path / "out", "--overwrite")
    assert code == 2 and "exists; choose another path" in err
    assert (tmp_path / "out" / "analysis.zarr" / "thesis.txt").read_text() == "mine"


def test_the_models_folder_is_no_place_for_results(model: Path, shell: Any) -> None:
    before = sorted(model.iterdir())
    code, _, err = shell("analyze", "the", "--model", model, "--out", model, "--overwrite")
    assert code == 2 and "is an input of this run" in err and sorted(model.iterdir()) == before


def test_a_category_is_shown_as_it_is_called(shell: Any, tmp_path: Path) -> None:
    tiny_bert().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text("\n".join(paragraphs(6)))
    rules = ("--category", "[/x]=the|a", "--category", "[bold]=river|stone", "--category", ":cat:=town")
    code, out, err = shell("corpus", "text", "--model", "model", "--out", "[/x]", *rules)
    assert code == 0, err
    assert all(name in out for name in ("[/x]", "[bold]", ":cat:", "wrote [/x]"))


def test_a_device_that_does_not_exist(model: Path) -> None:
    from normlens.cli.options import open_lens

    assert open_lens(str(model), device="cpu").model.device.type == "cpu"
    with pytest.raises(InputError, match="device 'nope' cannot be used"):
        open_lens(str(model), device="nope")


@pytest.mark.parametrize("path", ["run.zarr", "./run", "../runs/one", "/no/such/folder", "~/run"])
def test_a_run_that_is_not_there_is_no_text(path: str, shell: Any, tmp_path: Path) -> None:
    code, _, err = shell("view", path, "--out", tmp_path / "page.html")
    assert code == 2 and f"{path} looks like the folder of a run, and there is none; check the path" in err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("text", ["and/or", "a run.zarr that is a word", "[/x]", "the / a"])
def test_a_text_with_a_slash_is_a_text(text: str, model: Path, shell: Any, tmp_path: Path) -> None:
    assert "looks like" not in shell("view", text, "--model", model, "--out", tmp_path / "page.html")[2]


def test_view_replaces_only_what_it_may(model: Path, shell: Any, tmp_path: Path) -> None:
    code, out, err = shell("view", "the [bold]", "--model", model)
    assert code == 0 and "wrote normlens-view.html" in out, err
    assert shell("view", "the", "--model", model)[0] == 0  # nobody chose that name
    page = tmp_path / "[" / "x].html"
    page.parent.mkdir()
    code, out, _ = shell("view", "the", "--model", model, "--out", page)
    assert code == 0 and f"wrote {page}" in out
    before = page.read_bytes()
    code, _, err = shell("view", "[bold]", "--model", model, "--out", page)
    assert code == 2 and "--overwrite" in err and page.read_bytes() == before
    assert shell("view", "[bold]", "--model", model, "--out", page, "--overwrite")[0] == 0
    (tmp_path / "normlens-view.html").write_text("mine")
    code, _, err = shell("view", "the", "--model", model)
    assert code == 2 and (tmp_path / "normlens-view.html").read_text() == "mine"


def test_view_does_not_write_into_the_run_that_it_shows(model: Path, shell: Any, tmp_path: Path) -> None:
    import normlens

    run = normlens.load(model).analyze("the").save(tmp_path / "run.zarr")
    before = (run / "zarr.json").read_bytes()
    code, _, err = shell("view", run, "--out", run / "zarr.json", "--overwrite")
    assert code == 2 and "is an input of this run" in err and (run / "zarr.json").read_bytes() == before


@pytest.mark.parametrize("command", [("reproduce", "kobayashi2021"), ("compare", "one", "two")])
def test_a_report_does_not_replace_something_else(command: tuple[str, ...], shell: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"experiment": "another"}))
    code, _, err = shell(*command, "--out", folder)
    assert code == 2 and "exists; choose another path" in err and "results.json" in err and "--overwrite" in err
    code, _, err = shell(*command, "--out", folder, "--overwrite", "--data", folder / "results.json")
    assert code == 2 and "is an input of this run" in err


@pytest.mark.parametrize("place", ["tables/mixing.csv", "figures/mixing.png", "report.html", "results.json"])
@pytest.mark.parametrize("command", [("reproduce", "kobayashi2021"), ("compare", "one", "two")])
def test_a_report_is_not_written_over_its_data(
    command: tuple[str, ...], place: str, shell: Any, tmp_path: Path
) -> None:
    data = tmp_path / "out" / place
    data.parent.mkdir(parents=True)
    data.write_text("a paragraph")
    code, _, err = shell(*command, "--out", tmp_path / "out", "--overwrite", "--data", data)
    assert code == 2 and "is an input of this run" in err and data.read_text() == "a paragraph"
    if "/" in place:  # somebody's folder of that name: nobody said that it may be written to
        code, _, err = shell(*command, "--out", tmp_path / "out")
        assert code == 2 and "exists; choose another path" in err and sorted(data.parent.iterdir()) == [data]


@pytest.mark.parametrize("place", ["table.csv", "methods.png", "methods.svg", "report.html", "results.json"])
def test_a_study_is_not_written_over_its_texts(place: str, shell: Any, tmp_path: Path) -> None:
    texts = tmp_path / "out" / place
    texts.parent.mkdir()
    texts.write_text("the river runs")
    code, _, err = shell("faithful", "--texts", texts, "--out", tmp_path / "out", "--overwrite")
    assert code == 2 and "is an input of this run" in err and texts.read_text() == "the river runs"
    (tmp_path / "texts").write_text("the river runs")
    code, _, err = shell("faithful", "--texts", tmp_path / "texts", "--out", tmp_path / "out")
    assert code == 2 and "exists; choose another path" in err and texts.read_text() == "the river runs"


@pytest.mark.parametrize("command", [("reproduce", "kobayashi2021"), ("compare", "one", "two"), ("faithful",)])
def test_what_is_wrong_with_the_data_is_said_before_anything_is_made(
    command: tuple[str, ...], shell: Any, tmp_path: Path
) -> None:
    flag = "--texts" if command == ("faithful",) else "--data"
    code, _, err = shell(*command, flag, "missing.txt", "--out", "out")
    assert code == 2 and "missing.txt" in err and list(tmp_path.iterdir()) == []
    (tmp_path / "data").write_text("a paragraph")
    given = () if command[0] == "compare" else ("--model", "none")
    code, _, err = shell(*command, flag, "data", "--out", "out", *given)
    assert code == 2 and [path.name for path in tmp_path.iterdir()] == ["data"], "a folder was left behind"


@pytest.mark.parametrize(
    "command",
    [
        ("reproduce", "kobayashi2021", "--data", "text"), ("reproduce", "kobayashi2024", "--data", "text"),
        ("compare", "one", "two", "--data", "text"), ("faithful", "--texts", "text"), ("corpus", "text"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_a_folder_holds_one_run_at_a_time(command: tuple[str, ...], shell: Any, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the river runs")
    with lock_folder(tmp_path / "out", "run"):
        code, _, err = shell(*command, "--out", tmp_path / "out", "--overwrite")
        assert code == 2 and "is locked by another normlens process" in err
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("model", ["none", "model"])
@pytest.mark.parametrize("command", [("analyze", "\udcff"), ("explain", "\udcff"), ("corpus", "empty")])
def test_a_run_that_came_to_nothing_leaves_nothing(
    command: tuple[str, ...], model: str, shell: Any, tmp_path: Path
) -> None:
    tiny_bert().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "empty").write_text("\n")
    code, _, err = shell(*command, "--model", model, "--out", "new/out")
    assert code == 2, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "model"]


def only_mine(err: str, flag: str, name: str, folder: Path) -> None:
    """The output that `flag` places at `name` was refused for the right reason, and nothing of the user's has changed."""
    if name != "other":
        assert "is an input of this run" in err and (folder / name).read_text() == "mine"
    elif flag != "--out":
        assert "other is given for two different outputs" in err
    assert not [path for path in folder.rglob("*") if path.is_file() and path.read_text() != "mine"]


@pytest.mark.parametrize("flag", ["--out", "--page", "--save-choice"])
@pytest.mark.parametrize("name", ["source", "target", "links", "choice", "model/config.json", "other"])
def test_no_output_of_an_aligner_is_one_of_its_inputs(flag: str, name: str, shell: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for file in ("source", "target", "links", "choice", "model/config.json"):
        (tmp_path / file).write_text("mine")
    outputs = {"--out": "other", "--page": "page.html", "--save-choice": "saved", flag: name}
    arguments = [word for pair in outputs.items() for word in pair]
    read = ("--source", "source", "--target", "target", "--reverse-links", "links", "--symmetrize", "union")
    code, _, err = shell("align", *read, "--layers-from", "choice", "--model", "model", *arguments, "--overwrite")
    assert code == 2, err
    only_mine(err, flag, name, tmp_path)


@pytest.mark.parametrize(
    "name", ["x" * 300, "a/" * 3000 + "x", "text/below", "/proc/nope/x", "/dev/full/x", "loop", "loop/below"]
)
@pytest.mark.parametrize(
    "command",
    [
        ("analyze", "the"), ("explain", "the"), ("view", "the"), ("corpus", "text"), ("faithful", "--texts", "text"),
        ("reproduce", "kobayashi2021", "--data", "text"), ("compare", "one", "two", "--data", "text"),
        ("align", "--source", "text", "--target", "text"),
        ("project", "--source", "text", "--target", "text", "--format", "html"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    command: tuple[str, ...], name: str, model: Path, shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normlens.lens.load", lambda *_, **__: pytest.fail("a model was loaded"))
    (tmp_path / "text").write_text("the")
    (tmp_path / "loop").symlink_to("loop")
    given = ("--model", model) if command[0] != "compare" else ()
    for told in ((), ("--overwrite",)):
        code, _, err = shell(*command, *given, "--out", name, *told)
        assert code == 2 and err.startswith("normlens: ") and err.count("\n") == 1, err
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == ["loop", "text"] and (tmp_path / "text").read_text() == "the"


# ---- the helpers ----------------------------------------------------------------------------------------------------


def test_an_output_is_an_input_by_any_name(tmp_path: Path) -> None:
    source, link, hard = tmp_path / "text", tmp_path / "link", tmp_path / "hard"
    source.write_text("words")
    link.symlink_to(source)
    hard.hardlink_to(source)
    for name in (source, link, hard, tmp_path / "sub" / ".." / "text"):
        (tmp_path / "sub").mkdir(exist_ok=True)
        with pytest.raises(InputError, match="is an input of this run"):
            refuse_input(name, [tmp_path / "other", source])
    refuse_input(tmp_path / "new", [source])
    refuse_input(tmp_path / "new", [tmp_path])  # a new file beside those that are read harms none of them
    with pytest.raises(InputError, match="is an input of this run"):
        refuse_input(source, [tmp_path])


def test_a_link_to_nowhere_exists(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"link exists; choose another path, or ask"):
        refuse_existing(tmp_path / "link", "ask")
    refuse_existing(tmp_path / ("x" * 5000), "ask")


def test_outputs_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "text").write_text("words")
    check_outputs([tmp_path / "a", tmp_path / "b"], [tmp_path / "in" / "text"], replace=False, remedy="ask")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    for files, folders, said in (
        (["a", "./a"], [], "is given for two different outputs"),
        (["in"], [], "is a folder, not a file"),
        ([], ["in/text"], "is an input of this run"),
        ([], ["in"], "lies in .*in, which is written"),
        (["in/text"], [], "is an input of this run"),
        (["in/text/below"], [], "Not a directory"),
    ):
        with pytest.raises(InputError, match=said):
            check_outputs(
                [tmp_path / name for name in files],
                [tmp_path / "in" / "text"],
                replace=True,
                remedy="ask",
                folders=[tmp_path / name for name in folders],
            )
    with pytest.raises(InputError, match="is a file, not a folder"):
        check_outputs([], [], replace=True, remedy="ask", folders=[tmp_path / "in" / "text"])
    with pytest.raises(InputError, match="exists; choose another path"):
        check_outputs([], [], replace=False, remedy="ask", folders=[tmp_path / "in"])


def test_one_process_at_a_time(tmp_path: Path) -> None:
    import multiprocessing

    (tmp_path / "file").write_text("mine")
    context = multiprocessing.get_context("fork")
    for own in (lock_file(tmp_path / "file", "run"), lock_folder(tmp_path, "run")):
        with own:
            other = context.Process(target=_refused, args=(tmp_path,))
            other.start()
            other.join()
            assert other.exitcode == 0
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(RuntimeError), lock_folder(tmp_path / "new", "run"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()


def _refused(folder: Path) -> None:
    said = []
    for own in (lock_file(folder / "file", "run"), lock_folder(folder, "run")):
        try:
            with own:
                pass
        except InputError as error:
            said.append(str(error))
    assert len(said) == 1 and "is locked by another normlens process" in said[0]


def test_files_arrive_together_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(RuntimeError), atomic_files(target, overwrite=False, remedy="ask") as draft:
        (draft / "a").write_text("a")
        raise RuntimeError
    assert list(target.iterdir()) == []
    with atomic_files(target, overwrite=False, remedy="ask") as draft:
        (draft / "a").write_text("a")
        (draft / "folder").mkdir()
        (draft / "folder" / "old").write_text("old")
    with pytest.raises(InputError, match="a exists"), atomic_files(target, overwrite=False, remedy="ask") as draft:
        (draft / "a").write_text("new")
        (draft / "b").write_text("b")
    assert sorted(path.name for path in target.iterdir()) == ["a", "folder"] and (target / "a").read_text() == "a"
    with atomic_files(target, overwrite=True, remedy="ask") as draft:
        (draft / "a").write_text("new")
        (draft / "folder").mkdir()
    assert (target / "a").read_text() == "new" and list((target / "folder").iterdir()) == []
    assert sorted(path.name for path in target.iterdir()) == ["a", "folder"]


def test_a_folder_is_replaced_by_a_whole_one_or_stays(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run") as draft:
        (draft / "first").write_text("1")
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "run") as draft:
        (draft / "second").write_text("2")
        raise RuntimeError
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["first"]
    with atomic_folder(tmp_path / "run") as draft:
        (draft / "second").write_text("2")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("cell", ["=1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "'=1", "''@x"])
def test_no_cell_begins_a_formula_and_each_can_be_read_back(cell: str) -> None:
    safe = escape_formula(cell)
    assert safe == f"'{cell}" and safe[1:] == cell


@pytest.mark.parametrize("cell", ["the", "1-1", "'s", "##ing", "", -1, 2.5, None])
def test_other_cells_stay_as_they_are(cell: Any) -> None:
    assert escape_formula(cell) is cell


def test_a_table_keeps_its_numbers(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"=token": ["-a", "b"], "value": [-1.5, 2.0], "count": [-1, 2]})
    frame["kind"] = pd.Categorical(["@x", "y"])
    path = write_table(tmp_path / "table.csv", frame)
    assert path.read_text() == "'=token,value,count,kind\n'-a,-1.5,-1,'@x\nb,2.0,2,y\n"
    assert list(frame.columns) == ["=token", "value", "count", "kind"]  # the frame is the caller's


def test_a_lens_without_a_shell_is_not_touched(model: Path) -> None:
    """Words are data in results too: what the commands escape is what they show, not what they hold."""
    import normlens

    lens: Lens = normlens.load(model)
    assert lens.analyze("=1+1 [/x]").site("encoder").query_tokens == ["=1+1", "[/x]"]


@pytest.mark.parametrize("flag", ["--out", "--page"])
@pytest.mark.parametrize("name", ["source", "target", "choice", "model/config.json", "other"])
def test_no_output_of_a_projection_is_one_of_its_inputs(flag: str, name: str, shell: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for file in ("source", "target", "choice", "model/config.json"):
        (tmp_path / file).write_text("mine")
    outputs = {"--out": "other", "--page": "page.html", flag: name}
    arguments = [word for pair in outputs.items() for word in pair]
    read = (
        "--source",
        "source",
        "--target",
        "target",
        "--format",
        "html",
        "--layers-from",
        "choice",
        "--model",
        "model",
    )
    code, _, err = shell("project", *read, *arguments, "--overwrite")
    assert code == 2, err
    only_mine(err, flag, name, tmp_path)
