"""What `Analysis` and `Explanation` share: sites by their kind, tidy tables, and a line on where numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pandas as pd
import xarray as xr

from normlens.errors import InputError
from normlens.types import JsonMapping

if TYPE_CHECKING:
    import polars

#: The columns of tidy tables, in their order, and those of them that are whole numbers.
_COLUMNS = (
    "site", "measure", "part", "step", "layer", "block", "head", "query", "query_token", "key", "key_token", "value",
)  # fmt: skip
_WHOLE = ("step", "layer", "head", "query", "key")


class Site(Protocol):
    """The results of one kind of site."""

    def __getitem__(self, name: str) -> xr.DataArray: ...


S = TypeVar("S", bound=Site)


class Result(Generic[S]):
    """A frozen result with one or several kinds of site."""

    sites: Mapping[str, Any]
    provenance: JsonMapping

    def site(self, kind: str) -> S:
        """Return the results of one kind of site."""
        raise NotImplementedError

    def to_frame(self, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return a tidy table with one row per number."""
        raise NotImplementedError

    def _checked_kind(self, kind: str) -> str:
        if kind not in self.sites:
            raise InputError(f"site must be one of {', '.join(self.sites)} for this model, got {kind!r}")
        return kind

    @property
    def _only(self) -> S:
        """The one kind of site that most models have."""
        if len(self.sites) != 1:
            raise InputError(
                f"this model has several kinds of site ({', '.join(self.sites)}); choose one, as in "
                f"result.site({list(self.sites)[-1]!r})[name]"
            )
        return self.site(next(iter(self.sites)))

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return an array by its name, for models with one kind of site."""
        return self._only[name]

    def to_polars(self, names: Sequence[str] | None = None) -> polars.DataFrame:
        """Return the table of `to_frame` as a polars DataFrame; needs polars and pyarrow."""
        import polars

        return polars.from_pandas(self.to_frame(names))

    def _model_line(self, settings: str) -> str:
        """Model, settings and versions in one line."""
        model, versions = self.provenance.get("model", {}), self.provenance.get("versions", {})
        return (
            f"{model.get('name', '?')} ({model.get('family', '?')}, {model.get('dtype', '?')}){settings} · normlens "
            f"{versions.get('normlens', '?')}, transformers {versions.get('transformers', '?')}, torch "
            f"{versions.get('torch', '?')}"
        )


def array_rows(array: xr.DataArray, **labels: str) -> pd.DataFrame:
    """Return the numbers of an array as rows, with columns of labels in front."""
    if array.ndim:
        frame = array.to_dataframe(name="value").reset_index()
    else:
        frame = pd.DataFrame({"value": [float(array)]})
    return frame.assign(**labels)


def tidy(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return one table of rows, its columns in the usual order."""
    table = pd.concat(frames, ignore_index=True)
    for column in _WHOLE:
        if column in table:
            table[column] = table[column].astype("Int64")
    return table[[column for column in _COLUMNS if column in table]]
