"""Names for the types at the borders to untyped libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

#: Plain JSON values by name: records, manifests, documents of pages.
Json: TypeAlias = dict[str, Any]
#: Such a record that is only read.
JsonMapping: TypeAlias = Mapping[str, Any]
#: Keyword arguments of a function that somebody else wrote.
Kwargs: TypeAlias = dict[str, Any]
#: Options by name that are only read.
Options: TypeAlias = Mapping[str, Any]
#: The arguments of a model by name, as its user would pass them.
ModelInputs: TypeAlias = Mapping[str, Any]
