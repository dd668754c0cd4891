"""Inputs on which numbers coincide: ids that are positions, texts as long as the model is wide, as many rows as tokens.

Every draw is judged by laws that need no other implementation. Tokens that are renamed (rows of the tables permuted, ids
renamed with them), padded by one position, explained alone instead of in a batch, while another thread calls the model, or
with an adapter merged into the weights, give the same terms; and the explained number is the model's own.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normlens import Explanation, Lens
from normlens.errors import InputError, NormlensError
from normlens.families.tiny import tiny_model

#: Families whose code gives no id a meaning of its own, so that tokens may be renamed.
ENCODERS = ("bert", "electra", "mobilebert", "squeezebert")
DECODERS = ("gpt2", "llama", "opt", "bloom", "gemma3_text", "gemma3n_text", "qwen3", "xlnet", "gpt_neox")
TWO_SIDED = ("t5", "marian", "mbart")
#: Adapters of PEFT by their configuration; those of the second row add positions of their own and cannot be merged.
ADAPTERS: dict[str, dict[str, Any]] = {
    "LoraConfig": {"r": 2, "init_lora_weights": False},
    "LoraConfig dora": {"r": 2, "init_lora_weights": False, "use_dora": True},
    "LoraConfig rslora": {"r": 2, "init_lora_weights": False, "use_rslora": True},
    "IA3Config": {"feedforward_modules": [], "init_ia3_weights": False},
    "LoHaConfig": {"r": 2, "init_weights": False},
    "LoKrConfig": {"r": 2, "init_weights": False},
    "OFTConfig": {"r": 0, "oft_block_size": 4, "init_weights": False},
    "VeraConfig": {"r": 2, "init_weights": False},
    "AdaLoraConfig": {"init_r": 2, "total_step": 10, "init_lora_weights": False},
    "PromptTuningConfig": {"num_virtual_tokens": 2},
    "PrefixTuningConfig": {"num_virtual_tokens": 2},
    "PromptEncoderConfig": {"num_virtual_tokens": 2, "encoder_hidden_size": 8},
}
_PARTS = ["states", "heads", "blocks", "direct", "biases"]


@dataclass(frozen=True)
class Case:
    """One question to one model."""

    seed: int
    family: str
    inputs: dict[str, Tensor]
    position: int
    output: int
    options: dict[str, str]

    def __str__(self) -> str:
        shapes = {name: tuple(value.shape) for name, value in self.inputs.items()}
        return f"seed {self.seed}: {self.family} on {shapes}, position {self.position}, {self.options}"


def draw_case(seed: int) -> tuple[Case, nn.Module]:
    """A family, and inputs on which something coincides."""
    random = Random(f"coincidence {seed}")
    family = random.choice((*ENCODERS, *DECODERS, *TWO_SIDED))
    model = tiny_model(family, seed=seed).double().eval()
    model.set_attn_implementation(random.choice(("eager", "sdpa")) if family not in ("xlnet",) else "eager")
    config = model.config
    width = getattr(config, "hidden_size", getattr(config, "d_model", 32))
    heads = config.num_attention_heads
    length = random.choice((1, 2, heads, width, random.randint(3, 9)))
    rows = random.choice((1, 1, 1, length if length <= 6 else 2))
    vocabulary = min(config.vocab_size, 40)
    kinds: dict[str, Callable[[int], list[int]]] = {
        "positions": lambda n: [i % vocabulary for i in range(n)],
        "one": lambda n: [random.randrange(2)] * n,
        "any": lambda n: [random.randrange(vocabulary) for _ in range(n)],
    }
    ids = [random.choice(list(kinds.values()))(length) for _ in range(rows)]
    inputs = {"input_ids": torch.tensor(ids)}
    last = length
    if family in TWO_SIDED:
        last = random.choice((length, random.randint(1, 6)))
        same = last == length and random.random() < 0.5
        other = ids if same else [kinds["any"](last) for _ in range(rows)]
        inputs["decoder_input_ids"] = torch.tensor(other)
    if random.random() < 0.5:
        inputs = dict(reversed(inputs.items()))
    if family in ("bert", "electra", "mobilebert") and random.random() < 0.5:
        inputs["token_type_ids"] = torch.randint(0, 2, (rows, length), generator=torch.Generator().manual_seed(seed))
    options = {
        "baseline": random.choice(("mean", "mean", "zero")),
        "attention": random.choice(("fixed", "fixed", "integrated")),
    }
    return Case(seed, family, inputs, random.randrange(last), random.randrange(vocabulary), options), model


def explained(model: nn.Module, case: Case) -> list[Explanation]:
    """The answer of normlens, with all parts that this family has."""
    asked: dict[str, Any] = {"output": case.output, "position": case.position, **case.options}
    try:
        return Lens(model).explain_inputs(case.inputs, parts=["tokens", *_PARTS], **asked)
    except InputError:  # a part that this family does not have is refused by name
        return Lens(model).explain_inputs(case.inputs, **asked)


def renamed(case: Case, model: nn.Module) -> tuple[Case, nn.Module]:
    """The same model and case with every token under another number."""
    model = copy.deepcopy(model)
    size = model.config.vocab_size
    order = torch.randperm(size, generator=torch.Generator().manual_seed(case.seed + 1))  # new number of each token
    tables = {id(table.weight): table.weight for table in _tables(model)}  # encoder and decoder may share one
    for weight in tables.values():
        rows = min(size, len(weight))
        changed = weight.data.clone()
        changed[order[:rows]] = weight.data[:rows]
        weight.data = changed
    inputs = {n: order[x] if n.endswith("input_ids") else x for n, x in case.inputs.items()}
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    output = int(order[case.output]) if id(head.weight) in tables else case.output
    return replace(case, inputs=inputs, output=output), model


def _tables(model: nn.Module) -> Iterator[nn.Embedding]:
    """The tables that token ids index."""
    for name, module in model.named_modules():
        words = ("word_embedding", "embed_tokens", "wte", "embed_in", "shared", "tok_embeddings")
        if isinstance(module, nn.Embedding) and any(word in name.rpartition(".")[2] for word in words):
            yield module


def padded(case: Case) -> Case:
    """The same case with one position of padding after the last."""
    inputs: dict[str, Tensor] = {}
    for name, value in case.inputs.items():
        inputs[name] = torch.cat([value, value[:, :1]], 1)
        if name.endswith("input_ids"):
            mask = torch.ones_like(inputs[name])
            mask[:, -1] = 0
            inputs[name.replace("input_ids", "attention_mask")] = mask
    return replace(case, inputs=inputs)


def differences(one: Explanation, two: Explanation, names: tuple[str, ...] = ("tokens",)) -> list[str]:
    """Arrays of two explanations that are not the same numbers."""
    found = []
    for site, arrays in one.sites.items():
        for name in names:
            if name in arrays and name in two.sites[site]:
                a, b = arrays[name].values, two.sites[site][name].values
                scale = max(1e-3, float(np.abs(arrays["tokens"].values).max()) if "tokens" in arrays else 1.0)
                if a.shape != b.shape or not np.abs(a - b).max(initial=0.0) <= 1e-6 * scale:
                    found.append(f"{site} {name}: {a.ravel()[:4]} and {b.ravel()[:4]}")
    return found


@contextmanager
def called_meanwhile(model: nn.Module, inputs: dict[str, Tensor]) -> Iterator[None]:
    """Another thread that goes on calling the model, with gradients and without."""
    stop, failures = threading.Event(), []

    def call() -> None:
        grad = False
        while not stop.is_set():
            grad = not grad
            try:
                with torch.set_grad_enabled(grad):
                    model(**inputs)
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, f"the user's own call failed: {failures[0]!r}"


def judge(seed: int) -> str:
    """`equal`, `refused`, or what is wrong with the explanation of one draw."""
    case, model = draw_case(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = explained(model, case)
        except NormlensError as error:
            return "refused" if "\n" not in str(error) else f"{case}: more than one line: {error}"
        wrong = _own_numbers(case, model, found)
        others: dict[str, list[Explanation]] = {}
        random = Random(f"law {seed}")
        with torch.no_grad():
            others["renamed"] = explained(*reversed(renamed(case, model)))
        if random.random() < 0.6 and case.family != "mobilebert":  # it mixes neighbours into its word vectors
            others["padded"] = explained(model, padded(case))
        if len(found) > 1:
            rows = [replace(case, inputs={n: x[i : i + 1] for n, x in case.inputs.items()}) for i in range(len(found))]
            others["alone"] = [explained(model, row)[0] for row in rows]
        if random.random() < 0.3:
            with called_meanwhile(model, {n: x[:1] for n, x in case.inputs.items()}):
                others["with another thread"] = explained(model, case)
        for law, again in others.items():
            for one, two in zip(found, again, strict=True):
                wrong += [f"{law}: {difference}" for difference in differences(one, two)]
    return f"{case}: {wrong[:3]}" if wrong else "equal"


def _own_numbers(case: Case, model: nn.Module, found: list[Explanation]) -> list[str]:
    with torch.no_grad():
        logits = model(**case.inputs).logits
    wrong = []
    for row, explanation in enumerate(found):
        own = float(logits[row, case.position, case.output])
        sides = [site for site in explanation.sites if site != "cross"]
        total = sum(float(explanation.site(s)[part].sum()) for s in sides for part in ("tokens", "biases"))
        for what, number in (("value", float(explanation.value)), ("sum of terms", total)):
            # Quadrature of integrated attention is exact to 1e-3 of the absolute terms.
            allowed = 2e-2 if case.options["attention"] == "integrated" else 1e-5
            if not abs(number - own) <= allowed * max(1.0, abs(own)):
                wrong.append(f"{what} {number:.6g}, the model has {own:.6g}")
    return wrong


def judge_adapter(seed: int) -> str:
    """An adapter of PEFT: the same terms as with the adapter merged into the weights; or refused."""
    import peft

    random = Random(f"adapter {seed}")
    family = random.choice(("llama", "gpt2", "t5", "bert"))
    kind = random.choice(list(ADAPTERS))
    model = tiny_model(family, seed=seed).double().eval()
    targets = {
        "llama": ["o_proj", "v_proj", "down_proj", "q_proj"], "gpt2": ["c_attn", "c_proj"], "t5": ["v", "o", "wo"],
        "bert": ["value", "dense"],
    }[family]  # fmt: skip
    settings = dict(ADAPTERS[kind])
    task = {"llama": "CAUSAL_LM", "gpt2": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM", "bert": None}[family]
    adds_positions = "num_virtual_tokens" in settings
    if not adds_positions:
        settings["target_modules"] = random.sample(targets, random.randint(1, len(targets)))
    if kind == "IA3Config":
        settings["feedforward_modules"] = [m for m in settings["target_modules"] if m in ("down_proj", "wo")]
    torch.manual_seed(seed)
    length = random.choice((2, 3, 4, 5))
    ids = {"input_ids": torch.randint(3, 40, (1, length))}
    if family == "t5":  # with virtual tokens, both sides may come out equally long
        ids["decoder_input_ids"] = torch.randint(3, 40, (1, random.choice((length, length + 2))))
    case = Case(seed, f"{family} with {kind}", ids, 1, 7, {"baseline": "mean", "attention": "fixed"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = getattr(peft, kind.split()[0])(task_type=task, **settings)
            adapted = peft.get_peft_model(model, config).double().eval()
        except (ValueError, TypeError, NotImplementedError, KeyError, AttributeError, ImportError) as error:
            return f"not to be had: {kind} on {family}: {error}"[:120]
        try:
            found = explained(adapted, case)
        except NormlensError as error:
            return "refused" if "\n" not in str(error) else f"{case}: more than one line: {error}"
        wrong = []
        with torch.no_grad():
            logits = adapted(**ids).logits
        if logits.shape[1] == ids.get("decoder_input_ids", ids["input_ids"]).shape[1]:
            wrong += _own_numbers(case, adapted, found)
        if not adds_positions:
            try:
                merged = copy.deepcopy(adapted).merge_and_unload()
            except (ValueError, NotImplementedError, AttributeError, TypeError):
                merged = None
            if merged is not None:
                names = ("tokens", *_PARTS)
                wrong += [f"merged: {x}" for x in differences(found[0], explained(merged, case)[0], names)]
    return f"{case}: {wrong[:3]}" if wrong else "equal"
