"""Lens: batches, subsets, streams, and a model that is left as it was."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import normlens
import normlens.anatomy.interface as interface
import normlens.decompose.attention as attending
from normlens import Analysis, Lens
from normlens.decompose import process
from normlens.errors import DecompositionError, NormlensError
from normlens.measures.table import BLOCK_MAPS, MAPS, MEASURES
from tests import tiny

ALL = tuple(tiny.FAMILIES)


@cache
def lens_of(family: str) -> Lens:
    return Lens(tiny.make(family), tiny.tokenizer_for(family))


def assert_same(left: Analysis, right: Analysis, tolerance: float) -> None:
    assert set(left.sites) == set(right.sites)
    for kind, dataset in left.sites.items():
        other = right.sites[kind]
        assert set(dataset.data_vars) == set(other.data_vars)
        assert dataset["query_token"].values.tolist() == other["query_token"].values.tolist()
        assert dataset["key_token"].values.tolist() == other["key_token"].values.tolist()
        for name in dataset.data_vars:
            if name == "proof":
                continue
            scale = max(1.0, float(abs(other[name]).max()))
            error = np.abs(dataset[name].values - other[name].values).max() / scale
            assert error <= tolerance, f"{kind} {name}: {error:.2g}"


# ---- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ALL)
def test_padding_and_batching_change_nothing(family: str) -> None:
    lens = lens_of(family)
    inputs = tiny.batch(family, lengths=(9, 4, 6), padded_to=12)
    together = lens.analyze_inputs(inputs)
    for row, analysis in enumerate(together):
        assert_same(analysis, lens.analyze_inputs(tiny.row_of(inputs, row))[0], 1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "bert"])
def test_padding_on_the_left_changes_nothing_but_where_the_tokens_stand(family: str) -> None:
    lens = lens_of(family)
    ids = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    places = (mask.cumsum(1) - 1).clamp_min(0)  # each token at its own position
    padded = lens.analyze_inputs({"input_ids": ids, "attention_mask": mask, "position_ids": places})
    assert_same(padded[0], lens.analyze_inputs({"input_ids": ids[:1, 3:]})[0], 1e-6)


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(["bert", "gpt2", "marian"]),
    st.lists(st.integers(2, 10), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_permuting_a_batch_permutes_the_results(family: str, lengths: list[int], random: object) -> None:
    lens = lens_of(family)
    inputs = tiny.batch(family, tuple(lengths))
    order = list(range(len(lengths)))
    random.shuffle(order)  # type: ignore[attr-defined]
    before = lens.analyze_inputs(inputs)
    after = lens.analyze_inputs({name: tensor[order] for name, tensor in inputs.items()})
    for place, row in enumerate(order):
        assert_same(after[place], before[row], 1e-6)


@settings(max_examples=6, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([*tiny.WORDS, "cats", "slowly"]), min_size=1, max_size=9), min_size=1, max_size=6
    ),
    st.integers(1, 4),
)
def test_texts_come_back_in_order_whatever_the_batch_size(texts: list[list[str]], batch_size: int) -> None:
    lens = lens_of("bert")
    joined = [" ".join(words) for words in texts]
    found = lens.analyze(joined, batch_size=batch_size)
    assert len(found) == len(joined)
    for text, analysis in zip(joined, found, strict=True):
        assert_same(analysis, lens.analyze(text), 1e-6)


def test_pairs_targets_and_words_are_read_as_given() -> None:
    bert = lens_of("bert")
    pair = bert.analyze("the cat sat", pair="a dog ran")
    assert pair.site("encoder").query_tokens == ["[CLS]", "the", "cat", "sat", "[SEP]", "a", "dog", "ran", "[SEP]"]
    split = bert.analyze(["the", "cats", "sat"], pretokenized=True)
    assert_same(split, bert.analyze("the cats sat"), 0)
    assert isinstance(bert.analyze([["the", "cat"], ["a", "dog"]], pretokenized=True), list)
    marian = lens_of("marian").analyze("the cat sat", target="a dog ran fast")
    assert marian.site("cross").key_tokens == ["the", "cat", "sat", "[SEP]"]
    assert marian.site("cross").query_tokens == ["<pad>", "a", "dog", "ran", "fast"]  # the decoder's *input* tokens
    assert marian.site("decoder").key_tokens == marian.site("decoder").query_tokens


def test_second_segment_has_its_own_token_type() -> None:
    import transformers

    tokenizer = tiny.tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    lens = Lens(tiny.make("bert"), tokenizer)
    found = lens.analyze("the cat", pair="a dog")
    ids = tokenizer("the cat", "a dog", return_tensors="pt")
    assert ids["token_type_ids"].tolist()[0] == [0, 0, 0, 0, 1, 1, 1]
    assert_same(found, lens.analyze_inputs(dict(ids))[0], 1e-6)
    assert isinstance(tokenizer, transformers.PreTrainedTokenizerFast)


def test_generate_analyses_what_the_model_writes() -> None:
    import transformers

    torch.manual_seed(0)
    translator = transformers.MarianMTModel(tiny.marian().config)
    tiny.randomized(translator)
    tokenizer = tiny.tokenizer_for("marian")
    translator.generation_config.max_new_tokens = 6
    translator.generation_config.num_beams = 1
    translator.train()
    lens = Lens(translator, tokenizer)
    found = lens.analyze("the cat sat", generate=True)
    assert translator.training, "the model's mode must be put back"
    translator.eval()
    written = translator.generate(input_ids=torch.tensor([tokenizer("the cat sat")["input_ids"]]))[0].tolist()
    kept = [i for n, i in enumerate(written) if n == 0 or i != 0]
    known = tokenizer.convert_ids_to_tokens(kept)
    # A model may write an id that its tokenizer has no token for.
    expected = [str(i) if token is None else token for i, token in zip(kept, known, strict=True)]
    assert found.site("decoder").query_tokens == expected
    assert found.provenance["generated"] is True


# ---- subsets -------------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["bert", "gemma2", "t5"]),
    st.sets(st.sampled_from(list(MEASURES))),
    st.sets(st.sampled_from(MAPS)),
    st.sets(st.integers(1, 2), min_size=1),
)
def test_a_subset_equals_the_full_run(family: str, measures: set[str], mixing: set[str], layers: set[int]) -> None:
    lens, inputs = lens_of(family), tiny.batch(family, lengths=(6, 4))
    full = _full(family)
    some = lens.analyze_inputs(inputs, measures=sorted(measures), mixing=sorted(mixing), layers=sorted(layers))
    for whole, part in zip(full, some, strict=True):
        assert set(part.measures) == measures
        for kind, dataset in part.sites.items():
            assert set(dataset.layer.values) == layers
            for name in dataset.data_vars:
                expected = whole.sites[kind][name].sel(layer=sorted(layers)).values
                # What a position gives itself is read off vectors that exist only where a map is wanted: one rounding more.
                np.testing.assert_allclose(dataset[name].values, expected, 2e-6, 1e-6, err_msg=f"{kind} {name}")
            for name in (measures & set(MAPS)) | mixing:
                belongs = family != "t5" or kind != "decoder" or MEASURES[name].reach == "block"
                if belongs and (kind != "cross" or MEASURES[name].crosses):
                    assert part.site(kind).mixing_ratio(name).dims == ("layer", "query")


@cache
def _full(family: str) -> list[Analysis]:
    return lens_of(family).analyze_inputs(tiny.batch(family, lengths=(6, 4)), measures=list(MEASURES))


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", ["attn_n", "attnres_n", "attnresln_n"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "gemma2", "llama", "marian"])
def test_a_map_alone_equals_the_same_map_among_all(
    family: str, name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is asked for beside a map changes it."""
    if compiled:
        pytest.importorskip("numba", reason="compiled loops come with the extra 'fast'")
    monkeypatch.setattr(process, "COMPILED_LENGTH", 1 if compiled else 10**9)
    lens, inputs = lens_of(family), tiny.batch(family, lengths=(9, 5))
    full, alone = lens.analyze_inputs(inputs), lens.analyze_inputs(inputs, measures=[name])
    for whole, part in zip(full, alone, strict=True):
        for kind in part.sites:
            np.testing.assert_allclose(part.site(kind)[name], whole.site(kind)[name], 2e-5, 1e-6)
            if kind != "cross" or name != "attn_n":
                ratio, expected = part.site(kind).mixing_ratio(name), whole.site(kind).mixing_ratio(name)
                np.testing.assert_allclose(ratio, expected, 2e-5, 1e-6)


def test_nothing_quadratic_is_kept_for_ratios_alone() -> None:
    found = lens_of("bert").analyze("the cat sat on the mat", measures=[], mixing=["attnresln_n"])
    assert {name: d.dims for name, d in found.sites["encoder"].data_vars.items()} == {
        "mixing_attnresln_n": ("layer", "query"),
        "proof": ("layer",),
    }


@pytest.mark.parametrize("family", ALL)
def test_weights_sum_to_one_and_causal_maps_are_triangular(family: str) -> None:
    for analysis in lens_of(family).analyze_inputs(tiny.batch(family)):
        for kind in analysis.sites:
            site = analysis.site(kind)
            np.testing.assert_allclose(site["alpha"].sum("key"), 1, atol=1e-5)
            np.testing.assert_allclose(site["attn_w"].sum("key"), 1, atol=1e-5)
            np.testing.assert_allclose(site["attnres_w"].sum("key"), 0.5 if kind == "cross" else 1, atol=1e-5)
            if kind == "decoder":
                for name in ("alpha", "af_norm", *BLOCK_MAPS):
                    values = site[name].values
                    assert not np.triu(values, 1).any(), f"{name} looks ahead"
                    assert values[..., 0, 0].all(), f"{name} of the first position is empty"
    if family == "gemma2":  # every other layer sees three positions only
        alpha = analysis["alpha"]
        windowed = [not np.tril(alpha.sel(layer=layer).values, -3).any() for layer in alpha.layer.values]
        assert windowed == [True, False, True, False]


# ---- streams -------------------------------------------------------------------------------------------------------


def test_a_stream_gives_the_same_numbers_site_by_site() -> None:
    lens, inputs = lens_of("t5"), tiny.batch("t5")
    whole = lens.analyze_inputs(inputs)
    order = []
    for result in lens.stream_inputs(inputs):
        order.append((result.kind, result.layer))
        kept = result.values["attn_n"][1][result.query_mask[1]][:, result.key_mask[1]].numpy()
        np.testing.assert_array_equal(whole[1].site(result.kind)["attn_n"].sel(layer=result.layer).values, kept)
    encoder, decoder = [("encoder", 1), ("encoder", 2)], [(k, n) for n in (1, 2, 3) for k in ("decoder", "cross")]
    assert order == encoder + decoder


def test_an_abandoned_stream_leaves_nothing_behind() -> None:
    model = tiny.make("bert").train()
    before = snapshot(model)
    stream = Lens(model, tiny.tokenizer()).stream("the cat sat")
    next(stream)
    stream.close()
    assert snapshot(model) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "normlens-stream"]


def test_a_dropped_stream_leaves_nothing_behind() -> None:
    model = tiny.make("gpt2")
    before = snapshot(model)
    for _ in Lens(model).stream_inputs(tiny.batch("gpt2")):
        break
    gc.collect()
    assert snapshot(model) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "normlens-stream"]


def test_an_error_inside_a_stream_arrives_at_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make("bert")
    before = snapshot(model)
    lens = Lens(model)
    lens.anatomy  # noqa: B018  read while the model is whole
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight[0, 0] = float("nan")
    with pytest.raises(DecompositionError, match="encoder layer 2"):
        list(lens.stream_inputs(tiny.batch("bert")))
    assert snapshot(model) == before


def test_memory_does_not_grow_with_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a few layers' weights are alive at any time, however many layers ran."""
    torch.manual_seed(0)
    model = tiny.randomized(tiny.bert(num_hidden_layers=12)).eval()
    alive: list[weakref.ref] = []
    most = 0
    right = attending._weights

    def counted(*args: object) -> torch.Tensor:
        nonlocal most
        alpha = right(*args)
        alive.append(weakref.ref(alpha))
        most = max(most, sum(reference() is not None for reference in alive))
        return alpha

    lens = Lens(model)
    lens.anatomy  # noqa: B018  reading keeps one small trace
    monkeypatch.setattr(attending, "_weights", counted)
    lens.analyze_inputs(tiny.batch("bert"), measures=["attn_n"])
    assert len(alive) == 12
    assert most <= 2, f"{most} layers' attention weights were alive at once"


# ---- the same input gives the same bits ----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [7, 70])
def test_fifty_calls_give_the_same_bits(length: int) -> None:
    """Whatever the process did before: short and long inputs, alone and in batches, in between."""
    lens = Lens(tiny.randomized(tiny.bert(max_position_embeddings=128)).eval())
    inputs = tiny.batch("bert", lengths=(length,))
    first = lens.analyze_inputs(inputs)[0].sites["encoder"]
    for call in range(50):
        if call % 10 == 5:
            lens.analyze_inputs(tiny.batch("bert", lengths=(90, 80)))
        again = lens.analyze_inputs(inputs)[0].sites["encoder"]
        for name in first.data_vars:
            assert first[name].values.tobytes() == again[name].values.tobytes(), f"{name} in call {call + 2}"


# ---- the model is left as it was ------------------------------------------------------------------------------------


def snapshot(model: nn.Module) -> dict[str, object]:
    modules = dict(model.named_modules())
    configs = {id(m.config): m.config for m in modules.values() if hasattr(m, "config")}
    return {
        "training": {name: module.training for name, module in modules.items()},
        "hooks": {
            name: (len(module._forward_hooks), len(module._forward_pre_hooks)) for name, module in modules.items()
        },
        "attention": [config._attn_implementation for config in configs.values()],
        "gradients": (
            torch.is_grad_enabled(),
            [p.requires_grad for p in model.parameters()],
            [p.grad for p in model.parameters()],
        ),
        "listener": interface._handler.get(),
    }


@pytest.fixture(params=["bert", "t5", "gemma2"])
def watched(request: pytest.FixtureRequest) -> Iterator[tuple[str, nn.Module]]:
    model = tiny.make(request.param)
    model.train()
    next(iter(model.children())).eval()  # a mixed state, as after freezing a part
    if request.param == "t5":  # nested configurations that differ from the outer one
        model.encoder.config._attn_implementation_internal = "eager"
        model.decoder.config._attn_implementation_internal = "sdpa"
    model.register_forward_hook(lambda *args: None)
    before = snapshot(model)
    yield request.param, model
    assert snapshot(model) == before


def test_state_is_put_back_after_a_run(watched: tuple[str, nn.Module]) -> None:
    family, model = watched
    Lens(model).analyze_inputs(tiny.batch(family))


def test_state_is_put_back_after_a_failure(watched: tuple[str, nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    family, model = watched
    lens = Lens(model)
    lens.anatomy  # noqa: B018
    monkeypatch.setattr("normlens.measures.run.measure_block", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(NormlensError, match="ZeroDivisionError"):
        lens.analyze_inputs(tiny.batch(family))


def test_an_error_of_the_users_callback_is_the_users() -> None:
    lens = normlens.load()

    def cancel(done: int, total: int) -> None:
        raise TimeoutError("cancelled by the user")

    for texts in ("one text", ["two", "texts"]):
        with pytest.raises(TimeoutError, match="cancelled by the user"):
            lens.analyze(texts, batch_size=1, progress=cancel)


def test_state_is_put_back_when_the_model_itself_fails(watched: tuple[str, nn.Module]) -> None:
    family, model = watched
    inputs = tiny.batch(family)
    inputs["input_ids"] = inputs["input_ids"] + 10_000
    with pytest.raises((IndexError, NormlensError)):
        Lens(model).analyze_inputs(inputs)


def test_training_mode_gives_the_numbers_of_eval_mode() -> None:
    model = tiny.make("bert")
    plain = Lens(model).analyze_inputs(tiny.batch("bert"))
    again = Lens(model.train()).analyze_inputs(tiny.batch("bert"))
    for left, right in zip(plain, again, strict=True):
        assert_same(left, right, 0)


def test_weights_changed_in_memory_give_new_numbers() -> None:
    model = tiny.make("bert")
    lens, inputs = Lens(model), tiny.batch("bert")
    before = lens.analyze_inputs(inputs)[0]
    rates, values = lens.expansion_rate(), lens.singular_values()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1).add_(0.01)
    after = lens.analyze_inputs(inputs)[0]
    fresh = Lens(model).analyze_inputs(inputs)[0]
    assert_same(after, fresh, 0)
    assert float(abs(after["attnresln_n"] - before["attnresln_n"]).max()) > 1e-3
    assert not np.allclose(lens.expansion_rate().values, rates.values)
    assert not np.allclose(lens.singular_values().values, values.values)
    assert after.provenance["model"]["content"] == fresh.provenance["model"]["content"]
    assert after.provenance["model"]["content"] != before.provenance["model"]["content"]


def test_parameters_replaced_in_memory_give_new_numbers() -> None:
    """Loading a state with `assign=True` puts other Parameter objects into the same modules."""
    model = tiny.make("bert")
    lens, inputs = Lens(model), tiny.batch("bert")
    lens.analyze_inputs(inputs)
    model.load_state_dict(tiny.make("bert", seed=7).state_dict(), assign=True)
    assert_same(lens.analyze_inputs(inputs)[0], Lens(model).analyze_inputs(inputs)[0], 0)


def test_model_with_a_head_is_analysed_without_it() -> None:
    import transformers

    torch.manual_seed(0)
    model = tiny.randomized(transformers.BertForMaskedLM(tiny.bert().config)).eval()
    inputs = tiny.batch("bert")
    for left, right in zip(Lens(model).analyze_inputs(inputs), Lens(model.bert).analyze_inputs(inputs), strict=True):
        assert_same(left, right, 0)


def test_two_lenses_run_in_two_threads() -> None:
    """The listener belongs to the thread that set it: no run hears another's attention."""
    lenses = {family: Lens(tiny.make(family)) for family in ("bert", "gpt2")}
    expected = {family: lens.analyze_inputs(tiny.batch(family)) for family, lens in lenses.items()}
    found: dict[str, list[Analysis]] = {}

    def work(family: str) -> None:
        for _ in range(3):
            found[family] = lenses[family].analyze_inputs(tiny.batch(family))

    threads = [threading.Thread(target=work, args=(family,)) for family in lenses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for family, analyses in expected.items():
        for left, right in zip(analyses, found[family], strict=True):
            assert_same(left, right, 0)


def test_float64_model_in_float32_precision_and_the_other_way() -> None:
    inputs = tiny.batch("bert")
    double, single = Lens(tiny.make("bert", torch.float64)), Lens(tiny.make("bert"))
    reference = double.analyze_inputs(inputs, precision="float64")[0]
    for found in (double.analyze_inputs(inputs), single.analyze_inputs(inputs, precision="float64")):
        for name in BLOCK_MAPS:
            np.testing.assert_allclose(found[0][name].values, reference[name].values, rtol=1e-4, atol=1e-5)
    assert reference["attn_n"].dtype == np.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_proved_with_their_own_tolerance(dtype: torch.dtype) -> None:
    for family in ("bert", "llama"):
        found = Lens(tiny.make(family, dtype)).analyze_inputs(tiny.batch(family))
        assert 1e-5 < found[0].max_proof_error < 5e-2
        assert found[0].provenance["model"]["dtype"] == str(dtype).removeprefix("torch.")
