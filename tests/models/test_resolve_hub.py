"""The hub's refusals against a real HTTP server on this machine that answers as the hub does.

In a child process, because huggingface_hub reads its endpoint when it is imported.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading

import pytest

SCRIPT = """
from resetcli.base.errors import ResetError
from resetcli.models.resolve import resolve_model
import sys
try:
    print("found", resolve_model(sys.argv[1]).path)
except ResetError as exc:
    print("error:", exc)
"""


@pytest.fixture
def hub(request):
    status, code = request.param

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(endpoint: str, spec: str, tmp_path) -> str:
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        env.pop(name, None)
    done = subprocess.run([sys.executable, "-c", SCRIPT, spec], env=env, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout + done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("hub", "spec", "says"),
    [
        ((403, "GatedRepo"), "some/model", "the hub gates it; accept its terms there and set HF_TOKEN"),
        ((404, "RepoNotFound"), "some/model", "the hub does not know it"),
        ((404, "RevisionNotFound"), "some/model@v9", "has no revision v9"),
    ],
    indirect=["hub"],
)
def test_refusals(hub, spec, says, tmp_path):
    line = ask(hub, spec, tmp_path)
    assert line.startswith(f"error: model {spec} is not a directory here") and says in line


def test_nobody_listens(tmp_path):
    line = ask("http://127.0.0.1:9", "some/model", tmp_path)
    assert "the hub cannot be reached (no connection)" in line and "copy the model to a directory" in line
