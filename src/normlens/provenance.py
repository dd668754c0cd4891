"""Where a result comes from: model, content, settings, versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection, Iterator
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

#: A tensor's content is laid out in squares with sides of so many 64-bit pieces: half a megabyte, which a cache holds.
_SIDE = 256


@cache
def version_of(package: str) -> str:
    """The installed version of a package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "uninstalled"


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    packages = ("normlens", "torch", "transformers")
    return {**{package: version_of(package) for package in packages}, "python": platform.python_version()}


def content_hash(model: nn.Module) -> str:
    """A hash over names, shapes and numbers of all parameters and buffers: equal weights, equal hash.

    The bytes of each tensor are laid out in squares of 64-bit integers, whose rows and columns are added up where the model
    is; the sums are hashed. No number can change without its sums, and two that change places are in another row or column.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        digest.update(f"{name} {tuple(state[name].shape)} {state[name].dtype}".encode())
        tensor = state[name].detach()
        # On a CPU one by one: a square is still in the cache when it is added up the second time.
        for part in _sums(tensor, one_by_one=tensor.device.type == "cpu"):
            digest.update(part.cpu().numpy().data)
    return f"blake2b-squares:{digest.hexdigest()}"


def _sums(tensor: Tensor, *, one_by_one: bool) -> Iterator[Tensor]:
    """The sums over the rows and columns of each square and of what is left, and the bytes that fill no whole row."""
    import torch

    flat = tensor.contiguous().flatten()
    if flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()
    content = flat.view(torch.uint8)
    rows = content.numel() // (8 * _SIDE)
    if rows:
        laid_out = content[: 8 * _SIDE * rows].view(torch.int64).view(rows, _SIDE)
        whole, rest = laid_out.split([rows // _SIDE * _SIDE, rows % _SIDE])
        squares = whole.view(-1, _SIDE, _SIDE)
        for part in (*(squares if one_by_one else [squares]), rest):
            yield torch.cat([part.sum(-1), part.sum(-2)], -1).flatten()
    yield content[8 * _SIDE * rows :]


def describe_model(model: nn.Module, name: str | None, family: str) -> dict[str, Any]:
    """What identifies a model in a record."""
    config = getattr(model, "config", None)
    return {
        "name": name or getattr(config, "_name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "family": family,
        "revision": getattr(config, "_commit_hash", None),
        "content": content_hash(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


#: The papers that the measures come from.
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
    "abnar2020": """@inproceedings{abnar-zuidema-2020-quantifying,
  title = {Quantifying Attention Flow in Transformers},
  author = {Abnar, Samira and Zuidema, Willem},
  booktitle = {Proceedings of the 58th Annual Meeting of the Association for Computational Linguistics (ACL)},
  year = {2020},
  pages = {4190--4197},
}""",
    "modarressi2022": """@inproceedings{modarressi-etal-2022-globenc,
  title = {{GlobEnc}: Quantifying Global Token Attribution by Incorporating the Whole Encoder Layer in Transformers},
  author = {Modarressi, Ali and Fayyaz, Mohsen and Yaghoobzadeh, Yadollah and Pilehvar, Mohammad Taher},
  booktitle = {Proceedings of the 2022 Conference of the North American Chapter of the ACL (NAACL)},
  year = {2022},
  pages = {258--271},
}""",
    "ferrando2022": """@inproceedings{ferrando-etal-2022-measuring,
  title = {Measuring the Mixing of Contextual Information in the Transformer},
  author = {Ferrando, Javier and G{\\'a}llego, Gerard I. and Costa-juss{\\`a}, Marta R.},
  booktitle = {Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2022},
  pages = {8698--8714},
}""",
    "mohebbi2023": """@inproceedings{mohebbi-etal-2023-quantifying,
  title = {Quantifying Context Mixing in Transformers},
  author = {Mohebbi, Hosein and Zuidema, Willem and Chrupa{\\l}a, Grzegorz and Alishahi, Afra},
  booktitle = {Proceedings of the 17th Conference of the European Chapter of the ACL (EACL)},
  year = {2023},
  pages = {3378--3400},
}""",
    "modarressi2023": """@inproceedings{modarressi-etal-2023-decompx,
  title = {{DecompX}: Explaining Transformers Decisions by Propagating Token Decomposition},
  author = {Modarressi, Ali and Fayyaz, Mohsen and Aghazadeh, Ehsan and Yaghoobzadeh, Yadollah and Pilehvar, Mohammad Taher},
  booktitle = {Proceedings of the 61st Annual Meeting of the Association for Computational Linguistics (ACL)},
  year = {2023},
  pages = {2649--2664},
}""",
    "kobayashi2024": """@inproceedings{kobayashi-etal-2024-analyzing,
  title = {Analyzing Feed-Forward Blocks in Transformers through the Lens of Attention Maps},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {The Twelfth International Conference on Learning Representations (ICLR)},
  year = {2024},
}""",
}


def references(papers: Collection[str]) -> str:
    """BibTeX entries of these papers, oldest first."""
    return "\n\n".join(entry for key, entry in _BIBTEX.items() if key in papers)
