"""Prompts with named parts: parts are known from how a prompt was put together, and sums over them are exact."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.cli.main import main
from normlens.errors import InputError
from normlens.inputs.prompts import place_sources, render_chat
from normlens.lens import Lens
from tests import tiny
from tests.attribution.models import headed

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
STRIPPED = PLAIN.replace("m.content", "m.content | trim")
SHOUTED = PLAIN.replace("m.content", "m.content | upper")


def _tokenizer(template: str | None = PLAIN) -> Any:
    tokenizer = tiny.tokenizer("none")
    tokenizer.chat_template = template
    return tokenizer


def _lens(template: str | None = PLAIN) -> Lens:
    return Lens(headed("llama"), _tokenizer(template))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*arguments: str) -> tuple[Any, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["normlens", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code or 0, *capsys.readouterr()

    return run


CHAT = [{"role": "system", "content": "the cat"}, {"role": "user", "content": "the cat sat on a red tree"}]


def test_sources_stand_where_the_template_names_them() -> None:
    prompt = place_sources("{a} or {b}, {a}?", {"a": "the {b}", "b": "cat"})
    assert prompt.text == "the {b} or cat, the {b}?", "what a source says is not read as a template"
    assert [prompt.text[start:stop] for start, stop, _ in prompt.sources] == ["the {b}", "cat", "the {b}"]
    assert [name for *_, name in prompt.sources] == ["a", "b", "a"]
    for template, sources, message in (
        ("{a}", {"a": "x", "b": "y"}, "no place for the source 'b'"),
        ("{a}", {"a": " "}, "source 'a' is empty"),
        ("{a}", {"a": 3}, "must map names to texts"),
        ("{rest}", {"rest": "x"}, "cannot be called 'rest'"),
    ):
        with pytest.raises(InputError, match=message):
            place_sources(template, sources)


@pytest.mark.parametrize("template", [PLAIN, STRIPPED])
def test_messages_that_say_the_same_are_told_apart(template: str) -> None:
    # Llama 2 writes a blank after the content that it has trimmed.
    template = template.replace("</>", " </>")
    same = [{"role": "user", "content": " the cat "}, {"role": "assistant", "content": "the cat"}, *CHAT[1:]]
    prompt = render_chat(_tokenizer(template), same, {})
    parts = [(prompt.text[start:stop], name) for start, stop, name in prompt.messages]
    assert [name for _, name in parts] == ["1 user", "2 assistant", "3 user"]
    assert parts[0][0].strip() == parts[1][0] == "the cat"
    assert prompt.messages[0][1] <= prompt.messages[1][0]


@given(st.lists(st.text(alphabet="ab <>{}/\ue000\ue0011user", max_size=12), min_size=1, max_size=4))
def test_stretches_of_messages_are_their_contents(contents: list[str]) -> None:
    messages = [{"role": "user", "content": content} for content in contents]
    prompt = render_chat(_tokenizer(), messages, {})
    assert [prompt.text[start:stop] for start, stop, _ in prompt.messages] == contents


def test_a_template_that_changes_messages_is_refused() -> None:
    with pytest.raises(InputError, match="changes what messages say"):
        render_chat(_tokenizer(SHOUTED), CHAT, {})
    with pytest.raises(InputError, match="has no chat template"):
        render_chat(_tokenizer(None), CHAT, {})
    with pytest.raises(InputError, match="refuses these messages: no system"):
        render_chat(_tokenizer("{{ raise_exception('no system') }}"), CHAT, {})
    with pytest.raises(InputError, match="must have a role and a content"):
        render_chat(_tokenizer(), [{"role": "user", "content": 3}], {})


def test_sums_over_messages_and_sources_are_exact() -> None:
    lens = _lens()
    chat = [*CHAT[:1], {"role": "user", "content": "the {one} sat on a {two}"}]
    found = lens.explain(messages=chat, sources={"one": "red cat", "two": "tree"}, output=7)
    by_message, by_source = found.by_message(), found.by_source()
    assert by_message["message"].values.tolist() == ["1 system", "2 user", "rest"]
    assert by_source["source"].values.tolist() == ["one", "two", "rest"]
    for added in (by_message, by_source):
        np.testing.assert_allclose(added.sum(), found["tokens"].sum(), atol=1e-12)
    tokens = [str(token) for token in found["tokens"]["key_token"].values]
    own = [part == "one" for part in found.provenance["sources"]]
    assert [token for token, mine in zip(tokens, own, strict=True) if mine] == ["red", "cat"]
    whole = lens.explain(found.provenance["text"], output=7)
    np.testing.assert_allclose(whole["tokens"], found["tokens"], atol=1e-12)


def test_what_the_model_writes_belongs_to_the_answer() -> None:
    lens = _lens()
    found = lens.explain("the {one} sat on", sources={"one": "red cat"}, generate=True, max_new_tokens=4)
    added = found.by_source()
    assert added.dims == ("step", "source") and added.sizes["step"] == len(found.provenance["output"]) <= 4
    assert float(added.sel(source="answer", step=added["step"][0])) == 0
    np.testing.assert_allclose(added.sum("source"), found["tokens"].sum("key"), atol=1e-12)
    np.testing.assert_allclose(added.sum("step"), found.sum_of_steps().by_source(), atol=1e-12)


def test_a_seed_draws_the_same_answer_again() -> None:
    lens = _lens()
    answers = [
        lens.explain("the cat", generate=True, seed=seed, max_new_tokens=6).provenance["output"]
        for seed in (0, 0, 1, 2, 3)
    ]
    assert answers[0] == answers[1] and any(answer != answers[0] for answer in answers)
    with pytest.raises(InputError, match="max_new_tokens must be a whole number of at least 1, got 0"):
        lens.explain("the cat", generate=True, max_new_tokens=0)


def test_several_chats_come_back_as_a_list() -> None:
    lens = _lens()
    both = lens.explain(messages=[CHAT, CHAT[1:]], output=7)
    assert [len(found.by_message()) for found in both] == [3, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"text": "a cat", "messages": CHAT}, "text and messages exclude each other"),
        ({}, "text is missing"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [[]]}, "a chat has no message"),
        ({"messages": {"role": "user"}}, "messages must be a list of messages"),
        ({"messages": CHAT, "truncate": True}, "truncate"),
        ({"text": "a cat", "tools": [1]}, "tools needs messages"),
        ({"text": "a cat", "seed": 1}, "seed needs generate=True"),
        ({"text": "a {x}", "pair": "b", "sources": {"x": "cat"}}, "pair cannot be used with messages or sources"),
        ({"text": "a cat", "outputs": 3}, "did you mean 'output'"),
    ],
)
def test_questions_that_cannot_be_asked(question: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, TypeError), match=message):
        _lens().explain(**question)
    with pytest.raises(InputError, match=r"pass sources=… to explain\(\)"):
        _lens().explain("the cat", output=3).by_source()


def test_the_command_takes_a_chat_and_a_folder(tmp_path: Path, shell: Any) -> None:
    model = tmp_path / "model"
    headed("llama").save_pretrained(model)
    _tokenizer().save_pretrained(model)
    (tmp_path / "docs").mkdir()
    for name, text in (("one", "red cat"), ("two", "tree")):
        (tmp_path / "docs" / f"{name}.txt").write_text(text + "\n")
    (tmp_path / "chat.json").write_text(json.dumps({"messages": [{"role": "user", "content": "the {one} {two}"}]}))
    common = ["--model", str(model), "--output", "7", "--sources", str(tmp_path / "docs")]
    code, out, _ = shell("explain", "--chat", str(tmp_path / "chat.json"), *common)
    assert code == 0 and "Contribution of each source" in out and "1 user" in out
    code, out, _ = shell("explain", "the cat sat", *common, "--json")
    assert code == 0 and json.loads(out)["provenance"]["text"] == "red cat\n\ntree\n\nthe cat sat"
    code, _, err = shell("explain", *common)
    assert code == 2 and "give either a text, --chat, --image or --audio" in err


def test_blanks_belong_to_their_source_where_a_tokenizer_trims_them() -> None:
    prompt = place_sources("x{d}y", {"d": "a  b"})
    offsets = [(0, 0), (0, 1), (1, 2), (2, 2), (4, 5), (5, 6)]  # a special token, x, a, blanks, b, y
    parts = prompt.parts_of_tokens(prompt.sources, offsets, [1, 0, 0, 0, 0, 0])
    assert parts == ["rest", "rest", "d", "d", "d", "rest"]


def test_a_source_without_a_token_of_its_own_has_zero() -> None:
    found = _lens().explain("the {one}{two} sat", sources={"one": "red", "two": "der"}, output=7)
    assert found.by_source()["source"].values.tolist()[:2] == ["one", "two"]


def test_templates_that_strip_some_messages_only() -> None:
    template = "{% for m in messages %}{{ m.content | trim if m.role == 'user' else m.content }}|{% endfor %}"
    chat = [{"role": "system", "content": " a "}, {"role": "user", "content": " b "}]
    prompt = render_chat(_tokenizer(template), chat, {})
    assert [prompt.text[start:stop] for start, stop, _ in prompt.messages] == [" a ", "b"]
