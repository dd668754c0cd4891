"""One call draws what an analysis holds, and no more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import xarray as xr

from normlens.plots.analysis import pictures, save_all
from normlens.plots.figure import provenance_of
from tests.plots.samples import dataset, mixing


def held(count: int = 4, **options: int) -> xr.Dataset:
    data = dataset(count, layers=2, **options)
    return data.assign({f"mixing_{name}": mixing(count, 2) for name in ("attn_w", "attn_n", "attnresln_n")})


def test_every_kind_of_picture_is_written_for_every_kind_of_site(tmp_path: Path) -> None:
    data = held()[["attn_w", "mixing_attn_w"]]
    analysis = SimpleNamespace(sites={"encoder": data, "cross": data}, provenance_line=lambda: "model · versions")
    files = save_all(analysis, tmp_path)
    assert sorted(files) == sorted(tmp_path.iterdir())
    stems = {path.stem for path in files}
    assert stems == {f"{site}_{name}" for site in analysis.sites for name in ("maps", "map_attn_w", "mixing_attn_w")}


def test_the_pictures_of_a_full_analysis() -> None:
    drawn = dict(pictures(held(), "model · versions"))
    assert list(drawn) == [
        "maps",
        "map_attnresln_n",
        "heads_alpha",
        "heads_af_norm",
        "mixing_attn_w",
        "mixing_attnresln_n",
    ]
    assert {provenance_of(figure) for figure in drawn.values()} == {"model · versions"}
    large = drawn["map_attnresln_n"].axes[0]
    rest, own = (np.ma.filled(image.get_array(), np.nan) for image in large.images)
    mean = held()["attnresln_n"].mean("layer").values
    np.testing.assert_allclose(rest, np.where(np.eye(4), 0.0, mean))
    np.testing.assert_allclose(np.diagonal(own), np.diagonal(mean))
    assert large.get_title(loc="left").startswith("mean over layers 1, 2 · own part in grey, to ")
    ends = {drawn[name].axes[0].images[0].norm.vmax for name in ("mixing_attn_w", "mixing_attnresln_n")}
    assert ends == {1.0}, "the two ratios can be compared"


def test_a_long_text_is_drawn_on_root_scales() -> None:
    for count, root in ((24, False), (25, True)):
        drawn = dict(pictures(held(count), "p"))
        label = drawn["map_attnresln_n"].axes[-1].get_ylabel()
        assert ("root scale" in label) == root
    signed = held(25)
    signed["attn_n"] = signed["attn_n"] - 1.0
    bars = [ax.get_xlabel() for ax in dict(pictures(signed, "p"))["maps"].axes if not ax.images]
    assert bars and all("root scale" in label for label in bars), "a map with a sign has a root scale, too"


def test_an_analysis_without_maps_draws_what_there_is() -> None:
    assert [name for name, _ in pictures(held()[["mixing_attn_n"]], "p")] == ["mixing_attn_n"]
    assert list(pictures(held()[["mixing_attn_n"]].drop_vars("mixing_attn_n"), "p")) == []


def test_too_many_heads_are_thinned_by_layers() -> None:
    data = dataset(2, layers=9, heads=64)[["alpha"]]
    ((_, figure),) = pictures(data, "p")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["1", "5", "9"]


def test_cross_attention_is_not_labelled_with_a_residual_that_its_maps_lack() -> None:
    drawn = dict(pictures(held(), "p", cross=True))
    labels = [ax.get_xlabel() for ax in drawn["maps"].axes] + [drawn["map_attnresln_n"].axes[-1].get_ylabel()]
    assert not any("+ x" in label or "½ I" in label for label in labels)
    assert "‖source‖ / (‖source‖ + ‖residual‖)" in drawn["mixing_attnresln_n"].axes[-1].get_xlabel()
    usual = [ax.get_xlabel() for ax in dict(pictures(held(), "p"))["maps"].axes]
    assert any("+ x" in label for label in usual) and any("½ I" in label for label in usual)
