"""Incremental text and stop strings with a real byte-level tokenizer."""

from __future__ import annotations

import pytest

from resetcli.engines.text import TextStream


class Bytes:
    """A tokenizer whose ids are UTF-8 bytes; 256 is a special token. Decodes as byte-level tokenizers do."""

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


def pieces(text: bytes, stop=()):
    stream = TextStream(Bytes(), stop)
    return [stream.push(b) for b in text], stream


def test_characters_are_held_until_whole():
    got, stream = pieces("aé€😀b".encode())
    assert "".join(got) == "aé€😀b" == stream.text
    assert got[:3] == ["a", "", "é"]


def test_incomplete_bytes_come_out_at_the_end():
    got, stream = pieces(b"ok\xf0\x9f")
    assert "".join(got) == "ok"
    assert stream.finish() == "�" and stream.text == "ok�"


def test_broken_bytes_do_not_hold_back_for_ever():
    _, stream = pieces(b"\xff" * 20 + b"end")
    assert stream.text + stream.finish() == stream.text and stream.text.endswith("end")


@pytest.mark.parametrize(
    "text, kept", [("one STOP two", "one "), ("STOP", ""), ("no end", "no end"), ("x###STOP", "x")]
)
def test_stop_strings_cut_at_the_first(text, kept):
    stream = TextStream(Bytes(), ("STOP", "###"))
    for b in text.encode():
        if stream.stopped(stream.push(b)):
            break
    assert stream.text == kept


def test_tiny_model_tokenizer_roundtrip(tiny_model_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    text = "Let x be 3.\n\nThen 2x = 6, naïve 😀 done."
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    got = "".join(stream.push(i) for i in ids) + stream.finish()
    assert got == stream.text == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
