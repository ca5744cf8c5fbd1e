"""A model's own thought markers: found in its files before it is loaded, and left in its texts."""

from __future__ import annotations

import json

import pytest
from tiny_models import make_tokenizer

from resetcli.base.errors import UsageError
from resetcli.engines.text import TextStream
from resetcli.engines.thoughts import DEFAULT, KNOWN, keep_markers, kept_tokens, own_markers, resolve_markers


@pytest.mark.parametrize("pair", KNOWN)
@pytest.mark.parametrize("where", ["tokenizer_config.json", "added_tokens.json", "tokenizer.json", "template"])
def test_markers_are_found_wherever_they_stand(tmp_path, pair, where):
    token = [{"content": marker} for marker in pair]
    contents = {
        "tokenizer_config.json": {"added_tokens_decoder": {"5": token[0], "6": token[1]}},
        "added_tokens.json": {pair[0]: 5, pair[1]: 6},
        "tokenizer.json": {"added_tokens": token},
        "template": {"chat_template": f"{{{{ '{pair[0]}' }}}} until {pair[1]}"},
    }
    name = "tokenizer_config.json" if where == "template" else where
    (tmp_path / name).write_text(json.dumps(contents[where]))
    assert own_markers(tmp_path) == pair == resolve_markers(tmp_path)


def test_tokens_come_before_a_template_and_damaged_files_say_nothing(tmp_path):
    assert own_markers(tmp_path) is None and resolve_markers(tmp_path) == DEFAULT == resolve_markers(None)
    (tmp_path / "chat_template.jinja").write_text("<think></think>")
    assert own_markers(tmp_path) == DEFAULT
    (tmp_path / "added_tokens.json").write_text('{"[THINK]": 1, "[/THINK]": 2}')
    assert own_markers(tmp_path) == ("[THINK]", "[/THINK]")
    for name in ("added_tokens.json", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / name).write_text("[" * 20000)
    assert own_markers(tmp_path) == DEFAULT


@pytest.mark.parametrize(
    ("start", "end", "pair"),
    [
        (None, "</think>", DEFAULT),
        (None, "[/THINK]", ("[THINK]", "[/THINK]")),
        (None, "◁/think▷", ("◁think▷", "◁/think▷")),
        (None, "</muse>", ("<muse>", "</muse>")),
        (None, "Final answer:", ("<think>", "Final answer:")),
        ("[THINK]", None, ("[THINK]", "[/THINK]")),
        ("<a>", "<b>", ("<a>", "<b>")),
    ],
)
def test_options_come_first(start, end, pair):
    assert resolve_markers(None, start, end) == pair


@pytest.mark.parametrize(("start", "end"), [(None, " "), ("", None), ("<think>", "<think>")])
def test_unusable_markers_are_refused(start, end):
    with pytest.raises(UsageError, match="--thought-"):
        resolve_markers(None, start, end)


def test_special_markers_stay_in_the_text_and_other_special_tokens_do_not():
    from tokenizers import AddedToken

    tokenizer = make_tokenizer()
    names = ["[THINK]", "[/THINK]", "<muse>"]
    tokenizer.add_tokens([AddedToken(name, special=True) for name in names], special_tokens=True)
    text = "[THINK]First add two.\n\n[/THINK]<muse>The sum is é<|im_end|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    class Engine:
        def __init__(self):
            self.tokenizer, self.kept = tokenizer, kept_tokens(tokenizer)

    def streamed(kept):
        stream = TextStream(tokenizer, kept=kept)
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.finish() == stream.text
        return stream.text

    assert streamed({}) == "First add two.\n\nThe sum is é"
    engine = Engine()
    assert streamed(engine.kept) == "[THINK]First add two.\n\n[/THINK]The sum is é"
    keep_markers(engine, ("<muse>", "</muse>"))
    assert streamed(engine.kept) == text.removesuffix("<|im_end|>")
    assert not kept_tokens(make_tokenizer())  # <think> is an ordinary added token there, as in Qwen3
    keep_markers(object(), ("<muse>",))  # an engine that keeps nothing is left alone
