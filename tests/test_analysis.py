"""Analysis: frozen, without a model, and the same to the last bit after saving and opening."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import normlens
from normlens import Analysis, Lens
from normlens.errors import InputError
from normlens.io.checksums import write_checksums
from tests import tiny


@cache
def example(family: str = "bert", seed: int = 0) -> Analysis:
    lens = Lens(tiny.make(family, seed=seed), tiny.tokenizer_for(family), name=f"tiny {family} {seed}")
    return lens.analyze("the cat sat , the cats sat", target="a dog ran" if family in tiny.TWO_SIDED else None)


def assert_identical(left: Analysis, right: Analysis) -> None:
    assert list(left.sites) == list(right.sites)
    for kind, dataset in left.sites.items():
        xr.testing.assert_identical(dataset, right.sites[kind])
        for name, variable in dataset.variables.items():
            other = right.sites[kind][name]
            assert variable.dtype == other.dtype, name
            if variable.dtype != object:
                assert variable.values.tobytes() == other.values.tobytes(), name
    assert dict(left.provenance) == dict(right.provenance)


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "marian"])
def test_saved_and_opened_is_the_same(family: str, tmp_path: Path) -> None:
    analysis = example(family)
    path = analysis.save(tmp_path / "deep" / "run.zarr")
    assert_identical(normlens.open(path), analysis)
    assert [p.name for p in path.parent.iterdir()] == ["run.zarr"], "nothing else may be left behind"


ODD = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "é",
    "e\u0301",
    "🤷🏽‍♀️",
    "\u202e",
    "\ufeff",
    '"',
    "\\",
    "\\u0041",
    "\n",
    "NaN",
    "null",
    "0",
]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=6)), min_size=1, max_size=6))
def test_any_token_string_survives(tmp_path_factory: pytest.TempPathFactory, tokens: list[str]) -> None:
    tokens = [*tokens, *tokens]  # and duplicates do
    n = len(tokens)
    values = np.random.default_rng(0).normal(size=(1, n, n)).astype(np.float32)
    labels = np.empty(n, dtype=object)
    labels[:] = tokens
    dataset = xr.Dataset(
        {"attn_w": (("layer", "query", "key"), values), "proof": (("layer",), np.zeros(1))},
        coords={
            "layer": [1],
            "query": np.arange(n),
            "key": np.arange(n),
            "query_token": ("query", labels),
            "key_token": ("key", labels),
        },
    )
    analysis = Analysis({"encoder": dataset}, {"model": {"name": "x", "family": "y"}})
    opened = normlens.open(analysis.save(tmp_path_factory.mktemp("odd") / "run.zarr"))
    assert opened.site("encoder").query_tokens == tokens
    assert_identical(opened, analysis)


def test_numbers_that_are_none_and_both_zeros_survive(tmp_path: Path) -> None:
    base = example()
    dataset = base.sites["encoder"].copy(deep=True)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38], dtype=np.float32)
    values = dataset["x_norm"].values.copy()
    values.flat[: len(odd)] = odd
    dataset["x_norm"] = dataset["x_norm"].copy(data=values)
    dataset["attn_w"] = dataset["attn_w"].copy(data=np.full(dataset["attn_w"].shape, -0.0, dtype=np.float32))
    analysis = Analysis({"encoder": dataset}, dict(base.provenance))
    assert_identical(normlens.open(analysis.save(tmp_path / "run.zarr")), analysis)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = example().save(tmp_path / "run.zarr")
    with pytest.raises(InputError, match=r"run.zarr exists; .*pass overwrite=True"):
        example("llama").save(path)
    assert_identical(normlens.open(path), example())
    example("llama").save(path, overwrite=True)
    assert_identical(normlens.open(path), example("llama"))


def test_overwriting_never_removes_what_is_no_analysis(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis.* is not a saved analysis, and nothing else is replaced"):
        example().save(folder, overwrite=True)
    assert (folder / "chapter1.tex").read_text() == "years of work"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"run.zarr cannot be written"):
        example().save(tmp_path / "file" / "run.zarr")
    with pytest.raises(InputError, match=r"cannot be written"):
        example().save("/proc/normlens/run.zarr")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_opening_what_is_no_analysis(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match=r"is not a saved analysis; check the path"):
            normlens.open(path)
    path = example().save(tmp_path / "run.zarr")
    meta = json.loads((path / "zarr.json").read_text())
    record = json.loads(meta["attributes"]["normlens"])
    meta["attributes"]["normlens"] = json.dumps(record | {"format": 99})
    (path / "zarr.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match=r"zarr.json .a saved analysis. was changed or damaged"):
        normlens.open(path)
    write_checksums(path)
    with pytest.raises(InputError, match=r"has format 99, this version reads 2; update normlens"):
        normlens.open(path)


def test_frozen() -> None:
    analysis = example()
    with pytest.raises(dataclasses.FrozenInstanceError):
        analysis.sites = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        analysis.sites["encoder"] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        analysis.provenance["model"] = {}  # type: ignore[index]
    for name in [*analysis.sites["encoder"].data_vars, "query_token", "layer"]:
        with pytest.raises((ValueError, TypeError)):
            analysis.sites["encoder"][name].values[...] = 0


def test_records_of_two_analyses_are_not_one_object() -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer())
    first, second = lens.analyze(["the cat", "a dog"])
    first.provenance["model"]["name"] = "changed"
    assert second.provenance["model"]["name"] != "changed"
    assert lens.analyze("the cat").provenance["model"]["name"] != "changed"


def test_holds_no_model() -> None:
    model = tiny.make("gpt2")
    gone = weakref.ref(model)
    lens = Lens(model, tiny.tokenizer("none"))
    kept = lens.analyze("the cat sat")
    del model, lens
    gc.collect()
    assert gone() is None, "an analysis keeps its model alive"
    assert float(kept["attn_n"].sum()) > 0


def test_axes_and_labels() -> None:
    analysis = example()
    assert analysis["alpha"].dims == ("layer", "head", "query", "key")
    assert analysis["f_norm"].dims == ("layer", "head", "key")
    assert analysis["x_norm"].dims == ("layer", "key")
    assert analysis["attn_w"].dims == ("layer", "query", "key")
    assert analysis.mixing_ratio("attn_n").dims == ("layer", "query")
    assert analysis.proof.dims == ("layer",)
    assert analysis["alpha"].layer.values.tolist() == [1, 2, 3]
    assert analysis["alpha"]["head"].values.tolist() == [1, 2, 3, 4]
    assert analysis["attn_n"]["query"].values.tolist() == list(range(10))
    assert analysis["attn_n"].key_token.values.tolist() == [
        "[CLS]",
        "the",
        "cat",
        "sat",
        ",",
        "the",
        "cat",
        "##s",
        "sat",
        "[SEP]",
    ]
    assert "query_token" not in analysis["f_norm"].coords


def test_several_kinds_of_site_must_be_chosen() -> None:
    analysis = example("marian")
    for ask in (lambda: analysis["attn_n"], lambda: analysis.mixing_ratio("attn_n"), lambda: analysis.proof):
        with pytest.raises(InputError, match=r"several kinds of site \(encoder, decoder, cross\)"):
            ask()
    with pytest.raises(InputError, match=r"one of encoder, decoder, cross for this model, got 'crosss'"):
        analysis.site("crosss")
    for name in ("attn_w", "attn_n"):
        with pytest.raises(InputError, match=f"{name} has no mixing ratio in cross-attention"):
            analysis.site("cross").mixing_ratio(name)
    with pytest.raises(InputError, match=r"is for cross-attention"):
        analysis.site("decoder").residual_norm("attnres_n")


def test_what_was_not_asked_for_is_named() -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer())
    few = lens.analyze("the cat", measures=["attn_w"])
    with pytest.raises(InputError, match=r"'attn_n' was not computed; call analyze\(measures=\[…, 'attn_n'\]\)"):
        few["attn_n"]
    with pytest.raises(InputError, match=r"one of alpha, f_norm, .*, got 'atn_n'"):
        few["atn_n"]
    with pytest.raises(InputError, match=r"'attn_n' was not computed; call analyze\(mixing=\['attn_n'\]\)"):
        few.mixing_ratio("attn_n")
    with pytest.raises(InputError, match=r"belongs to one of attn_w, attn_n, .*, got 'alpha'"):
        few.mixing_ratio("alpha")


def test_table_holds_every_number_once() -> None:
    analysis = example("t5")
    table = analysis.to_frame()
    assert len(table) == sum(dataset[name].size for dataset in analysis.sites.values() for name in dataset.data_vars)
    columns = ["site", "measure", "layer", "head", "query", "query_token", "key", "key_token", "value"]
    assert table.columns.tolist() == columns
    row = table.query("site == 'cross' and measure == 'alpha' and layer == 2 and head == 3 and query == 1 and key == 4")
    expected = analysis.site("cross")["alpha"].sel(layer=2, head=3, query=1, key=4)
    assert row["value"].tolist() == [float(expected)]
    assert row["key_token"].tolist() == [str(expected.key_token.values)]
    some = analysis.to_frame(["attn_n"])
    assert set(some["measure"]) == {"attn_n"} and set(some["site"]) == {"encoder", "decoder", "cross"}
    with pytest.raises(InputError, match=r"must be among those that were kept"):
        analysis.to_frame(["nothing"])


def test_difference_of_two_models() -> None:
    left, right = example(seed=0), example(seed=1)
    change = left - right
    np.testing.assert_array_equal(change["attn_n"].values, left["attn_n"].values - right["attn_n"].values)
    np.testing.assert_array_equal(
        change.mixing_ratio("attn_n").values, left.mixing_ratio("attn_n").values - right.mixing_ratio("attn_n").values
    )
    assert change["attn_n"].key_token.values.tolist() == left["attn_n"].key_token.values.tolist()
    assert float(change.proof.max()) == max(left.max_proof_error, right.max_proof_error), "errors do not cancel"
    assert change.provenance["difference"]["right"]["name"] == "tiny bert 1"
    nothing = left - left
    assert all(not nothing[name].values.any() for name in nothing.measures)


def test_difference_refuses_what_does_not_match(tmp_path: Path) -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer())
    text = lens.analyze("the cat sat")
    cases = [
        (lens.analyze("the dog sat"), "different tokens"),
        (lens.analyze("the cat"), "different tokens"),
        (lens.analyze("the cat sat", layers=[1, 2]), "different layers"),
        (example("marian"), "different sites"),
    ]
    for other, message in cases:
        with pytest.raises(InputError, match=message):
            normlens.difference(text, other)
    with pytest.raises(InputError, match=r"different layers"):  # as many layers, but other ones
        lens.analyze("the cat sat", layers=[1, 2]) - lens.analyze("the cat sat", layers=[2, 3])
    with pytest.raises(InputError, match=r"no measure in common"):
        lens.analyze("the cat sat", measures=["alpha"]) - lens.analyze("the cat sat", measures=["x_norm"])


def test_citations_are_those_of_the_measures() -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer())
    old = lens.analyze("the cat", measures=["alpha", "f_norm"]).cite()
    assert "Attention is Not Only a Weight" in old and "Incorporating Residual" not in old
    new = lens.analyze("the cat", measures=["attnresln_n"]).cite()
    assert "Incorporating Residual" in new and "Attention is Not Only a Weight" not in new
    ratio = lens.analyze("the cat", measures=[], mixing=["attn_w"]).cite()
    assert "Incorporating Residual" in ratio
    assert example().cite().count("@") == 2


def test_provenance_says_where_the_numbers_come_from(tmp_path: Path) -> None:
    import torch
    import transformers

    lens = Lens(tiny.make("bert"), tiny.tokenizer(), name="mine")
    record = lens.analyze("the cats sat", measures=["attn_n"], layers=np.array([1, 2]), words="norms").provenance
    assert record["model"]["name"] == "mine" and record["model"]["family"] == "bert"
    assert record["model"]["dtype"] == "float32" and record["model"]["content"].startswith("sha256-tree:")
    assert record["measures"] == ["attn_n"] and record["layers"] == [1, 2] and record["words"] == "norms"
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["transformers"] == transformers.__version__
    json.dumps(dict(record))  # everything in it can be written down
    same, other = tiny.make("bert"), tiny.make("bert", seed=3)
    assert Lens(same).analyze_inputs(tiny.batch("bert"))[0].provenance["model"]["content"] == record["model"]["content"]
    assert (
        Lens(other).analyze_inputs(tiny.batch("bert"))[0].provenance["model"]["content"] != record["model"]["content"]
    )
    line = example().provenance_line()
    for part in ("tiny bert 0", "bert", "float32", transformers.__version__, torch.__version__, "proof"):
        assert part in line
