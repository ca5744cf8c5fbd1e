"""The process that runs one untrusted program on one input after another; see ``sandbox.Sandbox``, which starts it.

Run as a folder (``python -P inside``) with the standard library only. It confines itself as far as the kernel lets
it, then forks a worker for each input: the worker gives up what is left, and runs the program. What the program should
print is never sent here, so nothing a program does in here can find it out.

On standard input: one JSON line, the job; then for each input a JSON line {"bytes": n} and n bytes. On standard output:
one JSON line {"layers": ...}; then for each input a JSON line {"status", "detail", "cpu", "bytes": n} and n bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from typing import Any, BinaryIO

import confinement
import program

sys.path.pop(0)

DETAIL = 200


def main() -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    job = json.loads(source.readline())
    confinement.die_with_parent()
    layers: dict[str, Any] = {}
    if "namespaces" in job["layers"]:
        _try(layers, "namespaces", confinement.unshare)
    if layers.get("namespaces") is True:
        if child := os.fork():
            # The first process of the new numbering: when it ends, the kernel ends all that is left in there.
            os.close(0)
            os.close(1)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
        confinement.die_with_parent()
        if "files" in job["layers"]:
            _try(layers, "files", lambda: confinement.private_root(job["anchor"], "/box", job["room"]))
    job["box"] = "/box" if layers.get("files") is True else job["anchor"]
    job["uids"] = []
    inside_own_root = layers.get("files") is True
    if os.geteuid() == 0 and (inside_own_root or all(map(confinement.readable_by_all, confinement.library_paths()))):
        job["uids"] = confinement.foreign_ids()
    program.prepare(job)
    os.environ.clear()
    # One worker on nothing tells which layers hold.
    trial = _run(job, {"namespaces": layers.get("namespaces") is True}, b"", trial=True)
    if trial["status"] != "ok":
        _say(sink, {"layers": None})
        return
    layers.update(json.loads(trial["output"]))
    _say(sink, {"layers": layers})
    gc.freeze()
    known = {"namespaces": layers.get("namespaces") is True}
    while line := source.readline():
        data = source.read(json.loads(line)["bytes"])
        reply = _run(job, known, data, trial=False)
        output = reply.pop("output")
        _say(sink, {**reply, "bytes": len(output)}, output)


def _try(layers: dict[str, Any], name: str, act: Any) -> None:
    try:
        act()
        layers[name] = True
    except (OSError, KeyError) as exc:
        layers[name] = str(exc)


def _say(sink: BinaryIO, message: dict[str, Any], data: bytes = b"") -> None:
    sink.write(json.dumps(message).encode() + b"\n" + data)
    sink.flush()


def _run(job: dict[str, Any], known: dict[str, bool], data: bytes, *, trial: bool) -> dict[str, Any]:
    """Fork a worker, feed it, and watch its output, its clock and its end."""
    feed = os.memfd_create("input") if hasattr(os, "memfd_create") else _file_of(job)
    with open(feed, "wb", closefd=False) as out:
        out.write(data)
    os.lseek(feed, 0, os.SEEK_SET)
    output, output_end = os.pipe()
    report, report_end = os.pipe()
    ready, ready_end = os.pipe()
    job["run"] = job.get("run", 0) + 1
    box = os.path.join(job["box"], f"work{job['run']}")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            _only_fds(feed, output_end, report_end, ready_end)
            layers = _confine(job, known, box)
            if trial:
                os.write(1, json.dumps(layers).encode())
            os.write(4, b"!")
            os.close(4)
            code = 0 if trial else program.run(job, 3)
        finally:
            os._exit(code)
    for fd in (feed, output_end, report_end, ready_end):
        os.close(fd)
    found = _watch({**job, "kind": "stdin"} if trial else job, pid, output, report)
    if os.read(ready, 1) != b"!":
        # Nothing of the program has run yet: this is a fault of ours or of the machine, not the program's.
        found = {**found, "status": "broken", "detail": "the worker ended before the program began"}
    os.close(ready)
    _sweep(box, known)
    return found


def _file_of(job: dict[str, Any]) -> int:
    import tempfile

    fd, name = tempfile.mkstemp(dir=job["box"])
    os.unlink(name)
    return fd


def _only_fds(feed: int, output: int, report: int, ready: int) -> None:
    """0 the input, 1 the output, 2 nothing, 3 the report, 4 the sign that all is set; all else closed."""
    nothing = os.open("/dev/null", os.O_WRONLY)
    # Out of the way first, so that none is overwritten before it is copied.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (feed, output, nothing, report, ready)]
    for place, fd in enumerate(moved):
        os.dup2(fd, place)
    os.closerange(5, 4096)


def _confine(job: dict[str, Any], known: dict[str, bool], box: str) -> dict[str, Any]:
    """In the worker, after its fork: limits, then every right given up that is left."""
    layers: dict[str, Any] = {}
    confinement.die_with_parent()
    os.mkdir(box, 0o700)
    if job["uids"]:
        os.chmod(job["box"], 0o711)
        layers["user"] = confinement.leave_root(job["uids"], box) or "no other user id can be taken"
        confinement.die_with_parent()
    os.chdir(box)
    own_count = layers.get("user") is True or (known["namespaces"] and os.geteuid() != 0)
    confinement.no_new_privileges()
    if "landlock" in job["layers"]:
        _try(layers, "landlock", lambda: confinement.landlock(box))
    _try(layers, "capabilities", confinement.drop_capabilities)
    limits = {
        "RLIMIT_AS": job["memory"], "RLIMIT_DATA": job["memory"], "RLIMIT_FSIZE": job["room"], "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 64, "RLIMIT_MSGQUEUE": 0, "RLIMIT_MEMLOCK": 1 << 16,
    }  # fmt: skip
    if own_count or "seccomp" not in job["layers"]:
        limits["RLIMIT_NPROC"] = job["threads"]
    for name, most in limits.items():
        if (which := getattr(resource, name, None)) is not None:
            resource.setrlimit(which, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu"], job["cpu"] + 1))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    if "seccomp" in job["layers"]:
        _try(layers, "seccomp", confinement.seccomp)
    return layers


def _watch(job: dict[str, Any], pid: int, output: int, report: int) -> dict[str, Any]:
    """Read until the worker ends, its time is up or its output too long; then its verdict on itself, and its end."""
    deadline = time.monotonic() + job["wall"]
    texts: dict[int, list[bytes]] = {output: [], report: []}
    sizes = {output: 0, report: 0}
    open_ends = {output, report}
    status, usage, stopped = None, None, ""
    while open_ends or status is None:
        left = deadline - time.monotonic()
        if left <= 0:
            stopped = "time"
            break
        ready = select.select(list(open_ends), [], [], min(left, 0.02 if not open_ends else 0.5))[0]
        for fd in ready:
            data = os.read(fd, 1 << 20)
            if not data:
                open_ends.discard(fd)
                continue
            texts[fd].append(data)
            sizes[fd] += len(data)
        if sum(sizes.values()) > job["output"]:
            stopped = "output"
            break
        if status is None and (not ready or not open_ends):
            got, code, used = os.wait4(pid, os.WNOHANG)
            if got:
                status, usage = code, used
                if not ready:
                    break
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    for fd in open_ends:
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while not stopped and sizes[fd] <= job["output"] and (data := os.read(fd, 1 << 20)):
                texts[fd].append(data)
                sizes[fd] += len(data)
    os.close(output)
    os.close(report)
    assert usage is not None
    cpu = usage.ru_utime + usage.ru_stime
    said = _said(b"".join(texts[report]))
    verdict, detail = _verdict(job, stopped, os.waitstatus_to_exitcode(status), cpu, said)
    found = said.get("value", "").encode("utf-8", "replace") if job["kind"] == "functional" else b"".join(texts[output])
    if job["kind"] == "functional" and verdict == "ok" and "value" not in said:
        verdict, detail = "error", "ended without a result"
    return {
        "status": verdict,
        "detail": detail[:DETAIL],
        "cpu": round(cpu, 3),
        "output": found if verdict == "ok" else b"",
    }


def _said(text: bytes) -> dict[str, str]:
    """What the worker reported of itself: the program can write there too, so any bytes may come."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return {k: v for k, v in found.items() if k in ("value", "error") and isinstance(v, str)}
    return {}


def _verdict(job: dict[str, Any], stopped: str, code: int, cpu: float, said: dict[str, str]) -> tuple[str, str]:
    if stopped == "time" or code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu >= job["cpu"]):
        return "time", "time limit"
    if stopped == "output" or code == -signal.SIGXFSZ:
        return "output", "output limit"
    if "error" in said:
        # The program may have written anything there; a class has a name.
        name = said["error"] if said["error"].isidentifier() else "unnamed exception"
        return ("memory", "memory limit") if name == "MemoryError" else ("error", name)
    if code < 0:
        return "error", f"ended by signal {signal.Signals(-code).name if -code in set(signal.Signals) else -code}"
    return ("error", f"exit code {code}") if code else ("ok", "")


def _sweep(box: str, known: dict[str, bool]) -> None:
    """End what a program may have left running, where process ids are our own, and empty its folder."""
    if known["namespaces"]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    shutil.rmtree(box, ignore_errors=True)


if __name__ == "__main__":
    main()
