"""One draw: a model, a few inputs for it one after the other, and the verdict on each answer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from normlens import Lens
from normlens.errors import NormlensError
from tests.adversary import inputs as odd
from tests.adversary.families import VOCABULARY, odd_family
from tests.adversary.models import VOCABULARY as OWN_VOCABULARY
from tests.adversary.models import OddModel, odd_model
from tests.reference.blocks import Array, Attention, blocks
from tests.reference.compare import disagreements
from tests.test_lens import snapshot

#: By dtype of the model: how far an answer may be from the reference, as a share of the largest entry.
TOLERANCE = {torch.float32: 2e-4, torch.float64: 2e-5}


@dataclass
class Verdict:
    """What became of one answer: `equal`, `refused`, or a mistake (`wrong`, `foreign`, `side effect`)."""

    seed: int
    status: str
    what: str = ""

    @property
    def bad(self) -> bool:
        return self.status not in ("equal", "refused")

    def __str__(self) -> str:
        return f"draw({self.seed}): {self.status}: {self.what}"


@dataclass
class Case:
    """A model under attack: how inputs are drawn for it, and how the reference sees it."""

    model: nn.Module
    about: str
    inputs: Callable[[], odd.Inputs]
    reference: Callable[[odd.Inputs], list[Attention]]
    lens: Lens = field(init=False)

    def __post_init__(self) -> None:
        self.lens = Lens(self.model)


def draw(seed: int) -> list[Verdict]:
    """All verdicts of one draw."""
    random = Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = _own(random) if random.random() < 0.6 else _family(random)
        verdicts = []
        for n in range(random.choice((1, 2, 3))):
            if n and random.random() < 0.4:
                _disturb(random, case)
            verdicts.append(_verdict(seed, case, case.inputs()))
    return verdicts


def _verdict(seed: int, case: Case, inputs: odd.Inputs) -> Verdict:
    shapes = {name: f"{tuple(v.shape)} {v.dtype}" if isinstance(v, Tensor) else v for name, v in inputs.items()}
    about = f"{case.about} on {shapes}"
    dtype = next(case.model.parameters()).dtype
    before, drawn, given = snapshot(case.model), torch.get_rng_state(), copy.deepcopy(inputs)
    precision: Any = "float64" if dtype == torch.float64 else "float32"
    status, what = "equal", about
    analyses: list[Any] = []
    try:
        analyses = case.lens.analyze_inputs(inputs, precision=precision)
    except NormlensError as error:
        status, what = "refused", f"{type(error).__name__}: {error}; {about}"
        if "\n" in str(error):
            status, what = "foreign", f"more than one line: {error}; {about}"
    except Exception as error:
        status, what = "foreign", f"{type(error).__name__}: {error}; {about}"
    same = all(not isinstance(v, Tensor) or torch.equal(v, given[name]) for name, v in inputs.items())
    if snapshot(case.model) != before or not torch.equal(torch.get_rng_state(), drawn) or not same:
        return Verdict(seed, "side effect", about)
    if not analyses:
        return Verdict(seed, status, what)
    found = disagreements(analyses, case.reference(inputs), _real(inputs), TOLERANCE[dtype])
    return Verdict(seed, "wrong", f"{found[:4]}; {about}") if found else Verdict(seed, status, what)


def _real(inputs: odd.Inputs) -> dict[str, Array]:
    """Which positions count, by side."""
    found = {}
    for side, name in (("source", "attention_mask"), ("target", "decoder_attention_mask")):
        mask = inputs.get(name)
        if isinstance(mask, Tensor) and mask.ndim == 2:
            found[side] = mask.bool().numpy()
    if "source" in found:
        two_sided = "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs
        found["looked at" if two_sided else "target"] = found["source"]
    return found


# ---- models of the adversary's own ----------------------------------------------------------------------------------


def _own(random: Random) -> Case:
    model = odd_model(random)
    about = str(model.recipe)
    if random.random() < 0.15:
        _adapt(
            random, model, [name for name in ("qkv", "v", "o") if any(n.endswith(f".{name}") for n, _ in _named(model))]
        )
        about += " with adapters"
    if random.random() < 0.25:
        about += f" with a hook: {_hook(random, model)}"
    if random.random() < 0.2:
        model = model.double()
    if random.random() < 0.2:
        model.train()
    return Case(model, about, lambda: _own_inputs(random, model), lambda inputs: _own_reference(model, inputs))


def _named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(model.named_modules())


def _own_inputs(random: Random, model: OddModel) -> odd.Inputs:
    r, dtype = model.recipe, next(model.parameters()).dtype
    rows = random.choice((1, 1, 2, 3))
    lengths = odd.lengths_of(random, rows)
    n = max(lengths)
    inputs: odd.Inputs = {}
    if random.random() < 0.7:
        inputs["input_ids"] = odd.ids_of(random, rows, n, OWN_VOCABULARY)
    else:
        inputs["vectors"] = odd.vectors_of(random, rows, n, r.width, dtype)
    if len(set(lengths)) > 1 or random.random() < 0.2:
        inputs["attention_mask"] = odd.dressed(random, odd.padding(random, lengths))
    elif random.random() < 0.4:
        shown = odd.pair_mask(random, rows, n)
        shown = shown.unsqueeze(1) if random.random() < 0.5 else shown
        inputs["pair_mask"] = shown if random.random() < 0.5 else odd.additive(shown, dtype, -1e4)
        inputs = dict(random.sample(list(inputs.items()), len(inputs)))
    if random.random() < 0.2:
        inputs["position_ids"] = torch.randint(0, 20, (random.choice((1, rows)), n), generator=_generator(random))
    if r.cross:
        inputs["memory"] = odd.vectors_of(random, rows, random.choice((n, n, 4)), r.width, dtype)
    return inputs


def _generator(random: Random) -> torch.Generator:
    return torch.Generator().manual_seed(random.randrange(2**31))


def _own_reference(model: OddModel, inputs: odd.Inputs) -> list[Attention]:
    """The model itself in float64, with what it writes down; kinds and layers from the recipe."""
    double = copy.deepcopy(model).double().eval()
    given = {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in inputs.items()}
    record: list[Attention] = []
    with torch.no_grad():
        double(**given, record=record)
    per_layer = 2 if model.recipe.cross else 1
    own = "decoder" if model.recipe.cross or _looks_back(model, inputs, record) else "encoder"
    return [
        replace(block, kind="cross" if block.kind == "cross" else own, layer=n // per_layer + 1)
        for n, block in enumerate(record)
    ]


def _looks_back(model: OddModel, inputs: odd.Inputs, record: list[Attention]) -> bool:
    """A model that is not causal is still called so where it was read under a mask that hides every later position."""
    if model.recipe.causal:
        return True
    mask = inputs.get("pair_mask")
    ahead = record[0].alpha[:1].copy()
    for i in range(ahead.shape[2]):
        ahead[:, :, i, : i + 1] = 0
    return (mask is not None or model.recipe.window == 0) and not ahead.any()


# ---- families of transformers ---------------------------------------------------------------------------------------


def _family(random: Random) -> Case:
    family, model = odd_family(random)
    about = f"{family} {model.config._attn_implementation} {model.config.to_diff_dict()}"  # type: ignore[union-attr, operator]
    if random.random() < 0.2:
        _adapt(random, model, ADAPTED[family])
        about += " with adapters"
    if random.random() < 0.15:
        about += f" with a hook: {_hook(random, model)}"
    if random.random() < 0.15:
        model = model.double()
    if random.random() < 0.2:
        model.train()
    return Case(
        model,
        about,
        lambda: _family_inputs(random, family, model),
        lambda inputs: _family_reference(family, model, inputs),
    )


ADAPTED = {
    "bert": ["value", "dense"],
    "roberta": ["query", "value"],
    "distilbert": ["v_lin", "out_lin"],
    "albert": ["value"],
    "gpt2": ["c_attn", "c_proj"],
    "llama": ["v_proj", "o_proj"],
    "gemma2": ["v_proj", "o_proj"],
    "t5": ["v", "o"],
    "marian": ["v_proj", "out_proj"],
}


def _family_inputs(random: Random, family: str, model: Any) -> odd.Inputs:
    rows = random.choice((1, 2, 3))
    inputs = _side(random, model, rows, "", causal=family in ("gpt2", "llama", "gemma2"))
    if family in ("t5", "marian"):
        while "attention_mask" in inputs and inputs["attention_mask"].ndim != 2:
            inputs = _side(random, model, rows, "", causal=False)
        target = _side(random, model, rows, "decoder_", causal=True)
        while "decoder_attention_mask" in target and target["decoder_attention_mask"].ndim != 2:
            target = _side(random, model, rows, "decoder_", causal=True)
        inputs |= target
    elif random.random() < 0.15:
        n = next(v.shape[1] for name, v in inputs.items() if name in ("input_ids", "inputs_embeds"))
        if family != "distilbert":
            inputs["position_ids"] = torch.randint(2, 20, (rows, n), generator=_generator(random))
    if random.random() < 0.2 and family in ("gpt2", "llama", "gemma2", "t5", "marian"):
        inputs["use_cache"] = random.random() < 0.5
    return inputs


def _side(random: Random, model: Any, rows: int, prefix: str, causal: bool) -> odd.Inputs:
    lengths = odd.lengths_of(random, rows)
    n, dtype = max(lengths), next(model.parameters()).dtype
    inputs: odd.Inputs = {}
    if random.random() < 0.7:
        inputs[f"{prefix}input_ids"] = odd.ids_of(random, rows, n, VOCABULARY)
    else:
        width = model.get_input_embeddings().weight.shape[1]
        inputs[f"{prefix}inputs_embeds"] = odd.vectors_of(random, rows, n, width, dtype)
    if len(set(lengths)) > 1 or random.random() < 0.3:
        inputs[f"{prefix}attention_mask"] = odd.dressed(random, odd.padding(random, lengths))
    elif random.random() < 0.4:
        shown = odd.pair_mask(random, rows, n).unsqueeze(1)
        shown = shown & torch.ones(n, n, dtype=torch.bool).tril() if causal else shown
        how = random.choice(("boolean", "added", "one for all", "by head", "infinity"))
        lowest = -torch.inf if how == "infinity" else torch.finfo(dtype).min
        mask = shown if how == "boolean" else odd.additive(shown, dtype, lowest)
        mask = mask[:1] if how == "one for all" else mask
        inputs[f"{prefix}attention_mask"] = mask.contiguous()
    return inputs


def _family_reference(family: str, model: Any, inputs: odd.Inputs) -> list[Attention]:
    """By the readers of the reference; masks in the words that eager attention understands."""
    plain = copy.deepcopy(model)
    while hasattr(plain, "merge_and_unload"):
        plain = plain.merge_and_unload()
    given = dict(inputs)
    mask = given.get("attention_mask")
    eager = model.config._attn_implementation == "eager"
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.dtype == torch.bool and not eager:
        given["attention_mask"] = odd.additive(mask, next(model.parameters()).dtype, -1e9)
    return blocks(family, _merged(plain), given)


# ---- what is done to models -----------------------------------------------------------------------------------------


def _adapt(random: Random, model: nn.Module, targets: list[str]) -> None:
    import peft

    torch.manual_seed(random.randrange(2**31))
    settings = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    peft.inject_adapter_in_model(settings, model)
    model.eval()


def _merged(model: nn.Module) -> nn.Module:
    """The same model without adapters around its linear maps."""
    for path, module in list(model.named_modules()):
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            module.merge()
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, module.base_layer)
    return model


def _hook(random: Random, model: nn.Module) -> str:
    """A hook of the user's that changes what a module gives."""
    named = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding)
        and not {"base_layer", "lora_A", "lora_B"} & set(path.split("."))  # which the reference merges away
    ]
    path, module = random.choice(named)
    factor = random.choice((0.5, 2.0))
    module.register_forward_hook(lambda module, args, output: output * factor)
    return f"{path} times {factor}"


def _disturb(random: Random, case: Case) -> None:
    """Something changes between two calls of the same lens."""
    model: Any = case.model
    how = random.choice(("numbers", "hook", "mode", "implementation", "dtype"))
    case.about += f", then {how}"
    if how == "numbers":
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data.mul_(1.01).add_(0.01)
    elif how == "hook":
        case.about += f" {_hook(random, model)}"
    elif how == "mode":
        model.train(not model.training)
    elif how == "implementation" and hasattr(model, "set_attn_implementation") and model.config.model_type != "gemma2":
        model.set_attn_implementation(random.choice(("eager", "sdpa")))
    elif how == "dtype":
        model.double()
