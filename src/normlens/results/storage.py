"""Results to folders and back: the same numbers to the last bit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from normlens.errors import InputError
from normlens.io.checksums import SEAL
from normlens.io.writing import atomic_folder
from normlens.io.zarr_folder import attributes_of, check_replaced, read_tree, write_tree
from normlens.results.analysis import Analysis
from normlens.results.explanation import Explanation, is_explanation, open_explanation

if TYPE_CHECKING:
    from normlens.corpus.result import CorpusResult

_FORMAT = 2


def open_result(path: str | Path) -> Analysis | Explanation | CorpusResult:
    """Open a folder: a saved analysis, a saved explanation, or the results of a corpus run."""
    from normlens.corpus.result import is_corpus, open_corpus

    if is_explanation(path):
        return open_explanation(path)
    return open_corpus(path) if is_corpus(path) else open_analysis(path)


def save_analysis(analysis: Analysis, path: str | Path, *, overwrite: bool) -> Path:
    """Write an analysis to a Zarr folder; an older one is replaced only if asked for, and only by a whole one."""
    target = Path(path)
    ours = (target / SEAL).exists() or "normlens" in attributes_of(target)
    check_replaced(target, "a saved analysis", overwrite=overwrite, ours=ours)
    with atomic_folder(target) as draft:
        _write(analysis, draft)
    return target


def open_analysis(path: str | Path) -> Analysis:
    """The analysis that `save` wrote to this folder."""
    folder = Path(path)
    tree = read_tree(folder, "a saved analysis")
    try:
        record = json.loads(tree.attrs.get("normlens", "{}"))
        if record.get("format") != _FORMAT:
            raise InputError(
                f"{folder} has format {record.get('format')}, this version reads {_FORMAT}; update normlens?"
            )
        sites = {kind: _labelled(tree, kind, labels) for kind, labels in record["tokens"].items()}
        return Analysis(sites, dict(record["provenance"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{folder} lacks its sites or tokens ({error}); make it again") from error


def _labelled(tree: xr.DataTree, kind: str, labels: Mapping[str, Sequence[str]]) -> xr.Dataset:
    node = tree[kind]
    if not isinstance(node, xr.DataTree):
        raise TypeError(f"{kind} is no site")
    strings = {}
    for name, values in labels.items():
        axis, _, kind = name.partition("_")
        strings[f"{axis}_{kind or 'token'}"] = (axis, np.array(values, dtype=object))
    return node.to_dataset(inherit=False).assign_coords(strings)


def _write(analysis: Analysis, folder: Path) -> None:
    # Token strings stand in the record, not in arrays: Zarr has no settled type for strings of any length.
    labels = {}
    for kind, dataset in analysis.sites.items():
        strings = {str(name): c.values.tolist() for name, c in dataset.coords.items() if c.dtype == object}
        labels[kind] = {name.removesuffix("_token"): values for name, values in strings.items()}
    record = {"format": _FORMAT, "provenance": dict(analysis.provenance), "tokens": labels}
    plain = {}
    for kind, dataset in analysis.sites.items():
        plain[kind] = dataset.drop_vars([name for name, c in dataset.coords.items() if c.dtype == object])
    tree = xr.DataTree.from_dict({f"/{kind}": dataset for kind, dataset in plain.items()})
    tree.attrs["normlens"] = json.dumps(record, ensure_ascii=False)
    write_tree(tree, folder)
