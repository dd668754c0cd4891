"""Labelled arrays as a Zarr folder that notices damage, and that is looked through before any of it is believed.

Zarr takes a missing chunk for one that holds nothing but fill values, and makes room for whatever shape a file declares. So
every chunk is written, all files are listed with their digests, and a folder is opened only if its arrays are numbers in
chunks that are all there.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import xarray as xr

from normlens.errors import InputError
from normlens.io.checksums import SEAL, read_json, verify_checksums, write_checksums
from normlens.io.remote import first_line
from normlens.io.writing import refuse_existing
from normlens.types import Json

_METADATA = "zarr.json"
_ORDER = "order"  # the attribute that says in which order a folder's arrays were written
_ITEM_SIZE = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
_CODECS = {"bytes", "zstd"}
_LARGEST_CHUNK = 1 << 30  # bytes


def write_tree(tree: xr.DataTree, folder: Path) -> None:
    """Write a tree of numeric arrays to a new folder, and the list of its files."""
    import zarr

    tree.attrs[_ORDER] = json.dumps({node.path: [*map(str, node.data_vars)] for node in tree.subtree})
    with zarr.config.set({"array.write_empty_chunks": True}):
        tree.to_zarr(folder, mode="w", consolidated=False, zarr_format=3)
    write_checksums(folder)


def read_tree(folder: Path, what: str) -> xr.DataTree:
    """Read a tree into memory; `what` names it in an error: `a saved analysis`."""
    if not (folder / _METADATA).is_file():
        raise InputError(f"{folder} is not {what}; check the path")
    verify_checksums(folder, what)
    for path in sorted(folder.rglob(_METADATA)):
        _check_node(path, what)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Object at .* is not recognized as a component of a Zarr")
            with xr.open_datatree(folder, engine="zarr", consolidated=False) as tree:
                return _in_order(tree.load())
    except Exception as error:  # what a stranger's file may raise in two libraries is not ours to list
        raise InputError(f"{folder} ({what}) cannot be read ({first_line(error)}); make it again") from error


def _in_order(tree: xr.DataTree) -> xr.DataTree:
    """The arrays as they were written: Zarr lists them in any order, and older folders have them by name."""
    order = json.loads(tree.attrs.pop(_ORDER, "{}"))
    for node in tree.subtree:
        dataset, first = node.to_dataset(inherit=False), {name: n for n, name in enumerate(order.get(node.path, []))}
        names = sorted(dataset.data_vars, key=lambda name: (first.get(name, len(first)), str(name)))
        node.dataset = xr.Dataset({name: dataset[name].variable for name in names}, dataset.coords, dataset.attrs)
    return tree


def check_replaced(folder: Path, what: str, *, overwrite: bool, ours: bool) -> None:
    """Refuse to replace a result that nobody said to replace, and anything that is none; `what`: `a saved analysis`."""
    if not overwrite:
        refuse_existing(folder, "pass overwrite=True to replace it")
    elif folder.exists() and not ours:
        raise InputError(f"{folder} is not {what}, and nothing else is replaced; choose another path")


def attributes_of(folder: str | Path) -> Json:
    """The attributes of a Zarr folder, without opening it; nothing where it is none."""
    try:
        found = read_json(Path(folder) / _METADATA, "the description of a Zarr folder").get("attributes")
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _check_node(path: Path, what: str) -> None:
    node = read_json(path, f"the description of {what}")
    if node.get("node_type") == "group":
        return
    try:
        chunks, size = _chunks(node)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path} ({what}) describes no array of numbers ({error})") from error
    if size > _LARGEST_CHUNK:
        raise InputError(
            f"{path} declares chunks of {size} bytes, {what} has at most {_LARGEST_CHUNK}; was it written by normlens?"
        )
    found = sum(1 for file in path.parent.rglob("*") if file.is_file() and file.name not in (_METADATA, SEAL))
    if chunks != found:
        raise InputError(
            f"{path} declares {chunks} chunks, and {found} are there, so {what} is incomplete; make it again"
        )


def _chunks(node: Json) -> tuple[int, int]:
    """The number of chunks of an array, and the bytes of each."""
    shape, chunk = node["shape"], node["chunk_grid"]["configuration"]["chunk_shape"]
    if not all(type(n) is int and n >= 0 for n in shape) or not all(type(n) is int and n > 0 for n in chunk):
        raise ValueError("a shape consists of whole numbers")
    if unknown := {codec["name"] for codec in node["codecs"]} - _CODECS:
        raise ValueError(f"its codec is {', '.join(sorted(map(str, unknown)))}")
    if node["data_type"] not in _ITEM_SIZE:
        raise ValueError(f"its type is {str(node['data_type'])[:50]}")
    count = math.prod(-(-n // m) for n, m in zip(shape, chunk, strict=True))
    return count, math.prod(chunk) * _ITEM_SIZE[node["data_type"]]
