"""The papers behind the measures."""

from __future__ import annotations

from collections.abc import Collection

_BIBTEX = {
    "kobayashi2020": """@inproceedings{kobayashi-etal-2020-attention,
  title = {Attention is Not Only a Weight: Analyzing Transformers with Vector Norms},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of the 2020 Conference on Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2020},
  pages = {7057--7075},
}""",
    "kobayashi2021": """@inproceedings{kobayashi-etal-2021-incorporating,
  title = {Incorporating Residual and Normalization Layers into Analysis of Masked Language Models},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2021},
  pages = {4547--4568},
}""",
}


def references(papers: Collection[str]) -> str:
    """BibTeX entries of these papers, oldest first."""
    return "\n\n".join(entry for key, entry in _BIBTEX.items() if key in papers)
