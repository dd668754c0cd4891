"""From an Analysis to the page's document: its text as title, its record made flat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import xarray as xr

from normlens.viewer.payload import payload
from normlens.viewer.text import is_special, readable, word_ids

if TYPE_CHECKING:
    from normlens.analysis import Analysis


def document(analysis: Analysis, *, span: tuple[int, int] | None = None, heads: bool | None = None) -> dict[str, Any]:
    """The page's data for an analysis; `span` and `heads` as in `payload`."""
    return payload(analysis.sites, title=title(analysis.sites), provenance=record(analysis), span=span, heads=heads)


def title(sites: Mapping[str, xr.Dataset]) -> str:
    """The analysed text, put together again from its tokens; with a target, `source → target`."""
    if "cross" in sites:
        return " → ".join(sentence(sites["cross"][f"{axis}_token"].values) for axis in ("key", "query"))
    return sentence(next(iter(sites.values()))["query_token"].values)


def sentence(tokens: Iterable[Any]) -> str:
    """Tokens as a sentence, special tokens left out.

    >>> sentence(["[CLS]", "the", "gal", "##lon", "[SEP]"]), sentence(["▁Bon", "jour", ".", "</s>"])
    ('the gallon', 'Bonjour.')
    """
    strings = [str(token) for token in tokens]
    words: list[str] = []
    previous: int | None = None
    for token, text, word in zip(strings, readable(strings), word_ids(strings), strict=True):
        if is_special(token):
            previous = None
            continue
        if words and word is not None and word == previous:
            words[-1] += text
        else:
            words.append(text)
        previous = word
    return " ".join(words)


def record(analysis: Analysis) -> dict[str, Any]:
    """Where the numbers come from, one line for each thing a reader asks."""
    provenance = dict(analysis.provenance)
    model = dict(provenance.pop("model", {}))
    versions = dict(provenance.pop("versions", {}))
    flat = {"model": model.pop("name", "?"), **model, "largest proof error": f"{analysis.worst_proof:.1e}", **versions}
    return flat | {name: value for name, value in provenance.items() if value is not None}
