"""One `open` for everything that normlens writes."""

from __future__ import annotations

from pathlib import Path

from normlens.analysis import Analysis, open_analysis
from normlens.corpus.result import CorpusResult, is_corpus, open_corpus


def open_result(path: str | Path) -> Analysis | CorpusResult:
    """What a folder holds: a saved analysis, or the results of a corpus run."""
    return open_corpus(path) if is_corpus(path) else open_analysis(path)
