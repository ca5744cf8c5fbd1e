"""The run folder: torn lines at every byte, locks, settings by name, damage, a full disk."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.base.errors import ResetError
from resetcli.evaluation.runs import (
    SAMPLE_KEYS,
    RunFolder,
    default_directory,
    differences,
    read_samples,
    settings_hash,
)

SETTINGS = {"model_fingerprint": "f", "policy": {"name": "fixed", "temperature": 0.6}, "seed": 0}


def sample(i: int, text: str = "a\nb\u2028c é \x00 \U0001f600"):
    values = ("aime", f"d{i}", 0, i, "0" * 64, text, 3, "stop", "7", "7", 1, "correct", "Q?")
    return dict(zip(SAMPLE_KEYS, values, strict=True))


def begun(path, n=0):
    with RunFolder(path, SETTINGS) as folder:
        folder.begin({"run": 1})
        for i in range(n):
            folder.add(sample(i))


def test_samples_come_back(tmp_path) -> None:
    begun(tmp_path / "run", 3)
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert list(folder.samples) == [("aime", f"d{i}", 0) for i in range(3)]
        assert folder.results() is None
    assert list(read_samples(tmp_path / "run")) == [sample(i) for i in range(3)]
    lines = (tmp_path / "run/samples.jsonl").read_bytes().split(b"\n")
    assert len(lines) == 4 and all(tuple(json.loads(line)) == SAMPLE_KEYS for line in lines[:-1])


def test_a_cut_at_any_byte_loses_only_the_torn_line(tmp_path) -> None:
    begun(tmp_path / "run", 3)
    path = tmp_path / "run/samples.jsonl"
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    near = {end + step for end in ends for step in (-1, 0, 1)}
    for cut in sorted({0, *near, *range(ends[1], len(data))} - {len(data) + 1}):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        with RunFolder(tmp_path / "run", SETTINGS) as folder:
            assert len(folder.samples) == whole
            for i in range(whole, 3):
                folder.add(sample(i))
        assert path.read_bytes() == data


def test_a_tail_of_nothing_is_cut_off_too(tmp_path) -> None:
    begun(tmp_path / "run", 2)
    path = tmp_path / "run/samples.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + bytes(300))
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert len(folder.samples) == 2
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("bad", "message"), [("{oops}\n", "line 2 is not JSON"), ('{"task": 1}\n', "line 2 is not a sample")]
)
def test_damage_before_the_end_is_an_error(tmp_path, bad, message) -> None:
    begun(tmp_path / "run", 1)
    path = tmp_path / "run/samples.jsonl"
    path.write_text(path.read_text() + bad + json.dumps(sample(2)) + "\n")
    with pytest.raises(ResetError, match=message):
        RunFolder(tmp_path / "run", SETTINGS)


def test_a_sample_twice_is_an_error(tmp_path) -> None:
    begun(tmp_path / "run", 1)
    path = tmp_path / "run/samples.jsonl"
    path.write_text(path.read_text() * 2)
    with pytest.raises(ResetError, match="line 2: a second sample of task aime, document d0, repeat 0; restore"):
        RunFolder(tmp_path / "run", SETTINGS)


def test_changed_settings_are_named(tmp_path) -> None:
    begun(tmp_path / "run", 1)
    other = {**SETTINGS, "policy": {"name": "reset", "temperature": 0.6}, "limit": 2}
    with pytest.raises(ResetError) as error:
        RunFolder(tmp_path / "run", other)
    assert 'policy.name ("fixed", now "reset"); limit (null, now 2)' in str(error.value) and "\n" not in str(
        error.value
    )
    RunFolder(tmp_path / "run", SETTINGS).close()  # the refusal let go of the lock


@given(st.dictionaries(st.sampled_from("abc"), st.integers() | st.dictionaries(st.sampled_from("xy"), st.integers())))
def test_differences_are_none_only_for_equals(value) -> None:
    assert differences(value, json.loads(json.dumps(value))) == []
    assert differences(value, {**value, "d": 1}) == ["d (null, now 1)"]


def test_a_second_writer_is_refused(tmp_path) -> None:
    with RunFolder(tmp_path / "run", SETTINGS):
        code = (
            "import sys; from resetcli.evaluation.runs import RunFolder\n"
            "try: RunFolder(sys.argv[1], {})\nexcept Exception as e: print(type(e).__name__, e)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
        assert done.stdout.startswith("ResetError run ") and "is being written by another process" in done.stdout
    RunFolder(tmp_path / "run", SETTINGS).close()


def test_folders_that_are_no_runs(tmp_path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("years of work")
    with pytest.raises(ResetError, match=r"not empty and holds no run\.json"):
        RunFolder(tmp_path / "full", SETTINGS)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResetError, match="is a file"):
        RunFolder(tmp_path / "file", SETTINGS)
    (tmp_path / "odd").mkdir()
    for text in ("[]", '{"settings": {}}', '{"run": 1}', '{"run": 1, "settings": {}, "engine": 3}'):
        (tmp_path / "odd/run.json").write_text(text)
        with pytest.raises(ResetError, match="not the record of a run"):
            RunFolder(tmp_path / "odd", SETTINGS)
    assert os.listdir(tmp_path / "full") == ["thesis.txt"] and os.listdir(tmp_path / "odd") == ["run.json"]


def test_a_run_that_fails_before_its_first_sample_leaves_nothing(tmp_path) -> None:
    for begin in (False, True):
        with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path / "a/run", SETTINGS) as folder:
            if begin:
                folder.begin({"run": 1})
            raise KeyboardInterrupt
        assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path / "run", SETTINGS) as folder:
        folder.begin({"run": 1})
        folder.add(sample(0))
        raise KeyboardInterrupt
    assert sorted(os.listdir(tmp_path / "run")) == ["run.json", "run.lock", "samples.jsonl"]


def test_failed_samples_are_forgotten_in_one_step(tmp_path) -> None:
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        folder.begin({"run": 1})
        for i in range(4):
            folder.add({**sample(i), "finish_reason": "error" if i % 2 else "stop"})
        folder.finish({"a": 1})
    for name in ("report.html", "results_lm-eval.json"):
        (tmp_path / "run" / name).write_text("of these results")
    path = tmp_path / "run/samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert folder.failed == 2 and folder.results() == {"a": 1}
        folder.forget_failed()
        assert folder.failed == 0 and list(folder.samples) == [("aime", "d0", 0), ("aime", "d2", 0)]
        assert path.read_bytes() == lines[0] + lines[2] and folder.results() is None
        folder.add(sample(1))
    assert sorted(os.listdir(tmp_path / "run")) == ["run.json", "run.lock", "samples.jsonl"]
    assert len(list(read_samples(tmp_path / "run"))) == 3


def test_a_sample_after_failed_ones_were_forgotten_is_in_the_file(tmp_path) -> None:
    """The file that was open has lost its name by then."""
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        folder.begin({"run": 1})
        folder.add({**sample(0), "finish_reason": "error"})
        folder.forget_failed()
        folder.add(sample(1))
    assert [s["doc_id"] for s in read_samples(tmp_path / "run")] == ["d1"]


def test_no_room_for_the_first_sample_leaves_nothing(tmp_path, monkeypatch) -> None:
    plain = os.fsync

    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith("samples.jsonl"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResetError, match="No space left"):
        begun(tmp_path / "run", 1)
    assert not list(tmp_path.iterdir())


def test_new_names_are_flushed_to_the_disk(tmp_path, monkeypatch) -> None:
    """A power cut may lose a folder's entry of a file whose data is there."""
    plain, flushed = os.fsync, []

    def noted(handle):
        flushed.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        plain(handle)

    monkeypatch.setattr(os, "fsync", noted)
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        folder.begin({"run": 1})
        del flushed[:]
        folder.add({**sample(0), "finish_reason": "error"})
        folder.add(sample(1))
        assert flushed == ["run", "samples.jsonl", "samples.jsonl"]
        folder.forget_failed()
        assert flushed[3:] == [".tmp-samples.jsonl", "run"]


def test_a_folder_that_vanishes_while_it_is_looked_at(tmp_path, monkeypatch) -> None:
    """Another call, of which nothing came, takes it back."""
    (tmp_path / "run").mkdir()
    plain = Path.iterdir

    def vanishing(self):
        if self == tmp_path / "run" and not (self / "run.lock").exists():
            self.rmdir()
        return iter(list(plain(self)))

    monkeypatch.setattr(Path, "iterdir", vanishing)
    begun(tmp_path / "run", 1)
    assert len(list(read_samples(tmp_path / "run"))) == 1


def test_killed_before_the_first_record(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.lock").touch()
    (tmp_path / "run/.tmp-abc").write_text('{"ru')
    begun(tmp_path / "run", 1)
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert len(folder.samples) == 1


def test_no_room_left_keeps_whole_lines(tmp_path) -> None:
    """A file size limit of the process stands for the full disk: the write is cut in the middle of a line."""
    code = """if True:
        import resource, signal, sys
        sys.path.insert(0, sys.argv[2])
        from test_runs import SETTINGS, sample
        from resetcli.evaluation.runs import RunFolder
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
        folder = RunFolder(sys.argv[1], SETTINGS)
        folder.begin({"run": 1})
        try:
            for i in range(100): folder.add(sample(i, "x" * 500))
        except Exception as exc: print(type(exc).__name__, exc)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), os.path.dirname(__file__)], capture_output=True, text=True
    )
    assert done.stdout.startswith("ResetError cannot write") and "free space" in done.stdout, done.stderr
    assert (tmp_path / "run/samples.jsonl").read_bytes().endswith(b"\n")
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        kept = len(folder.samples)
        assert kept == 3
        folder.add(sample(kept))


def test_default_folder_names(tmp_path) -> None:
    path = default_directory("my model", ["aime", "gpqa"], SETTINGS, tmp_path)
    assert path == tmp_path / "reset-runs" / f"my_model-aime-gpqa-{settings_hash(SETTINGS)[:8]}"
    assert len(default_directory("m" * 500, ["t" * 90] * 9, SETTINGS, tmp_path).name) < 255
    # 255 bytes, not letters.
    assert len(default_directory("模" * 85, ["aime"], SETTINGS, tmp_path).name.encode()) < 255
    assert settings_hash({"b": 1, "a": 2}) == settings_hash({"a": 2, "b": 1}) != settings_hash({"a": 2, "b": 2})


def test_long_paths(tmp_path) -> None:
    deep = tmp_path / ("d" * 150) / ("e" * 150)
    begun(deep, 2)
    assert len(list(read_samples(deep))) == 2


def test_texts_do_not_stay_in_memory(tmp_path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        folder.begin({"run": 1})
        for i in range(100):
            folder.add(sample(i, "x" * 1_000_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
