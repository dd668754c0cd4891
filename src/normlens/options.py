"""The values that named options may take, in Python and on the command line. Needs no torch."""

from __future__ import annotations

from typing import Literal

#: `analyze`: how a word's columns are added, and the dtype of the computation.
WordMode = Literal["norms", "vectors"]
Precision = Literal["float32", "float64"]

#: `explain`: attention weights held fixed, or integrated gradients of scores and values; what a term is measured from.
AttentionRule = Literal["fixed", "integrated"]
Baseline = Literal["mean", "zero"]
#: `explain`: the tower on to which terms of a language model's image or sound positions are carried.
Tower = Literal["vision", "audio"]

#: `align`: rows by the token that the decoder reads or writes; how layers, directions and links are combined.
Setting = Literal["awi", "awo"]
Combination = Literal["views", "mean"]
Extraction = Literal["argmax", "mutual", "share", "threshold"]
Joining = Literal["product", "sum"]
Symmetrization = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]
AnySymmetrization = Literal[
    "product", "sum", "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"
]

#: `project`: formats of marked text, pieces of an element, and the rule that finds words.
Markup = Literal["html", "xml", "markdown"]
DocumentFormat = Literal["xliff", "tmx", "html-document"]
MarkedFormat = Literal["html", "xml", "markdown", "json", "conll", "xliff", "tmx", "html-document"]
Pieces = Literal["one", "many"]
WordRule = Literal["text", "spaces"]

#: `corpus`: what an unreadable record does; formats of sources; engines.
OnError = Literal["stop", "skip"]
CorpusFormat = Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow", "dataset"]
EngineName = Literal["local", "pool", "ray"]

#: `faithful`: how tokens are removed.
Removal = Literal["delete", "mask", "zero"]

#: `reproduce`: where a paper's words and its authors' code disagree.
Definition = Literal["paper", "code"]
