"""Prompts to token ids: the model's chat template exactly once, and exactly one BOS where the model wants one.

Templates of R1-Distill or Llama 3 write BOS themselves while their tokenizers add another when asked for
special tokens; a second BOS changes every logit and goes unnoticed. So templated text is never given special
tokens again, and plain text gets them only if it does not begin with BOS already.
"""

from __future__ import annotations

from typing import Any

from resetcli.base.errors import ResetError


def render_chat(tokenizer: Any, messages: list[dict[str, str]], *, thinking: bool = True) -> str:
    """The chat as the model's template writes it, generation prompt added.

    ``thinking`` reaches templates that offer the switch (``enable_thinking``); others ignore it.

    Raises:
        ResetError: the tokenizer has no chat template and there is more than one plain user message, or the
            template fails.
    """
    if not getattr(tokenizer, "chat_template", None):
        if len(messages) == 1:
            return messages[0]["content"]
        raise ResetError("this model has no chat template; give one plain prompt instead of a conversation")
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
    except Exception as exc:  # templates are the model's own programs and raise anything
        raise ResetError(f"the model's chat template failed: {exc}") from exc


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of ``text``; special tokens are added unless it begins with BOS already.

    A chat-templated text that has no BOS of its own still goes through `encode_chat`, not here.
    """
    bos = getattr(tokenizer, "bos_token", None)
    ids = tokenizer(text, add_special_tokens=not (bos and text.startswith(bos)))["input_ids"]
    return list(ids)


def encode_chat(tokenizer: Any, messages: list[dict[str, str]], *, thinking: bool = True) -> list[int]:
    """Ids of a templated chat, nothing added to what the template wrote; plain text where there is no template."""
    text = render_chat(tokenizer, messages, thinking=thinking)
    if not getattr(tokenizer, "chat_template", None):
        return encode(tokenizer, text)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def opens_thought(prompt: str, marker: str = "<think>", end: str = "</think>") -> bool:
    """Whether a prompt leaves a thought open for the model to continue: it ends on ``marker``, and not on ``end``.

    Templates open a thought as the last thing they write, white space apart; those that also close it at once (Qwen3
    without thinking) end on ``end``. A marker anywhere before is part of what somebody wrote.
    """
    text = prompt.rstrip()
    return text.endswith(marker.strip()) and not text.endswith(end.strip())
