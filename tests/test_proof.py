"""A deliberately wrong anatomy, or a forward pass that is not the model's own, must be caught and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import normlens.anatomy.interface as interface
import normlens.measures.run as capturing
from normlens import Lens
from normlens.anatomy.description import Anatomy, LinearMap, Site, TensorRef
from normlens.anatomy.examine import examine
from normlens.decompose.block import Block
from normlens.decompose.steps import Normalization, Scaling
from normlens.errors import AnatomyError, DecompositionError
from normlens.measures.proof import Subject, check_output, prove_parts, prove_sums
from normlens.measures.request import Request
from tests import tiny

WRONG_LAYER = 2


def broken(family: str, kind: str, change: Callable[[Site], Site]) -> Lens:
    """A lens whose anatomy is wrong in one layer."""
    model = tiny.make(family)
    lens = Lens(model)
    right = lens.anatomy
    sites = [change(site) if (site.kind, site.layer) == (kind, WRONG_LAYER) else site for site in right.sites]
    lens.traced._anatomies[frozenset()] = Anatomy(right.family, tuple(sites))
    lens.traced.forget = lambda: None  # type: ignore[method-assign]  # else the second try would read it right
    return lens


def assert_caught(lens: Lens, family: str, kind: str) -> str:
    with pytest.raises((DecompositionError, AnatomyError)) as caught:
        lens.analyze_inputs(tiny.batch(family))
    message = str(caught.value)
    site = next(site for site in lens.anatomy.of(kind) if site.layer == WRONG_LAYER)
    for named in (repr(lens.anatomy.family), f"{kind} layer {WRONG_LAYER}", site.path):
        assert named in message, message
    return message


def shuffled_heads(site: Site) -> Site:
    matrix = site.projection.matrix()
    wrong = nn.Linear(*matrix.shape, bias=site.projection.bias() is not None)
    with torch.no_grad():
        wrong.weight.copy_(matrix.unflatten(0, (site.heads, -1)).flip(0).flatten(0, 1).T)
        if wrong.bias is not None:
            wrong.bias.copy_(site.projection.bias())
    return replace(site, projection=LinearMap(wrong, site.projection.path))


def without_bias(site: Site) -> Site:
    matrix = site.projection.matrix()
    wrong = nn.Linear(*matrix.shape, bias=False)
    with torch.no_grad():
        wrong.weight.copy_(matrix.T)
    return replace(site, projection=LinearMap(wrong, site.projection.path))


def on_norm(change: Callable[[Normalization], Normalization]) -> Callable[[Site], Site]:
    def changed(site: Site) -> Site:
        if site.norm is not None:
            return replace(site, norm=change(site.norm))
        return replace(
            site, branch=tuple(change(step) if isinstance(step, Normalization) else step for step in site.branch)
        )

    return changed


WRONG = {
    "heads in another order": ("bert", "encoder", shuffled_heads),
    "heads in another order, grouped": ("llama", "decoder", shuffled_heads),
    "output bias forgotten": ("gpt2", "decoder", without_bias),
    "gamma without its one": ("gemma2", "decoder", on_norm(lambda norm: replace(norm, offset=0.0))),
    "gamma with one too much": ("marian", "cross", on_norm(lambda norm: replace(norm, offset=1.0))),
    "mean not taken off": ("bert", "encoder", on_norm(lambda norm: replace(norm, centred=False))),
    "mean taken off": ("gemma2", "decoder", on_norm(lambda norm: replace(norm, centred=True))),
    "eps": ("roberta", "encoder", on_norm(lambda norm: replace(norm, eps=1e-12))),
    "shift forgotten": ("marian", "decoder", on_norm(lambda norm: replace(norm, beta=None))),
    "norm on the branch forgotten": ("gemma2", "decoder", lambda site: replace(site, branch=())),
    "constant on the branch": ("gpt2", "decoder", lambda site: replace(site, branch=(Scaling(0.5),))),
    "constant on the residual": ("t5", "decoder", lambda site: replace(site, residual_steps=(Scaling(0.5),))),
    "residual taken after the norm": ("gpt2", "decoder", lambda site: replace(site, residual=site.x)),
    "residual is the sum": ("bert", "encoder", lambda site: replace(site, residual=site.total)),
    "another value map": (
        "bert",
        "encoder",
        lambda site: replace(site, value_map=replace(site.value_map, columns=site.value_map.columns.flip(0))),
    ),
    "f acts on something else": ("gpt2", "decoder", lambda site: replace(site, x=site.residual)),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_anatomy_is_caught(what: str) -> None:
    family, kind, change = WRONG[what]
    assert_caught(broken(family, kind, change), family, kind)


def test_post_norm_read_as_pre_norm_is_caught() -> None:
    """Forgetting the norm after the sum rebuilds everything that is looked at: it must be refused while reading."""
    for family in ("bert", "roberta", "distilbert", "albert", "marian"):
        assert {site.placement for site in examine(tiny.make(family)).sites} == {"post"}, family
    for family in ("gpt2", "llama", "t5"):
        assert {site.placement for site in examine(tiny.make(family)).sites} == {"pre"}, family
    assert {site.placement for site in examine(tiny.make("gemma2")).sites} == {"branch"}


def test_pre_norm_read_as_post_norm_is_caught() -> None:
    model = tiny.make("gpt2")

    def change(site: Site) -> Site:
        block = model.h[WRONG_LAYER - 1]
        norm = Normalization(block.ln_2.weight, block.ln_2.bias, True, block.ln_2.eps)
        given = TensorRef(block.ln_2, "h.1.ln_2", "input", ("args", 0), 0)
        wrong = TensorRef(block.ln_1, "h.1.ln_1", "output", (), 0)
        return replace(site, norm=norm, normalized=wrong, total=given)

    lens = Lens(model)
    right = lens.anatomy
    wrong = Anatomy(right.family, tuple(change(s) if s.layer == WRONG_LAYER else s for s in right.sites))
    lens.traced._anatomies[frozenset()] = wrong
    lens.traced.forget = lambda: None  # type: ignore[method-assign]
    assert "normalized sum" in assert_caught(lens, "gpt2", "decoder")


def test_wrong_repeat_of_grouped_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    import normlens.decompose.grams as grams

    def tiled(values: Tensor, heads: int) -> Tensor:
        return values.repeat(1, heads // values.shape[1], 1, 1)

    monkeypatch.setattr(grams, "repeat_values", tiled)
    lens = Lens(tiny.make("llama"))
    with pytest.raises(DecompositionError, match=r"'llama', decoder layer 1, module layers\.0\.self_attn"):
        lens.analyze_inputs(tiny.batch("llama"))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_keys_in_another_order_are_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and values with their keys permuted alike give the same sum; only the values' origin tells."""
    right = capturing.build_block

    def permuted(*args: object) -> Block:
        t = right(*args)  # type: ignore[arg-type]
        return replace(t, x=t.x.flip(1))  # as if weights and values had the other order

    monkeypatch.setattr(capturing, "build_block", permuted)
    with pytest.raises(DecompositionError, match="value vectors by key"):
        Lens(tiny.make(family)).analyze_inputs(tiny.batch(family, lengths=(6, 6)))


def test_missing_mask_function_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: without a mask function of its own name the probe gets no mask, and all parts still sum up."""
    monkeypatch.setattr(interface, "eager_mask", lambda *args, **kwargs: None)
    for family in ("bert", "gpt2", "marian"):
        model = tiny.make(family)
        lens = Lens(model)
        with pytest.raises(DecompositionError, match="under capture differs"):
            lens.analyze_inputs(tiny.batch(family))
        assert model.config._attn_implementation == "sdpa"


def test_model_with_an_attention_of_its_own_is_caught() -> None:
    """A model whose own attention does something that its eager function does not."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def sharper(module: nn.Module, query: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, None]:
        return sdpa_attention_forward(module, 2 * query, *args, **kwargs)

    AttentionInterface.register("sharper", sharper)
    AttentionMaskInterface.register("sharper", sdpa_mask)
    model = tiny.make("bert")
    model.set_attn_implementation("sharper")
    lens = Lens(model)
    for _ in range(2):  # and once refused is not forgotten
        with pytest.raises(DecompositionError, match="the output of 'bert' under capture differs"):
            lens.analyze_inputs(tiny.batch("bert"))
    assert model.config._attn_implementation == "sharper"


def block_of(family: str = "bert") -> tuple[Block, Tensor, Tensor]:
    found: list[Block] = []
    lens, inputs = Lens(tiny.make(family)), tiny.batch(family, lengths=(6, 6))
    lens.run(inputs, Request.of(lens.anatomy), lambda result, block: found.append(block))
    mask = torch.ones(2, 6, dtype=torch.bool)
    return found[0], mask, mask


SUBJECT = Subject("bert", "encoder layer 1", "encoder.layer.0.attention.self", torch.float32)


@pytest.mark.parametrize("name", ["f_norm", "af_norm", "attn_n", "attnres_n", "attnresln_n"])
def test_a_wrong_map_is_caught_by_explicit_vectors(name: str) -> None:
    from normlens.measures.table import MEASURES

    block, _, _ = block_of()
    right = {name: MEASURES[name].compute(block)}
    prove_parts(block, right, SUBJECT)
    with pytest.raises(DecompositionError, match=rf"{name} of query \d+ and key \d+"):
        prove_parts(block, {name: right[name] * 1.001}, SUBJECT)


def test_every_stage_is_compared() -> None:
    block, queries, _ = block_of()
    t = block
    assert float(prove_sums(block, queries, SUBJECT).max()) < 1e-6
    wrong = {"projected": "attention output", "total": "residual sum", "normalized": "normalized sum"}
    for name, words in wrong.items():
        off = replace(t, **{name: getattr(t, name) + 0.01})
        with pytest.raises(DecompositionError, match=f"the {words} is off by"):
            prove_sums(off, queries, SUBJECT)


def test_a_number_that_is_none_is_caught() -> None:
    block, queries, _ = block_of()
    mixed = block.pairs.mixed.clone()
    mixed[0, 0, 0, 0] = float("nan")
    with pytest.raises(DecompositionError, match="is off by nan"):
        prove_sums(replace(block, pairs=replace(block.pairs, mixed=mixed)), queries, SUBJECT)
    with pytest.raises(DecompositionError, match="differs from its own by nan"):
        check_output([[torch.full((1, 2, 3), float("nan"))]], [[torch.ones(1, 2, 3)]], torch.ones(1, 2) > 0, SUBJECT)


def test_proof_looks_at_real_positions_only() -> None:
    block, queries, _ = block_of()
    total = block.total.clone()
    total[0, -1] += 100
    padded = queries.clone()
    padded[0, -1] = False
    # The scale of a normalization is taken per position, so a wrong padded one spoils nothing else.
    assert float(prove_sums(replace(block, total=total), padded, SUBJECT).max()) < 1e-6
