"""The hub without the hub: its cache filled with invented rows, and a small server that answers as the hub does.

Each case runs in a process of its own, since the hub library reads its environment at import.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from resetcli.data import gpqa, hub, livecodebench

SCRIPT = """
import json, sys
from resetcli.base.errors import ResetError
from resetcli.data import hub
from resetcli.data.sources import DataSource, load_task_rows, load_wikitext
from resetcli.data.problems import load_calibration_problems
hub.PROBE_SECONDS = 1.0
source, out = DataSource(), {}
for task in sys.argv[1:]:
    try:
        if task == "wikitext":
            out[task] = load_wikitext(source)[0]
        elif task == "numinamath":
            chosen = load_calibration_problems(source, 2, 0)
            out[task] = [chosen.ids, chosen.answers, chosen.dataset]
        else:
            rows = load_task_rows(task, source).rows
            out[task] = [[row["doc_id"], row["target"], row["alt_answers"]] for row in rows]
    except ResetError as exc:
        out[task] = str(exc)
assert "torch" not in sys.modules
print(json.dumps(out))
"""


def ask(*tasks: str, **env: str) -> dict:
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *tasks], env={**clean, **env}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def cache(tmp_path):
    """A hub cache as the library lays it out: refs/<name> holds a commit, snapshots/<commit>/ the files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def put(dataset: str, name: str, content: object) -> None:
        entry = hub.HUB[dataset]
        root = tmp_path / "hub" / f"datasets--{entry.repo.replace('/', '--')}"
        commit = entry.revision if entry.revision != "main" else "0" * 40
        (root / "refs").mkdir(parents=True, exist_ok=True)
        (root / "refs" / entry.revision).write_text(commit)
        path = root / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(content), path)
        else:
            path.write_text(content)

    url = "https://artofproblemsolving.com/wiki/index.php/{}_AIME_{}_Problems/Problem_{}"
    rows = [(2022, "II", 8, "080"), (2023, "I", 15, "349"), (2024, "I", 1, "204")]
    put(
        "aime22-24",
        hub.HUB["aime22-24"].files[0],
        [{"id": 1, "problem": "p", "answer": answer, "url": url.format(*key)} for *key, answer in rows],
    )
    put("aime25", "test.jsonl", '{"problem": "p", "answer": "70", "id": "0"}\n')
    put("math500", "test.jsonl", '{"problem": "p", "answer": "x", "unique_id": "u"}\n')
    put("gsm8k", hub.HUB["gsm8k"].files[0], [{"question": "q", "answer": "w\n#### 5"}])
    put("wikitext", hub.HUB["wikitext"].files[0], [{"text": ""}, {"text": " = A = \n"}, {"text": ""}])
    put("gpqa", "gpqa_diamond.csv", ",".join(gpqa.COLUMNS) + "\nq,right,w1,w2,w3,rec1\n")
    for shard, name in livecodebench.SHARDS.items():
        case = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
        row = {"question_id": shard, "question_content": "q", "contest_date": "2024-01-01", "public_test_cases": case}
        put(f"livecodebench-{shard}", name, json.dumps(row) + "\n")
    for part, name in enumerate(hub.HUB["numinamath"].files):
        put("numinamath", name, [{"problem": f"p{part}", "answer": ["1", "proof", "x"][part], "solution": "s"}])
    return str(tmp_path)


def test_cached_data_sets_serve_offline(cache):
    tasks = ("aime", "math500", "gsm8k", "wikitext", "gpqa", "livecodebench", "numinamath")
    got = ask(*tasks, HF_HOME=cache, HF_HUB_OFFLINE="1")
    assert got["livecodebench"] == [[f"v{n}", f"v{n}", []] for n in range(1, 7)]
    assert got["aime"] == [
        ["2022-II-8", "080", ["81"]],
        ["2023-I-15", "349", []],
        ["2024-I-1", "204", []],
        ["2025-0", "70", []],
    ]
    assert got["math500"] == [["u", "x", []]] and got["gsm8k"] == [["0", "5", []]]
    assert got["wikitext"] == " \n = A = \n \n"
    assert got["gpqa"] == [["rec1", "ABCD"[gpqa.choice_order("rec1").index(0)], []]]
    ids, answers, name = got["numinamath"]
    assert len(ids) == 2 and answers == [["1", None, "x"][index] for index in ids]
    assert name == "AI-MO/NuminaMath-1.5@main"


def test_offline_is_one_line_with_the_way_out(tmp_path):
    for task, line in ask("aime22", "gpqa", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1").items():
        entry = hub.HUB["aime22-24" if task == "aime22" else task]
        assert line.startswith(f"data set {entry.repo} is not available: offline (HF_HUB_OFFLINE is set)")
        assert line.endswith("--data-dir")


class _Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        if self.path == "/":
            self.send_response(200)
        else:
            self.send_response(self.server.status)
            for key, value in self.server.extra.items():
                self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


@pytest.fixture
def fake_hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "token", "reason"),
    [
        (401, "GatedRepo", "", "it is gated and there is no token"),
        (403, "GatedRepo", "hf_x", "it is gated and this token has no access"),
        (404, "RepoNotFound", "", "the hub has no Idavidrein/gpqa at main"),
    ],
)
def test_the_hubs_refusals_are_named(fake_hub, tmp_path, status, code, token, reason):
    fake_hub.status, fake_hub.extra = status, {"X-Error-Code": code, "X-Error-Message": "no"}
    env = {"HF_TOKEN": token} if token else {}
    line = ask("gpqa", HF_HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{fake_hub.server_port}", **env)["gpqa"]
    assert reason in line and line.startswith("data set Idavidrein/gpqa") and "--data-dir" in line


def test_a_silent_host_costs_seconds_not_minutes(tmp_path):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        lines = ask(
            "aime", "gpqa", "gsm8k", HF_HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
    assert all("offline" in line and "--data-dir" in line for line in lines.values())
    assert time.monotonic() - began < 20
