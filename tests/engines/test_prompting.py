"""Chat templates applied once; exactly one BOS."""

from __future__ import annotations

import pytest

from resetcli.base.errors import ResetError
from resetcli.engines.prompting import encode, encode_chat, opens_thought, render_chat


class Words:
    """A tokenizer over characters that adds BOS when asked for special tokens; its template may write BOS too."""

    bos_token = "<s>"

    def __init__(self, template_bos: bool, template: bool = True):
        self.chat_template = "yes" if template else None
        self.template_bos = template_bos

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, enable_thinking):
        body = "".join(f"[{m['role']}]{m['content']}" for m in messages)
        return ("<s>" if self.template_bos else "") + body + "[assistant]" + ("<think>" if enable_thinking else "")

    def __call__(self, text, add_special_tokens):
        ids = []
        while text:
            size = 3 if text.startswith("<s>") else 1
            ids.append(0 if size == 3 else ord(text[0]))
            text = text[size:]
        return {"input_ids": ([0] if add_special_tokens else []) + ids}


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("template_bos, count", [(True, 1), (False, 0)])
def test_templated_text_gets_no_bos_beyond_its_own(template_bos, count):
    tokenizer = Words(template_bos)
    assert encode_chat(tokenizer, MESSAGES).count(0) == count


@pytest.mark.parametrize("text", ["plain", "<s>plain"])
def test_plain_text_gets_exactly_one(text):
    assert encode(Words(False), text).count(0) == 1


def test_thinking_switch_reaches_the_template():
    assert opens_thought(render_chat(Words(True), MESSAGES))
    assert not opens_thought(render_chat(Words(True), MESSAGES, thinking=False))
    assert not opens_thought("<think>a</think>b")


@pytest.mark.parametrize(
    ("said", "added", "opened"),
    [
        ("How is the tag <think> parsed?", "<｜Assistant｜>", False),
        ("How is the tag <think> parsed?", "<｜Assistant｜><think>\n", True),
        ("What does </think> end?", "<｜Assistant｜><think>\n", True),
        ("What does </think> end?", "<|im_start|>assistant\n", False),
        ("hi", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("It begins with <think>", "<|im_start|>assistant\n", False),
        ("It begins with <think>", "<|im_start|>assistant\n<think>", True),
    ],
)
def test_only_the_template_opens_a_thought(said, added, opened):
    """A problem may speak of the markers; what counts is what the template wrote after it."""

    class Template(Words):
        def apply_chat_template(self, messages, **_):
            return "".join(f"<｜User｜>{m['content']}" for m in messages) + added

    assert opens_thought(render_chat(Template(True), [{"role": "user", "content": said}])) is opened


def test_an_end_that_ends_like_the_beginning():
    assert opens_thought("Q think>", "think>", "</think>") and not opens_thought("Q </think>", "think>", "</think>")


def test_no_template():
    tokenizer = Words(False, template=False)
    assert render_chat(tokenizer, MESSAGES) == "hi"
    assert encode_chat(tokenizer, MESSAGES).count(0) == 1
    with pytest.raises(ResetError, match="no chat template"):
        render_chat(tokenizer, MESSAGES * 2)


def test_real_templates_have_one_bos(tiny_model_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    ids = encode_chat(tokenizer, MESSAGES)
    assert ids == tokenizer(render_chat(tokenizer, MESSAGES), add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids).count("hi") == 1
