"""Each command at work on tiny models: its document, what goes to which stream, what an interruption leaves."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess

import pytest
from cli_process import command, environment

CONTROL = re.compile(r"[\x1b\r]")


@pytest.fixture(scope="module")
def own_checkpoint(tiny_checkpoint, tmp_path_factory):
    """A copy of the tiny checkpoint that these tests may write into."""
    return shutil.copytree(tiny_checkpoint, tmp_path_factory.mktemp("cli") / "tiny-nvfp4")


def generated(reset, checkpoint, *args, **more):
    return reset("generate", checkpoint, "-p", "Two plus three?", "--max-new-tokens", 12, *args, **more)


def test_generate_document_and_stream_agree(reset, own_checkpoint, tmp_path) -> None:
    document = generated(reset, own_checkpoint, "--json", "--tau0", "1.5")
    assert document.code == 0, document.err
    found = json.loads(document.out)
    assert set(found) == {"text", "n_tokens", "finish_reason", "seed", "tokens_per_s", "policy"}
    assert found["n_tokens"] <= 12 and found["seed"] == 0 and found["tokens_per_s"] > 0
    assert found["policy"]["name"] == "reset" and found["policy"]["tau_0_source"] == "option"

    streamed = generated(reset, own_checkpoint, "--tau0", "1.5", "--trace", "t.jsonl", "--color")
    assert streamed.code == 0, streamed.err
    assert streamed.out.rstrip("\n") == found["text"].rstrip("\n")
    assert not CONTROL.search(streamed.out.replace(found["text"].rstrip("\n"), "")), "no colours into a pipe"
    assert not CONTROL.search(streamed.err)
    assert "policy reset: estimator hybrid, tau_0 1.5" in streamed.err
    closing = streamed.err.splitlines()[-1]
    assert re.fullmatch(
        rf"{found['n_tokens']} tokens, [\d.]+ tokens/s, \d+ % cooled, \d+ steps?, \d+ % in uncertain steps, "
        rf"finished by {found['finish_reason']}",
        closing,
    )
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines[0]["trace"] == 1 and lines[0]["policy"] == found["policy"] and lines[0]["seed"] == 0
    assert len(lines) == 1 + found["n_tokens"]
    assert "".join(line["text"] for line in lines[1:]) == found["text"]
    cooled = sum(line["temperature"] < 1 for line in lines[1:])
    assert f", {100 * cooled / found['n_tokens']:.0f} % cooled" in closing


def test_generate_reads_standard_input_and_files(reset, own_checkpoint, tmp_path) -> None:
    args = ("generate", own_checkpoint, "--max-new-tokens", 6, "--policy", "greedy", "--quiet")
    (tmp_path / "p.txt").write_text("Two plus three?\n")
    by_pipe = reset(*args, stdin="Two plus three?\n")
    by_file = reset(*args, "-f", "p.txt")
    by_option = reset(*args, "-p", "Two plus three?")
    assert by_pipe.code == by_file.code == by_option.code == 0
    assert by_pipe.out == by_file.out == by_option.out != ""
    assert by_pipe.err == "", "quiet is quiet"


def test_prompt_longer_than_the_context(reset, own_checkpoint) -> None:
    ran = reset("generate", own_checkpoint, "--quiet", stdin="many words " * 4000, env={})
    assert ran.code == 1 and ran.out == ""
    assert re.search(r"the prompt has \d+ tokens and the context of tiny-nvfp4 is \d+; shorten it", ran.error)


def test_color_on_a_terminal_and_chat(own_checkpoint) -> None:
    """A chat of one turn on a pseudo-terminal: prompt sign, painted tokens, closing line, empty line ends."""
    primary, secondary = pty.openpty()
    args = ("generate", own_checkpoint, "--color", "--max-new-tokens", 6, "--tau0", 2, "--seed", 3)
    env = environment(TERM="xterm", COLUMNS="200")
    process = subprocess.Popen(command(*args), stdin=secondary, stdout=secondary, stderr=secondary, env=env)
    os.close(secondary)
    seen, sent = b"", 0
    while True:
        try:
            part = os.read(primary, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
        if seen.count(b"> ") > sent and seen.endswith(b"> ") and sent < 2:
            os.write(primary, b"Two plus three?\n" if not sent else b"\n")
            sent += 1
    assert process.wait(timeout=60) == 0
    os.close(primary)
    text = seen.decode()
    assert re.search(r"\x1b\[(4|24);38;2;\d+;\d+;\d+m", text) and "tokens/s" in text and sent == 2


def test_inspect(reset, own_checkpoint) -> None:
    found = json.loads(reset("inspect", own_checkpoint, "--json").out)
    assert found["nvfp4"] and found["quantized_layers"] > 0 and found["fingerprint"]
    shown = reset("inspect", own_checkpoint)
    assert shown.code == 0 and found["fingerprint"] in shown.out and "block scales" in shown.out
    assert not CONTROL.search(shown.out + shown.err)


BROKEN = {
    "hidden_size of letters": ("config.json", {"hidden_size": "abc"}, "config.json: .*hidden_size"),
    "a negative hidden_size": ("config.json", {"hidden_size": -64}, "config.json: .*negative"),
    "no heads": ("config.json", {"num_attention_heads": 0}, "config.json: .*zero"),
    "architectures of another type": ("config.json", {"architectures": 3}, "architectures in its config.json"),
    "blocks of letters": (
        "config.json",
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": "abc"}},
        "description of its quantization is broken .*'abc'.*config.json",
    ),
    "an expression that is none": (
        "config.json",
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["re:("]}},
        "description of its quantization is broken .*config.json",
    ),
    "an empty tokenizer": ("tokenizer.json", {}, "has no usable tokenizer: "),
    "a list of generation settings": ("generation_config.json", [], "generation_config.json cannot be read"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_of_a_model_are_named(what, tiny_checkpoint, tmp_path, monkeypatch, capfd) -> None:
    from resetcli.cli.main import main

    name, change, message = BROKEN[what]
    model = shutil.copytree(tiny_checkpoint, tmp_path / "b-nvfp4")
    whole = json.loads((model / name).read_text()) | change if name == "config.json" else change
    (model / name).write_text(json.dumps(whole))
    monkeypatch.chdir(tmp_path)
    assert main(["generate", str(model), "-p", "x", "--max-new-tokens", "2", "--quiet", "--tau0", "1"]) == 1
    out, err = capfd.readouterr()
    assert out == "" and re.fullmatch(rf"error: [^\n]*{message}[^\n]*\n", err)
    assert "b-nvfp4" in err and "--debug" not in err


def test_calibrate_writes_the_configuration(reset, tiny_checkpoint, tiny_model_dir, tmp_path) -> None:
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "c-nvfp4")
    (tmp_path / "p.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n{"problem": "2 + 2?", "answer": "4"}\n')
    ran = reset("calibrate", checkpoint, "--problems", "p.jsonl", "--max-new-tokens", 8, "--compare", tiny_model_dir,
                "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    saved = json.loads((checkpoint / "reset_config.json").read_text())
    assert saved == found["reset_config"] and saved["tau_0"] == found["tau_0"]
    assert found["compare"]["tokens"] == saved["calibration"]["tokens"]

    used = generated(reset, checkpoint, "--json")
    assert json.loads(used.out)["policy"]["tau_0"] == found["tau_0"]
    assert json.loads(used.out)["policy"]["tau_0_source"] == "reset_config.json"

    saved["calibration"]["model_fingerprint"] = "0" * 64
    (checkpoint / "reset_config.json").write_text(json.dumps(saved))
    assert "warning: reset_config.json was calibrated on another model" in generated(reset, checkpoint).err
    (checkpoint / "reset_config.json").write_text('{"format": 1, "tau_0": 0.5, "tauu": 1}')
    bad = generated(reset, checkpoint)
    assert bad.code == 1 and "unknown key 'tauu'" in bad.error


@pytest.mark.long
def test_calibrate_selects_t_low(reset, tiny_checkpoint, tmp_path) -> None:
    """Tried under the policy that will decode; what cannot work is refused before a model is loaded."""
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "t-nvfp4")
    rows = [{"id": f"p{i}", "problem": f"{i} + {i}?", "answer": str(2 * i)} for i in range(6)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ("calibrate", checkpoint, "--problems", "p.jsonl", "--max-new-tokens", 8, "--repeats", 2)
    for wrong, code, message in (
        (("--select-t-low", "0.1,0.3"), 1, "needs 8 held-out problems with answers beside the 5 of tau_0"),
        (
            ("--select-t-low", "0.1,1.3", "--select-problems", 1),
            2,
            "--t-low 1.3 must not be above --t-high (default) 1",
        ),
    ):
        ran = reset(*args, *wrong, "--quiet")
        assert ran.code == code and message in ran.error and ran.err == ran.error + "\n"
        assert not (checkpoint / "reset_config.json").exists()

    chosen = ("--select-t-low", "0.3,0.1", "--select-problems", 1, "--top-p", 0.9, "--t-high", 1.2)
    ran = reset(*args, *chosen, "--json")
    assert ran.code == 0, ran.err
    selection = json.loads(ran.out)["t_low_selection"]
    assert set(selection["avg@k"]) == {"0.1", "0.3"} and (selection["problems"], selection["repeats"]) == (1, 2)
    assert selection["t_low"] == min((0.1, 0.3), key=lambda t: (-selection["avg@k"][f"{t:g}"], t))
    saved = json.loads((checkpoint / "reset_config.json").read_text())
    assert saved["t_low"] == selection["t_low"] and (saved["top_p"], saved["t_high"]) == (0.9, 1.2)
    assert saved["t_low_by_task"]["aime"] == selection["t_low"] and "gpqa" not in saved["t_low_by_task"]
    assert saved["calibration"]["t_low_selection"] == [selection]
    if len(set(selection["avg@k"].values())) == 1:
        assert "warning: every T_low scores" in ran.err

    shown = reset(*args, *chosen, "--tasks", "gpqa")
    assert shown.code == 0 and f"T_low {selection['t_low']:g} for gpqa" in shown.out
    saved = json.loads((checkpoint / "reset_config.json").read_text())
    assert saved["t_low_by_task"] == {"gpqa": selection["t_low"]}


def test_calibrate_refuses_t_low_above_t_high_before_any_answer(reset, tiny_checkpoint, tmp_path) -> None:
    """Whatever each of them comes from: an option, the file that is there, the default."""
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "t-nvfp4")
    (tmp_path / "p.jsonl").write_text('{"problem": "1 + 1?"}\n')
    args = ("calibrate", checkpoint, "--problems", "p.jsonl", "--max-new-tokens", 4, "--quiet")
    ran = reset(*args, "--t-low", 2)
    assert ran.code == 2 and ran.err == "error: --t-low 2 must not be above --t-high (default) 1\n"
    old = {"format": 1, "tau_0": 0.5, "t_low": 0.5, "t_high": 0.8, "t_low_by_task": {"own": 0.7}}
    (checkpoint / "reset_config.json").write_text(json.dumps(old))
    for wrong, message in (
        (("--t-low", 0.9), "--t-low 0.9 must not be above --t-high (reset_config.json) 0.8"),
        (("--t-high", 0.3), "--t-low (reset_config.json) 0.5 must not be above --t-high 0.3"),
        (("--t-high", 0.6), "t_low_by_task.own (reset_config.json) 0.7 must not be above --t-high 0.6"),
    ):
        ran = reset(*args, *wrong)
        assert ran.code == 2 and ran.err == f"error: {message}\n"
    assert json.loads((checkpoint / "reset_config.json").read_text()) == old


def test_calibrate_never_writes_into_a_bf16_model(reset, tiny_model_dir, tmp_path) -> None:
    (tmp_path / "p.jsonl").write_text('{"problem": "1 + 1?"}\n')
    args = ("calibrate", tiny_model_dir, "--problems", "p.jsonl", "--max-new-tokens", 4)
    refused = reset(*args)
    assert refused.code == 2 and "pass -o DIR" in refused.error
    ran = reset(*args, "-o", "config")
    assert ran.code == 0, ran.err
    assert (tmp_path / "config" / "reset_config.json").is_file()
    assert not (tiny_model_dir / "reset_config.json").exists()
    used = generated(reset, tiny_model_dir, "--policy", "reset", "--config", "config", "--json")
    assert json.loads(used.out)["policy"]["tau_0_source"] == "reset_config.json"
    plain = generated(reset, tiny_model_dir, "--json")
    assert json.loads(plain.out)["policy"]["name"] == "fixed", "the default policy of a BF16 directory"


def test_eval_goes_on_and_reports_a_finished_run(reset, own_checkpoint, tmp_path) -> None:
    args = ("eval", own_checkpoint, "--tasks", " own, ", "--limit", 2, "--max-new-tokens", 6, "--tau0", 1)
    ran = reset(*args, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    task = found["results"]["own"]
    assert task["n"] == 2 and {"avg@k", "ci95", "pass@k", "maj@k", "truncated", "unparsed"} <= set(task)
    runs = list((tmp_path / "reset-runs").iterdir())
    assert [str(run) for run in runs] == [found["run"]]
    assert re.fullmatch(r"tiny-nvfp4-own-[0-9a-f]{8}", runs[0].name)
    assert not CONTROL.search(ran.err)
    again = reset(*args)
    assert again.code == 0 and "is finished" in again.err and "own" in again.out
    assert list((tmp_path / "reset-runs").iterdir()) == runs


def test_bench_document_and_table(reset, tmp_path) -> None:
    args = ("bench-kernels", "--M", " 1,2, ", "--shapes", "64x64", "--seconds", 0.1)
    ran = reset(*args, "--json", "-o", "bench.json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["ok"] and {row["m"] for row in found["rows"]} == {1, 2}
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    shown = reset(*args)
    assert shown.code == 0 and "64x64" in shown.out and not CONTROL.search(shown.out + shown.err)


def test_files_of_another_kind_are_not_written_over(reset, own_checkpoint, tmp_path) -> None:
    """A model file named by mistake stays; an earlier trace or bench document, or an empty file, may go."""
    model = shutil.copytree(own_checkpoint, tmp_path / "m-nvfp4")
    weights = (model / "model.safetensors").read_bytes()
    (tmp_path / "p.txt").write_text("Two plus three?")
    bench = ("bench-kernels", "--M", 1, "--shapes", "64x64", "--seconds", 0)
    trace = ("generate", model, "-f", "p.txt", "--max-new-tokens", 3, "--quiet")
    for args, option, name, kind in (
        (trace, "--trace", model / "model.safetensors", "a trace"),
        (trace, "--trace", model / "config.json", "a trace"),
        (trace, "--trace", tmp_path / "p.txt", "a trace"),
        (bench, "-o", model / "config.json", "a bench document"),
        (bench, "-o", model / "model.safetensors", "a bench document"),
        ((*bench, "--tune"), "--tune-output", model / "config.json", "a table of kernels"),
    ):
        before = name.read_bytes()
        ran = reset(*args, option, name)
        assert ran.code == 2 and ran.out == ""
        assert (
            ran.err == f"error: {option} {name} is there already and is not {kind}; choose another file, or delete it\n"
        )
        assert name.read_bytes() == before
    long = reset(*trace, "--trace", "a" * 300)
    assert long.code == 1 and "cannot be written: File name too long" in long.error and len(long.err) < 300
    (tmp_path / "t.jsonl").touch()
    for _ in range(2):
        assert reset(*trace, "--trace", "t.jsonl").code == 0
        assert reset(*bench, "-o", "b.json").code == 0
    assert json.loads((tmp_path / "b.json").read_text())["bench"] == "kernels"
    assert (model / "model.safetensors").read_bytes() == weights


def test_quantize_through_a_link(reset, tiny_model_dir, tmp_path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    (tmp_path / "gone").symlink_to("nowhere")
    args = ("quantize", tiny_model_dir, "--quiet", "--calib-samples", 1, "--calib-length", 32, "-o")
    refused = reset(*args, "gone")
    assert refused.code == 1 and "is a link to nowhere, which is not there" in refused.error
    assert reset(*args, "out").code == 0
    assert (tmp_path / "out").is_symlink() and (tmp_path / "disk" / "config.json").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".reset", "disk", "gone", "out"]


def test_quantize_the_chain_and_last(reset, tiny_model_dir, tmp_path) -> None:
    ran = reset("quantize", tiny_model_dir, "--json", "--calib-samples", 1, "--calib-length", 32)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    made = tmp_path / f"{tiny_model_dir.name}-nvfp4"
    assert found["path"] == str(made) and (made / "quantize_report.json").is_file()
    assert (tmp_path / ".reset" / "last").read_text().strip() == str(made)
    assert not CONTROL.search(ran.err)
    last = reset("inspect", "--json")
    assert json.loads(last.out)["path"] == str(made.resolve())
    assert "made last by `reset quantize` in this folder" in last.err
    full = reset("quantize", tiny_model_dir)
    assert full.code == 1 and "not empty" in full.error
    twice = reset("quantize", made, "-o", "x")
    assert twice.code == 1 and "NVFP4" in twice.error and not (tmp_path / "x").exists()
