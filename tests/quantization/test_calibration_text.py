"""Calibration text: every source, whole rows without padding, and one line for files that cannot serve."""

from __future__ import annotations

import json

import pytest
import torch

from resetcli.base.errors import ResetError
from resetcli.base.files import sha256_file
from resetcli.base.reporting import CollectingReporter
from resetcli.quantization.calibration_text import bundled_documents, load_documents, token_rows


def rows_of(documents, tokenizer, rows, length):
    reporter = CollectingReporter()
    return token_rows(documents, tokenizer, rows, length, reporter).ids, reporter.warnings


def test_bundled_text_is_varied_and_apart_from_the_held_out_text():
    texts, held = bundled_documents().texts, bundled_documents("heldout_text.txt").texts
    assert len(texts) >= 40 and len(set(texts)) == len(texts) and len(held) >= 8
    assert not set(texts) & set(held)
    lines = {line for text in texts for line in text.splitlines() if len(line) > 25}
    assert not [line for text in held for line in text.splitlines() if line in lines]


def test_rows_are_whole_in_order_and_without_padding(tiny_tokenizer):
    documents = bundled_documents()
    ids, warnings = rows_of(documents, tiny_tokenizer, 5, 64)
    assert ids.shape == (5, 64) and ids.dtype == torch.int64 and warnings == []
    assert tiny_tokenizer.pad_token_id not in ids
    stream = []
    for text in documents.texts:
        stream += [*tiny_tokenizer(text)["input_ids"], tiny_tokenizer.eos_token_id]
    assert ids.flatten().tolist() == stream[: 5 * 64]


def test_each_row_opens_with_one_bos_where_the_tokenizer_adds_one(tiny_bos_tokenizer):
    ids, _ = rows_of(bundled_documents(), tiny_bos_tokenizer, 4, 64)
    assert ids[:, 0].tolist() == [tiny_bos_tokenizer.bos_token_id] * 4
    assert tiny_bos_tokenizer.bos_token_id not in ids[:, 1:]


def test_files(tmp_path, tiny_tokenizer):
    text = "The sum is five.\n\n" * 30
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text(text)
    lines.write_text("\n".join([json.dumps({"text": text}), "not json", json.dumps({"other": 1}), '{"text": " "}']))
    assert load_documents(str(plain)).texts == load_documents(str(lines)).texts == [text]
    assert load_documents(str(plain)).sha256 == sha256_file(plain)
    assert load_documents(str(plain)).origin == "a.txt"


def test_short_text_gives_fewer_rows_and_a_warning(tmp_path, tiny_tokenizer):
    file = tmp_path / "short.txt"
    file.write_text("The sum is five, so we take five apples. " * 4)
    ids, warnings = rows_of(load_documents(str(file)), tiny_tokenizer, 8, 4096)
    assert len(ids) == 1 and ids.shape[1] < 4096 and len(warnings) == 1 and "short.txt" in warnings[0]
    file.write_text("Five.")
    with pytest.raises(ResetError, match=r"short\.txt gives only \d+ tokens"):
        rows_of(load_documents(str(file)), tiny_tokenizer, 8, 64)


@pytest.mark.parametrize("content", ["", "\n\n", "[1, 2]\n", '{"problem": "x"}\n', '{"text": 3}\n{"text": ""}\n'])
def test_a_file_with_no_usable_line_is_named(tmp_path, content):
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(ResetError, match=r"bad\.jsonl has no usable line.*text"):
        load_documents(str(file))


def test_other_things_that_are_no_text(tmp_path):
    with pytest.raises(ResetError, match="is a folder"):
        load_documents(str(tmp_path))
    with pytest.raises(ResetError, match="does not exist"):
        load_documents(str(tmp_path / "gone.txt"))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResetError, match="UTF-8"):
        load_documents(str(tmp_path / "b.txt"))


def test_an_unreachable_data_set_is_one_line():
    with pytest.raises(ResetError, match=r"nobody/nothing cannot be read from the hub.*--calib-data"):
        load_documents("nobody/nothing")


def test_the_shared_calibration_file(shared_data, tiny_tokenizer):
    documents = load_documents(str(shared_data / "calibration_text.jsonl"))
    assert len(documents.texts) == 64
    ids, _ = rows_of(documents, tiny_tokenizer, 8, 128)
    assert ids.shape == (8, 128)
