"""Step boundaries against the text itself: whatever way a text is cut into tokens, a token ends the step exactly
when the count of blank lines in the text so far has grown. Then real vocabularies, against their own decoders."""

from __future__ import annotations

import os
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import blank_lines

from resetcli.base.files import cache_dir
from resetcli.policy.boundaries import OTHER, BoundaryTable, advance, token_bytes

PIECES = st.lists(st.sampled_from(b"\n\n\r\ra."), max_size=7).map(bytes)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_automaton_equals_the_count_of_blank_lines(tokens: list[bytes]) -> None:
    table = BoundaryTable.from_bytes(tokens or [b""])
    state, text = OTHER, b""
    for index, token in enumerate(tokens):
        grown = blank_lines(text + token) > blank_lines(text)
        assert bool(table.fires[state, index]) == grown
        after, fired = advance(state, token)
        assert fired == grown and after == int(table.next_state[state, index])
        state, text = after, text + token


@pytest.mark.parametrize(
    ("tokens", "want"),
    [
        ([b".\n\n"], [True]),
        ([b".\n", b"\n"], [False, True]),
        ([b"\r\n\r\n"], [True]),
        ([b"\r", b"\n", b"\r", b"\n"], [False, False, False, True]),
        ([b"\n\r", b"\n"], [False, True]),
        ([b"\n", b"\r", b"a", b"\n"], [False] * 4),
        ([b"\n\n", b"\n", b"x", b"\n"], [True, True, False, False]),
        ([b"\n", b"", b"\n"], [False, False, True]),
        ([b"\n \n"], [False]),
        ([b"\r\r\n\n"], [True]),
    ],
)
def test_cases_of_the_design(tokens: list[bytes], want: list[bool]) -> None:
    state, got = OTHER, []
    for token in tokens:
        state, fired = advance(state, token)
        got.append(fired)
    assert got == want


def byte_level():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator(["one.\n\ntwo é\r\n\r\nthree\n" * 50], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")
    tokenizer.add_tokens(["<blank>\n\n", "<é>"])
    return tokenizer


def unigram():
    """SentencePiece style: metaspace, <0xNN> byte tokens, a decoder that strips the first space."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [("<unk>", 0.0), *((f"<0x{b:02X}>", -9.0) for b in range(256))]
    pieces += [(t, -2.0 - i / 10) for i, t in enumerate(("\u2581", "\u2581the", "a", "b", "\u2581a\u2581b", "é", "."))]
    core = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    core.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="</s>")
    tokenizer.add_tokens([AddedToken("<br>\r\n", normalized=False)])
    return tokenizer


def decoded(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def check_against_decoder(tokenizer, sequences: int = 60) -> None:
    """Random sequences of ids: our bytes, joined, are what the tokenizer itself decodes."""
    parts = token_bytes(tokenizer)
    assert len(parts) == len(tokenizer)
    rng = random.Random(5)
    newlines = [i for i, part in enumerate(parts) if b"\n" in part or b"\r" in part]
    assert newlines
    for _ in range(sequences):
        ids = [rng.choice(newlines) if rng.random() < 0.3 else rng.randrange(len(parts)) for _ in range(30)]
        ours = b"".join(parts[i] for i in ids).decode("utf-8", "replace")
        theirs = decoded(tokenizer, ids)
        # A byte-fallback decoder shows one replacement mark per bad byte and judges runs as a whole.
        ours, theirs = (text.replace("\ufffd", "").lstrip(" ") for text in (ours, theirs))
        assert [c for c in ours if c in "\r\n"] == [c for c in theirs if c in "\r\n"]


def test_byte_level_tokens() -> None:
    tokenizer = byte_level()
    check_against_decoder(tokenizer)
    parts = token_bytes(tokenizer)
    for text in ("one.\n\ntwo é\r\n\r\n", "<blank>\n\nx<|end|>\n"):
        assert b"".join(parts[i] for i in tokenizer.encode(text, add_special_tokens=False)) == text.encode()
    # An added token inside the byte alphabet is read as bytes by the decoder, so by us too.
    assert parts[tokenizer.convert_tokens_to_ids("<é>")] == b"<\xe9>"


def test_metaspace_and_byte_tokens() -> None:
    tokenizer = unigram()
    parts = token_bytes(tokenizer)
    assert parts[tokenizer.convert_tokens_to_ids("<0x0A>")] == b"\n"
    assert parts[tokenizer.convert_tokens_to_ids("\u2581the")] == b" the"
    assert parts[tokenizer.convert_tokens_to_ids("<br>\r\n")] == b"<br>\r\n"
    ids = tokenizer.encode("the a b.\n\né<br>\r\n", add_special_tokens=False)
    assert b"".join(parts[i] for i in ids).decode().lstrip(" ") == "the a b.\n\né<br>\r\n"
    table = BoundaryTable.for_tokenizer(tokenizer, cache=False)
    state, fired = OTHER, []
    for i in [tokenizer.convert_tokens_to_ids("<0x0A>")] * 2:
        fired.append(bool(table.fires[state, i]))
        state = int(table.next_state[state, i])
    assert fired == [False, True]


def test_unknown_decoder_falls_back_to_decoding() -> None:
    from tokenizers import decoders

    tokenizer = byte_level()
    want = token_bytes(tokenizer)
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.CTC("<pad>", "|", False)])
    got = token_bytes(tokenizer)
    for ours, theirs in zip(got, want, strict=True):
        assert [b for b in ours if b in b"\r\n"] == [b for b in theirs if b in b"\r\n"]


def test_tiny_model_tokenizer(tiny_tokenizer) -> None:
    check_against_decoder(tiny_tokenizer)


def test_testbed_tokenizer(request) -> None:
    from transformers import AutoTokenizer

    folder = request.getfixturevalue("shared_testbed")
    check_against_decoder(AutoTokenizer.from_pretrained(folder / "main"))


@pytest.mark.slow
def test_embedded_model_tokenizer() -> None:
    """49,152 real tokens (SmolLM2), every one against its own decoding."""
    from transformers import AutoTokenizer

    embedded = pytest.importorskip("resetcli.models.embedded")
    available, reason = embedded.embedded_available()
    if not available:
        pytest.skip(reason)
    tokenizer = AutoTokenizer.from_pretrained(embedded.embedded_model_dir(None))
    parts = token_bytes(tokenizer)
    assert len(parts) == len(tokenizer) == 49_152
    for index, part in enumerate(parts):
        assert part.decode("utf-8", "replace") == decoded(tokenizer, [index])
    text = "First.\n\nSecond:\r\n\r\nthird é\n"
    assert b"".join(parts[i] for i in tokenizer.encode(text)) == text.encode()


def test_cache_is_used_and_survives_damage(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RESET_CACHE", str(tmp_path / "c"))
    tokenizer = byte_level()
    fresh = BoundaryTable.for_tokenizer(tokenizer, cache=False)
    assert not cache_dir().exists()

    def check() -> None:
        table = BoundaryTable.for_tokenizer(tokenizer)
        assert torch.equal(table.fires, fresh.fires) and torch.equal(table.next_state, fresh.next_state)

    check()
    (path,) = (tmp_path / "c" / "boundaries").iterdir()
    packed = np.load(path, allow_pickle=False)
    np.save(path, packed ^ 4, allow_pickle=False)
    assert torch.equal(BoundaryTable.for_tokenizer(tokenizer).fires, ~fresh.fires)  # so it was read
    for damage in (b"", b"junk", pickle.dumps({"a": 1}), path.read_bytes()[:-9]):
        path.write_bytes(damage)
        check()
    tokenizer.add_tokens(["\n\nnew"])
    assert BoundaryTable.for_tokenizer(tokenizer).n_tokens == fresh.n_tokens + 1
    assert len(list(path.parent.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/dev/null"), reason="needs a path that is no folder")
def test_unwritable_cache_costs_only_time(monkeypatch) -> None:
    monkeypatch.setenv("RESET_CACHE", "/dev/null/nowhere")
    assert BoundaryTable.for_tokenizer(byte_level()).n_tokens == len(byte_level())
