"""Rules: every bad file is one line that names file and line; with a folder the hub is never asked; hashes follow
content. GPQA's texts are never printed, compared by hash or count only."""

from __future__ import annotations

import collections
import csv
import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from resetcli.base.errors import ResetError, UsageError
from resetcli.data import gpqa, hub
from resetcli.data.sources import AIME_YEARS, DataSource, check_available, load_task_rows, load_wikitext


def aime_line(**changes: object) -> str:
    row = {"id": "2022-I-1", "problem": "What is $1+1$?\n\nQuestion: say it.", "answer": "2", **changes}
    return json.dumps({key: value for key, value in row.items() if value is not None})


@pytest.fixture
def no_hub(monkeypatch):
    def asked(*_):
        raise AssertionError("the hub was asked although a folder was given")

    monkeypatch.setattr(hub, "unreachable", asked)
    monkeypatch.setattr(hub, "fetch", asked)


def test_rows_keep_problem_text_and_alternatives(tmp_path, no_hub):
    (tmp_path / "aime_2022.jsonl").write_text(aime_line(alt_answers=["3"], answer=2) + "\n\n")
    data = load_task_rows("aime22", DataSource(tmp_path))
    assert data.rows == [
        {
            "doc_id": "2022-I-1",
            "problem": "What is $1+1$?\n\nQuestion: say it.",
            "target": "2",
            "alt_answers": ["3"],
        }
    ]
    assert data.files == {"aime_2022.jsonl": hashlib.sha256((tmp_path / "aime_2022.jsonl").read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (aime_line() + "\n{bad\n", "line 2 is not valid JSON"),
        (aime_line() + "\n[1]\n", "line 2 is not a JSON object"),
        (aime_line(answer=None), "line 1: the row has no 'answer'"),
        (aime_line(answer=" "), "line 1: the row has no 'answer'"),
        (aime_line(problem=None), "line 1: the row has no 'problem'"),
        ("\n" + aime_line() + "\n" + aime_line(problem="x"), "line 3: id '2022-I-1' is already on line 2"),
        ("", "is empty"),
        ("\n \n", "is empty"),
        (b"\xff\xfe", "line 1 is not valid JSON"),
        (aime_line(alt_answers="81"), "'alt_answers' is not a list"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, content, message, no_hub):
    path = tmp_path / "aime_2022.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ResetError) as info:
        check_available(["aime22"], DataSource(tmp_path))
    assert message in str(info.value) and str(path) in str(info.value) and "\n" not in str(info.value)


@pytest.mark.parametrize("task", [*AIME_YEARS, "aime", "math500", "gsm8k", "wikitext", "gpqa"])
def test_missing_files_are_named(tmp_path, task, no_hub):
    with pytest.raises(ResetError, match=str(tmp_path)) as info:
        check_available([task], DataSource(tmp_path))
    names = {"math500": "math500.jsonl", "gsm8k": "gsm8k_test.jsonl", "wikitext": "wikitext2_test.txt"}
    assert names.get(task, "gpqa_dataset.zip" if task == "gpqa" else "aime_20") in str(info.value)


def test_unknown_task_and_missing_folder(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="did you mean aime"):
        check_available(["aimee"], DataSource(tmp_path))
    with pytest.raises(ResetError, match="--data-dir .*nowhere is not a directory"):
        DataSource.resolve(tmp_path / "nowhere")
    monkeypatch.setenv("RESET_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("RESET_GPQA_PASSWORD", "pw")
    source = DataSource.resolve()
    assert source.data_dir == tmp_path and source.gpqa_password == "pw"


def test_gsm8k_target_is_after_the_marks(tmp_path):
    path = tmp_path / "gsm8k_test.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "3 * 4 = 12\n#### 1,012"}))
    assert load_task_rows("gsm8k", DataSource(tmp_path)).rows[0]["target"] == "1,012"
    path.write_text(json.dumps({"question": "q", "answer": "12"}))
    with pytest.raises(ResetError, match="line 1: 'answer' has no final number"):
        load_task_rows("gsm8k", DataSource(tmp_path))


# GPQA: invented records, in an archive encrypted here.


def gpqa_csv(n: int = 40, **changes: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ["Extra", *gpqa.COLUMNS])
    writer.writeheader()
    for index in range(n):
        row = {
            "Extra": "x",
            "Question": f"Which\n\nis [right], {index}? ",
            "Correct Answer": f"[2-(right)] {index}\n",
            "Incorrect Answer 1": "w1",
            "Incorrect Answer 2": "w2",
            "Incorrect Answer 3": "w3",
            "Record ID": f"rec{index}",
        }
        writer.writerow({**row, **changes})
    return out.getvalue().encode()


def zip_crypto(plain: bytes, name: str, password: bytes) -> bytes:
    """A ZIP with one deflated member under traditional PKWARE encryption (APPNOTE 6.1), which zipfile only reads."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        table.append(value)
    keys = [0x12345678, 0x23456789, 0x34567890]

    def update(byte: int) -> None:
        keys[0] = (keys[0] >> 8) ^ table[(keys[0] ^ byte) & 0xFF]
        keys[1] = ((keys[1] + (keys[0] & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = (keys[2] >> 8) ^ table[(keys[2] ^ (keys[1] >> 24)) & 0xFF]

    for byte in password:
        update(byte)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = deflate.compress(plain) + deflate.flush()
    crc = zlib.crc32(plain)
    cipher = bytearray()
    for byte in bytes(range(11)) + bytes([crc >> 24]) + body:
        mix = (keys[2] | 2) & 0xFFFF
        cipher.append(byte ^ (((mix * (mix ^ 1)) >> 8) & 0xFF))
        update(byte)
    path = name.encode()
    common = struct.pack("<HHHHHIIIHH", 20, 1, 8, 0, 33, crc, len(cipher), len(plain), len(path), 0)
    local = b"PK\3\4" + common + path + bytes(cipher)
    central = b"PK\1\2" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + path
    return local + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)


def test_encrypted_archive_opens_with_its_password_only(tmp_path, no_hub):
    path = tmp_path / "gpqa_dataset.zip"
    path.write_bytes(zip_crypto(gpqa_csv(), "dataset/gpqa_diamond.csv", b"open sesame"))
    rows = load_task_rows("gpqa", DataSource(tmp_path, "open sesame")).rows
    assert len(rows) == 40
    with pytest.raises(ResetError, match="no password was given; pass --gpqa-password or set RESET_GPQA_PASSWORD"):
        check_available(["gpqa"], DataSource(tmp_path))
    for index in range(300):  # about one wrong password in 256 passes the archive's check byte
        with pytest.raises(ResetError, match="wrong password"):
            check_available(["gpqa"], DataSource(tmp_path, f"wrong {index}"))


def test_csv_choices_are_shuffled_by_record_and_kept_whole(tmp_path, no_hub):
    (tmp_path / "gpqa_diamond.csv").write_bytes(gpqa_csv())
    first, second = (load_task_rows("gpqa", DataSource(tmp_path)) for _ in range(2))
    assert first == second
    for index, row in enumerate(first.rows):
        assert row["problem"] == f"Which\n\nis [right], {index}? "
        assert row["choices"]["ABCD".index(row["target"])] == f"[2-(right)] {index}"
        assert sorted(row["choices"]) == sorted([f"[2-(right)] {index}", "w1", "w2", "w3"])
    assert set(collections.Counter(row["target"] for row in first.rows)) == set("ABCD")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Question,Record ID\r\nq,r\r\n", "lacks the columns Correct Answer"),
        (gpqa_csv(2, **{"Correct Answer": ""}), "has no 'Correct Answer'"),
        (gpqa_csv(2, **{"Record ID": "same"}), "id 'same' is already on line"),
        (gpqa_csv(1) + b"a,b\r\n", "wrong number of fields"),
        (gpqa_csv(1) + b"\xff", "is not UTF-8"),
        (gpqa_csv(0), "has no row"),
    ],
)
def test_bad_gpqa_files(tmp_path, content, message, no_hub):
    (tmp_path / "gpqa_diamond.csv").write_bytes(content)
    with pytest.raises(ResetError, match=message):
        check_available(["gpqa"], DataSource(tmp_path))


def test_archives_that_are_none(tmp_path, no_hub):
    path = tmp_path / "gpqa_dataset.zip"
    path.write_bytes(b"not a zip")
    with pytest.raises(ResetError, match="not a ZIP archive"):
        check_available(["gpqa"], DataSource(tmp_path, "x"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.csv", "x")
    with pytest.raises(ResetError, match=r"no member gpqa_diamond\.csv"):
        check_available(["gpqa"], DataSource(tmp_path, "x"))


# The real files.


def test_real_files_have_their_rows(shared_data: Path):
    source = DataSource(shared_data)
    assert len(load_task_rows("aime", source).rows) == 120
    assert {len(load_task_rows(year, source).rows) for year in AIME_YEARS} == {30}
    assert len(load_task_rows("math500", source).rows) == 500
    assert len(load_task_rows("gsm8k", source).rows) == 1319
    text, digest, _ = load_wikitext(source)
    assert digest == "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08" and len(text) > 1_000_000
    alternatives = [row["doc_id"] for row in load_task_rows("aime", source).rows if row["alt_answers"]]
    assert alternatives == ["2022-II-8"]


def test_real_gpqa_letters_are_balanced(shared_data: Path):
    if not os.environ.get("RESET_GPQA_PASSWORD"):
        pytest.skip("RESET_GPQA_PASSWORD is not set")
    rows = load_task_rows("gpqa", DataSource.resolve(shared_data)).rows
    counts = collections.Counter(row["target"] for row in rows)
    if sorted(counts.values()) != [49, 49, 50, 50]:
        pytest.fail(f"letters are not balanced: {dict(counts)}")
