"""Programs that attack: each is contained within its limits, and the next program runs as if nothing had been.

Every attack that a layer should stop also runs with that layer alone where one layer claims to stop it. What holds on
this machine is asked first; a layer that is missing skips what rests on it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from resetcli.data.lcb_tests import Case
from resetcli.data.livecodebench import Problem
from resetcli.evaluation.code.grade import judge
from resetcli.evaluation.code.sandbox import LAYERS, Containment, Limits, Sandbox, containment

QUICK = Limits(cpu=1, wall=2.0, memory=1 << 30, output=1 << 20, room=1 << 20)
LAYER_SETS = [
    LAYERS,
    *(pytest.param(s, marks=pytest.mark.long) for s in (("landlock", "seccomp"), ("namespaces", "files"))),
]


def run(code, data="", *, limits=QUICK, layers=LAYERS, function=None):
    with Sandbox(code, function, limits, layers) as box:
        lost = [layer for layer in layers if box.layers.get(layer) is not True]
        if lost:
            pytest.skip(f"not granted here: {lost}")
        return box.run(data)


def test_what_holds_here_is_said() -> None:
    found = containment()
    assert set(found.layers) >= {"namespaces", "files", "landlock", "seccomp", "capabilities"}
    assert Containment({"seccomp": "no", "namespaces": "no", "landlock": "no", "files": "no"}).gaps == [
        "use the network",
        "signal other processes of this user",
        "start further processes",
        "read and write this user's files",
        "take more memory than the limit",
        "fill the disk",
    ]
    assert Containment({"seccomp": True, "landlock": True}).gaps == ["fill the disk"]
    assert Containment({"namespaces": True, "files": True}).gaps == ["take more memory than the limit"]
    assert Containment({"seccomp": True, "files": True}).gaps == []
    assert Containment({"seccomp": "old kernel"}).missing == {"seccomp": "old kernel"}


def test_an_honest_program_between_attacks() -> None:
    for code in (
        "import os\nos._exit(0)",
        "while 1: pass",
        "x = bytearray(10 << 30)",
        "import os\nos.kill(os.getppid(), 9)",
    ):
        run(code)
        assert run("print(int(input()) + 1)", "41").output == b"42\n"


@pytest.mark.parametrize("layers", LAYER_SETS, ids=str)
def test_fork_bomb(layers) -> None:
    before = time.monotonic()
    found = run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", layers=layers)
    assert found.status in ("time", "error") and time.monotonic() - before < 20
    deadline = time.monotonic() + 5
    while left := _alive("inside"):
        assert time.monotonic() < deadline, f"left running: {left}"
        time.sleep(0.1)


def _alive(word):
    """Sandbox processes of this test process that are left."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                line = stream.read()
            with open(f"/proc/{pid}/stat") as stream:
                parent = int(stream.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if line.rstrip(b"\0").endswith(f"/code/{word}".encode()) and parent in (os.getpid(), 1):
            found.append(pid)
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\nprint(subprocess.run(['id'], capture_output=True))",
        "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo hi'])",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    ],
)
def test_no_other_programs(code) -> None:
    assert run(code, layers=("seccomp",)).status == "error"


def test_thread_bomb() -> None:
    code = "import threading, time\nwhile 1: threading.Thread(target=time.sleep, args=(9,)).start()"
    assert run(code).status in ("error", "time", "memory")


@pytest.mark.parametrize("size", ["10 << 30", "1 << 50"])
def test_large_allocation(size) -> None:
    found = run(f"x = bytearray({size})\nprint(len(x))", layers=())
    assert (found.status, found.detail) == ("memory", "memory limit")


def test_memory_in_small_parts() -> None:
    limits = Limits(cpu=5, wall=8.0, memory=256 << 20)
    assert run("x = []\nwhile 1: x.append(bytearray(1 << 20))", limits=limits).status == "memory"


@pytest.mark.parametrize("layers", [LAYERS, ("seccomp",)], ids=str)
def test_memory_behind_a_file_descriptor(layers) -> None:
    """What memfd_create hands out belongs to no process, so that no limit of one counts it."""
    code = "import os\nfd = os.memfd_create('x')\nprint(os.write(fd, bytes(1 << 20)))"
    found = run(code, layers=layers)
    assert (found.status, found.detail) == ("error", "PermissionError")


@pytest.mark.parametrize(
    "code",
    [
        "while True: print('x' * 10000)",
        "import sys\nwhile True: sys.stderr.write('x' * 10000)",
        "import os\nwhile True: os.write(3, b'x' * 10000)",
    ],
)
def test_infinite_output(code) -> None:
    before = time.monotonic()
    found = run(code)
    assert found.status in ("output", "time") and found.output == b"" and time.monotonic() - before < 8


@pytest.mark.parametrize(
    "code",
    [
        "while 1: pass",
        "import time\ntime.sleep(60)",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile 1: pass",
        "9 ** 9 ** 9",
    ],
)
def test_time(code) -> None:
    before = time.monotonic()
    assert run(code, "x").status == "time" and time.monotonic() - before < 8


SECRET = "kept-from-programs-7431"


@pytest.mark.parametrize("layers", LAYER_SETS, ids=str)
def test_the_environment_of_the_parent(layers, monkeypatch) -> None:
    monkeypatch.setenv("RESET_SECRET_FOR_TEST", SECRET)
    code = (
        "import os\nprint(dict(os.environ))\n"
        "for p in range(1, 200000 if os.path.exists('/proc/1') else 2):\n"
        "    try: print(open(f'/proc/{p}/environ', 'rb').read())\n    except OSError: pass\n"
        f"for p in (os.getppid(), {os.getpid()}, 'self'):\n"
        "    for n in ('environ', 'cmdline', 'mem', 'maps', 'root/etc/passwd'):\n"
        "        try: print(open(f'/proc/{p}/{n}', 'rb').read(4096))\n        except (OSError, ValueError): pass\n"
    )
    found = run(code, limits=Limits(cpu=6, wall=10), layers=layers)
    assert found.status == "ok" and SECRET.encode() not in found.output
    assert found.output.startswith(b"{}\n")


@pytest.mark.parametrize("layers", [*LAYER_SETS, ("seccomp",), ("namespaces",)], ids=str)
def test_killing_the_parent(layers) -> None:
    code = (
        "import os, signal\n"
        f"for pid in (os.getppid(), 1, 2, {os.getpid()}, -1):\n"
        "    for number in (signal.SIGTERM, signal.SIGKILL):\n"
        "        try: os.kill(pid, number)\n        except OSError as exc: print(exc.errno)\n"
        "print('alive')\n"
    )
    got = []
    old = signal.signal(signal.SIGTERM, lambda *_: got.append(1))
    try:
        with Sandbox(code, None, QUICK, layers) as box:
            if any(box.layers.get(layer) is not True for layer in layers):
                pytest.skip("not granted here")
            box.run("")
            assert box.run("").status in ("ok", "error")  # the supervisor is there and serves the next input
    finally:
        signal.signal(signal.SIGTERM, old)
    assert got == []


@pytest.mark.parametrize("layers", LAYER_SETS, ids=str)
def test_writing_outside(layers, tmp_path) -> None:
    tmp_path.chmod(0o777)
    places = [
        str(tmp_path / "pwned"),
        "/tmp/pwned",
        "/etc/pwned",
        "/usr/pwned",
        os.path.join(sys.prefix, "pwned"),
        "/dev/shm/pwned",
        "/var/tmp/pwned",
        "../pwned",
        "../../pwned",
    ]
    code = (
        f"for p in {places!r}:\n    try: open(p, 'w').write('x'); print(p)\n    except OSError: pass\n"
        "open('own', 'w').write('1')"
    )
    found = run(code, layers=layers)
    assert found.status == "ok" and found.output in (b"", b"../pwned\n")
    assert not any(os.path.exists(p) for p in places[:7])


@pytest.mark.parametrize("layers", LAYER_SETS, ids=str)
def test_reading_the_tests(layers, tmp_path) -> None:
    """The data file with the expected outputs is on the disk, and so is this source."""
    secret = tmp_path / "livecodebench.jsonl"
    secret.write_text(SECRET)
    os.chmod(tmp_path, 0o755)
    code = (
        f"import os\nfor p in ({str(secret)!r}, {__file__!r}, '/etc/passwd', '/etc/hostname', '/root/.bash_history'):\n"
        "    try: print(open(p).read())\n    except OSError: pass\n"
        "for p in ('/', '/home', '/root', '/tmp', '/proc'):\n"
        "    try: print(p, [n for n in os.listdir(p) if n == 'livecodebench.jsonl'])\n    except OSError: pass\n"
    )
    found = run(code, layers=layers)
    assert found.status == "ok" and SECRET.encode() not in found.output and b"root:" not in found.output


@pytest.mark.parametrize("layers", LAYER_SETS, ids=str)
def test_sockets(layers) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        code = (
            f"import socket\ns = socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)\n"
            "s.sendall(b'hello')\nprint('sent')"
        )
        assert run(code, layers=layers).status == "error"
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("layers", [LAYERS, ("seccomp",), ("landlock", "seccomp")], ids=str)
def test_signals_through_a_file(layers) -> None:
    """A file may be told to signal another process of the same user when it is ready: a kill without kill(2)."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        code = (
            f"import fcntl, os\nr, w = os.pipe()\nfor pid in ({victim.pid}, os.getppid()):\n    try:\n"
            "        fcntl.fcntl(r, 8, pid)\n        fcntl.fcntl(r, 10, 9)\n"
            "        fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\n        os.write(w, b'x')\n"
            "    except OSError: print('refused')"
        )
        assert run(code, layers=layers).output == b"refused\nrefused\n"
        time.sleep(0.2)
        assert victim.poll() is None
        victim.communicate(b"\n")


@pytest.mark.parametrize("layers", [LAYERS, ("landlock", "seccomp")], ids=str)
def test_rights_and_times_of_files_outside(layers, tmp_path) -> None:
    target = tmp_path / "file"
    target.touch()
    os.utime(target, (5, 5))
    target.chmod(0o640)
    code = (
        "import os\nfor act in (lambda p: os.chmod(p, 0o777), lambda p: os.utime(p, (1, 1)),\n"
        f"            lambda p: os.chown(p, 1, 1), lambda p: os.setxattr(p, 'user.x', b'')):\n"
        f"    try: act({str(target)!r})\n    except OSError: print('refused')"
    )
    assert run(code, layers=layers).output == b"refused\n" * 4
    assert (target.stat().st_mode & 0o777, target.stat().st_mtime) == (0o640, 5)


@pytest.mark.parametrize("layers", [LAYERS, ("landlock", "seccomp")], ids=str)
def test_datagrams_to_a_socket_outside(layers, short_path) -> None:
    name = os.path.join(short_path, "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(name)
        server.settimeout(0.2)
        code = (
            "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            f"a.sendto(b'x', {name!r})\nprint('sent')"
        )
        assert run(code, layers=layers).status == "error"
        with pytest.raises(TimeoutError):
            server.recv(1)
    assert run("import asyncio\nasync def f(): return 3\nprint(asyncio.run(f()))", layers=layers).output == b"3\n"


@pytest.fixture
def short_path():
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_reports_that_are_no_text() -> None:
    """What a program writes on the runner's own pipe neither ends the run nor gets into the samples."""
    for said in (
        r'{"value": "\ud800"}',
        r'{"error": "\ud800\n[red]"}',
        "[" * 100_000,
        '{"value": "%s"}' % ("9" * 5000),
    ):
        answer, passed = judge(f"import os\nos.write(3, {said.encode()!r})\nos._exit(0)", FUNCTION, QUICK)
        assert not passed and answer.isascii() and answer.isprintable()


def test_filling_the_disk() -> None:
    code = "import os\nfor i in range(100):\n    open(f'f{i}', 'wb').write(bytes(512 << 10))\nprint('all')"
    assert run(code, layers=LAYERS).status in ("error", "output")
    assert run("open('f', 'wb').write(bytes(10 << 20))", layers=()).status in ("error", "output")
    # the folder is empty for the next input, in the same sandbox and in a new one
    with Sandbox("import os\nprint(os.listdir('.'))\nopen('left', 'w').write('x')", None, QUICK) as box:
        assert [box.run("").output for _ in range(2)] == [b"[]\n", b"[]\n"]


def test_the_folder_is_gone_while_programs_run() -> None:
    """Where it was only a place to mount on: whatever kills this process leaves nothing in the temporary folder."""
    with Sandbox("open('own', 'w').write('1')\nprint(open('own').read())", None, QUICK) as box:
        if box.layers.get("files") is not True:
            pytest.skip("no file system of its own here")
        assert not os.path.exists(box._anchor)
        assert [box.run("").output for _ in range(2)] == [b"1\n", b"1\n"]


REFUSED_ROOT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import confinement
try:
    confinement.unshare()
except OSError:
    sys.exit("refused")
exec(sys.argv[3])
try:
    confinement.private_root(sys.argv[2], "/box", 1 << 20)
except (OSError, KeyError):
    open(sys.argv[2] + "/own", "wb").write(bytes(2 << 20))
    print(os.listdir(sys.argv[2]), os.getcwd())
"""


@pytest.mark.parametrize(
    "refusal",
    ["confinement.PIVOT_ROOT = {}", "confinement.PIVOT_ROOT = dict.fromkeys(confinement.PIVOT_ROOT, 9999)",
     "confinement.MOUNT_SETATTR = 9999", "confinement.library_paths = lambda: ['/nowhere']"],
)  # fmt: skip
def test_a_root_of_its_own_that_is_refused_leaves_the_folder_as_it_was(refusal, tmp_path) -> None:
    """Too old a kernel or a container's filter: the other layers then work in that folder."""
    from resetcli.evaluation.code import sandbox

    inside = os.path.join(os.path.dirname(sandbox.__file__), "inside")
    command = [sys.executable, "-P", "-s", "-c", REFUSED_ROOT, inside, str(tmp_path), refusal]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stderr == "refused\n":
        pytest.skip("no namespaces here")
    assert done.stdout == "['own'] /\n", done.stderr


RIGHT = Problem([Case("1", "2", "stdin"), Case("5", "6", "stdin")], None)
FUNCTION = Problem([Case("1", "2", "functional"), Case("5", "6", "functional")], "f")

CHEATS = [
    # monkeypatching whatever grades
    "import builtins, sys, json\nclass Yes:\n    def __eq__(self, o): return True\n    def __hash__(self): return 0\n"
    "builtins.all = lambda *a: True\njson.loads = lambda *a: Yes()\nprint(Yes())",
    "import sys\nfor m in list(sys.modules.values()):\n"
    "    for n in ('same_output', 'same_value', '_same', 'judge', '_verdict'):\n"
    "        try: setattr(m, n, lambda *a, **k: ('ok', ''))\n        except Exception: pass\n",
    "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'output' in o: print(o['output'])",
    # leaving early with success
    "import os\nos._exit(0)",
    "import sys\nsys.exit(0)",
    "raise SystemExit(0)",
    "quit()",
    # claiming success on the runner's own pipe, or saying nothing there
    'import os\nos.write(3, b\'{"value": "2"}\')\nos._exit(0)',
    "import os\nfor fd in range(3, 64):\n"
    '    try: os.write(fd, b\'{"status": "ok", "detail": "", "cpu": 0, "bytes": 2}\\n2\\n\')\n'
    "    except OSError: pass\n",
    # the output it cannot know: the frames and the memory of the process hold inputs only
    "import sys\nf = sys._getframe()\n"
    "while f:\n    for v in list(f.f_locals.values()): print(str(v)[:50])\n    f = f.f_back\n",
    "print(2)",
]


@pytest.mark.parametrize("code", CHEATS)
def test_cheats_do_not_pass(code) -> None:
    answer, passed = judge(code, RIGHT, QUICK)
    assert not passed and answer.startswith("test ")


@pytest.mark.parametrize(
    "code",
    [
        "class E(int):\n    def __eq__(self, o): return True\ndef f(x): return E(0)",
        "class E:\n    def __eq__(self, o): return True\ndef f(x): return E()",
        'import os\ndef f(x):\n    os.write(3, b\'{"value": "2"}\')\n    os._exit(0)',
        "import json\njson.dumps = lambda *a, **k: '2'\ndef f(x): return None",
        "def f(x): raise SystemExit(0)",
        "def g(x): return x + 1",
        "f = 3",
        "class Solution:\n    pass",
        "def f(): return 2",
    ],
)
def test_cheats_with_functions_do_not_pass(code) -> None:
    assert not judge(code, FUNCTION, QUICK)[1]


def test_a_broken_sandbox_is_no_zero(monkeypatch) -> None:
    from resetcli.evaluation.code import sandbox

    with Sandbox("print(1)", None, QUICK) as box:
        threading.Timer(0.3, box._kill).start()
        time.sleep(0.5)
        with pytest.raises(sandbox.SandboxError, match="ended unexpectedly"):
            box.run("")
    monkeypatch.setattr(sandbox.sys, "executable", "/nowhere/python")
    with pytest.raises(sandbox.SandboxError, match="cannot start the sandbox"):
        Sandbox("print(1)")
