"""Files are whole or not there, the same for the same figure, and well formed whatever the tokens hold; and say whence."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from PIL import Image

from normlens.errors import InputError
from normlens.plots import plot_heads, plot_map, plot_maps, plot_mixing, save_figure
from normlens.plots.figure import provenance_of
from normlens.plots.text import printable
from tests.plots.samples import HOSTILE, dataset, mixing


def small_map() -> Figure:
    return plot_map(dataset(5)["attn_n"].sel(layer=1), provenance="normlens · ‖f(x)‖")


def test_two_files_are_written_and_named(tmp_path: Path) -> None:
    paths = save_figure(small_map(), tmp_path / "bert.layer5")
    assert [path.name for path in paths] == ["bert.layer5.png", "bert.layer5.svg"]
    assert sorted(tmp_path.iterdir()) == sorted(paths), "nothing else is left behind"
    with Image.open(paths[0]) as picture:
        assert picture.info["Description"] == "normlens · ‖f(x)‖"
        assert picture.size[0] > 600
    described = ElementTree.parse(paths[1]).iter("{http://purl.org/dc/elements/1.1/}description")
    assert [element.text for element in described] == ["normlens · ‖f(x)‖"]


def test_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    usual = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert {stat.S_IMODE(path.stat().st_mode) for path in save_figure(small_map(), tmp_path / "map")} == {usual}


DIGEST = """
import hashlib, sys
from pathlib import Path
from tests.plots.samples import dataset
from normlens.plots import plot_maps, save_figure
for path in save_figure(plot_maps(dataset(6), provenance="p"), Path(sys.argv[1]) / "maps"):
    print(hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    here = [
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in save_figure(plot_maps(dataset(6), provenance="p"), tmp_path / "here")
    ]
    root = Path(__file__).parents[2]
    there = subprocess.run(
        [sys.executable, "-c", DIGEST, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == here
    assert "<dc:date>" not in (tmp_path / "here.svg").read_text()


def test_a_failure_keeps_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in save_figure(small_map(), tmp_path / "map"):
        path.write_bytes(b"old")
    figure = small_map()
    drawn = Figure.savefig

    def fails_on_svg(self: Figure, *arguments: object, **options: object) -> None:
        if options["format"] == "svg":
            raise RuntimeError("in the middle of it")
        drawn(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", fails_on_svg)
    with pytest.raises(RuntimeError, match="in the middle"):
        save_figure(figure, tmp_path / "map")
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"old"}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        save_figure(small_map(), tmp_path / "missing" / "map")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        save_figure(small_map(), tmp_path / "file" / "map")
    (tmp_path / "map.svg").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        save_figure(small_map(), tmp_path / "map")
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".draft")]
    with pytest.raises(InputError, match="name"):
        save_figure(small_map(), "/")


@pytest.mark.parametrize("picture", ["map", "maps", "mixing", "heads"])
def test_hostile_tokens_draw_quietly_and_stay_well_formed(
    picture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, provenance = dataset(HOSTILE, layers=2), "model $\\x$ </text> ]]> \x00\x1b 東京 --"
    draw = {
        "map": lambda: plot_map(data["attn_n"].sel(layer=1), provenance=provenance),
        "maps": lambda: plot_maps(data, provenance=provenance),
        "mixing": lambda: plot_mixing(mixing(HOSTILE), provenance=provenance),
        "heads": lambda: plot_heads(data["alpha"].sel(layer=1), provenance=provenance),
    }[picture]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        _, svg = save_figure(draw(), tmp_path / picture)
    assert not caplog.records
    (described,) = ElementTree.parse(svg).iter("{http://purl.org/dc/elements/1.1/}description")
    assert described.text == printable(provenance)


WILD = {
    "text.usetex": True, "font.size": 30, "font.family": ["serif"], "axes.grid": True, "image.origin": "lower",
    "figure.facecolor": "black", "axes.facecolor": "black", "text.color": "white", "axes.edgecolor": "white",
    "xtick.color": "white", "ytick.color": "white", "xtick.labelcolor": "red", "axes.labelcolor": "white",
    "xtick.top": True, "xtick.labeltop": True, "xtick.minor.visible": True, "ytick.right": True,
    "ytick.labelright": True,
    "xtick.direction": "in", "axes.spines.top": False, "figure.autolayout": True, "savefig.bbox": "tight",
    "savefig.transparent": True, "image.cmap": "jet", "image.interpolation": "bicubic", "image.aspect": "equal",
    "axes.titlelocation": "right", "axes.titleweight": "bold", "axes.labelweight": "bold", "lines.linewidth": 9,
    "patch.linewidth": 9, "axes.linewidth": 5, "grid.linewidth": 4, "xaxis.labellocation": "right", "axes.xmargin": 0.4,
    "yaxis.labellocation": "top", "axes.ymargin": 0.4, "xtick.alignment": "left", "ytick.alignment": "top",
    "axes.axisbelow": False, "axes.titley": 0.4, "axes.titlecolor": "red", "patch.force_edgecolor": True,
}  # fmt: skip


@pytest.mark.parametrize("picture", ["map", "maps", "mixing", "heads", "head"])
def test_no_setting_of_the_callers_changes_a_picture_and_none_is_changed(picture: str, tmp_path: Path) -> None:
    data = dataset(5, layers=2)
    draw = {
        "map": lambda: plot_map(data["attn_n"].sel(layer=1), provenance="p"),
        "maps": lambda: plot_maps(data, provenance="p"),
        "mixing": lambda: plot_mixing(mixing(5), provenance="p"),
        "heads": lambda: plot_heads(data["alpha"], provenance="p"),
        "head": lambda: plot_heads(data["alpha"].sel(layer=1), provenance="p", scale="panel"),
    }[picture]
    plain = save_figure(draw(), tmp_path / "plain")
    with matplotlib.rc_context(WILD):
        before = dict(matplotlib.rcParams)
        wild = save_figure(draw(), tmp_path / "wild")
        assert dict(matplotlib.rcParams) == before
    assert wild[0].read_bytes() == plain[0].read_bytes()


QUIET_IMPORT = """
import sys
import normlens.plots
unwanted = {"torch", "transformers", "matplotlib.pyplot"} & set(sys.modules)
assert not unwanted, unwanted
"""


def test_importing_brings_no_model_library_and_no_window() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run([sys.executable, "-c", QUIET_IMPORT], env=environment, check=True)


def test_provenance_is_drawn_small_at_the_bottom() -> None:
    line = "normlens 0.1.0 · model $x$ · measures attn_w · float32"
    for figure in (
        plot_map(dataset(5)["attn_w"].sel(layer=1), provenance=line),
        plot_maps(dataset(5), provenance=line),
        plot_mixing(mixing(5), provenance=line),
        plot_heads(dataset(5)["alpha"], provenance=line),
    ):
        (text,) = (text for text in figure.texts if text.get_text().replace("\n", " ") == line)
        assert text.get_position()[1] < 0.05 and text.get_fontsize() <= 5
        assert provenance_of(figure) == line
