"""Provenance: model, content, settings, versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from normlens.types import Json

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Bytes that are hashed at once.
_PIECE = 1 << 22


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
    """Return a SHA-256 hash over names, shapes, dtypes and bytes of all parameters and buffers.

    The bytes are hashed in pieces by several threads, and the digests of the pieces once more, in order.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    digest = hashlib.sha256()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for piece in threads.map(_piece_digest, _pieces(state)):
            digest.update(piece)
    return f"sha256-tree:{digest.hexdigest()}"


def _pieces(state: Mapping[str, Tensor]) -> Iterator[bytes | Tensor]:
    """Yield the description of each tensor, then its bytes, a few million at a time."""
    import torch

    for name in sorted(state):
        tensor = state[name].detach()
        yield f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode()
        if tensor.is_meta:  # it has no numbers
            continue
        if tensor.is_quantized:
            yield f"{tensor.qscheme()} {tensor.dequantize().double().flatten().tolist()}".encode()
            continue
        dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
        yield from dense.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).split(_PIECE)


def _piece_digest(piece: bytes | Tensor) -> bytes:
    content = piece if isinstance(piece, bytes) else piece.cpu().numpy().data
    return hashlib.sha256(content).digest()


def describe_model(model: nn.Module, name: str | None, family: str) -> Json:
    """The identity of a model for records."""
    config = getattr(model, "config", None)
    return {
        "name": name or getattr(config, "_name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "family": family,
        "revision": getattr(config, "_commit_hash", None),
        "content": content_hash(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


#: Parts of a tokenizer and of a configuration that change from call to call, or from machine to machine.
_TOKENIZER_STATE = ("truncation", "padding", "post_processor")
_CONFIG_STATE = ("_name_or_path", "_commit_hash", "transformers_version", "_attn_implementation")


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a SHA-256 hash of what a tokenizer does with a text: its vocabulary, merges and normalization."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
    else:
        content = {"vocabulary": tokenizer.get_vocab(), "settings": getattr(tokenizer, "init_kwargs", {})}
    for name in _TOKENIZER_STATE:
        content.pop(name, None)
    return _json_digest([type(tokenizer).__name__, getattr(tokenizer, "special_tokens_map", {}), content])


def config_digest(model: nn.Module) -> str:
    """Return a SHA-256 hash of a model's configuration: numbers of heads, activations, scales of positions and so on."""
    config = getattr(model, "config", None)
    content = {} if config is None else dict(config.to_dict())
    for name in _CONFIG_STATE:
        content.pop(name, None)
    return _json_digest(content)


def _json_digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


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
