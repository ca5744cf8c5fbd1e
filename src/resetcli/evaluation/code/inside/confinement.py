"""What the kernel can be asked to forbid: namespaces, a file system of its own, Landlock, seccomp, capabilities.

Standard library and ctypes only, for this runs before and around untrusted programs, in a bare interpreter. Every
layer is asked for separately and may be refused (an old kernel, a container's own filter); what was refused is
reported, never assumed. Kernel interfaces: namespaces(7), mount_setattr(2), pivot_root(2), landlock(7), seccomp(2),
capset(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
import sysconfig

_libc = ctypes.CDLL(None, use_errno=True)

# System calls without a wrapper everywhere. From 424 on numbers are the same on all machines.
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 442, 444, 445, 446
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(what: str, number: int, *args: object) -> int:
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_libc.syscall(ctypes.c_long(number), *values), what)


def prctl(option: int, value: int, third: object = 0) -> None:
    """prctl(2)."""
    _checked(_libc.prctl(option, ctypes.c_ulong(value), third, 0, 0), f"prctl {option}")


def die_with_parent() -> None:
    """End this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, 9)


def library_paths() -> list[str]:
    """What a Python program must be able to read: interpreter, standard library, packages, system libraries."""
    roots = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        sysconfig.get_path("stdlib"),
        "/usr",
        "/lib",
        "/lib64",
        "/lib32",
    ]
    # A prefix that is the root or a home would give everything away.
    given_away = {"/", os.path.expanduser("~"), "/home", "/root"}
    found = [p for p in dict.fromkeys(map(os.path.abspath, roots)) if os.path.isdir(p) and p not in given_away]
    inner = [p for p in found if not any(p != q and p.startswith(q + "/") for q in found)]
    return [*inner, *(p for p in ("/etc/ld.so.cache", *DEVICES) if os.path.exists(p))]


# --- namespaces -------------------------------------------------------------------------------------------------------


def unshare() -> None:
    """Own process ids, network (none), mounts, IPC and host name from here on (process ids: for children).

    Raises:
        OSError: refused.
    """
    flags = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
    if os.geteuid() == 0 and _libc.unshare(flags) == 0:
        return
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc.unshare(flags | NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as out:
            out.write(text)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    tail = None if data is None else data.encode()
    _checked(_libc.mount(*encoded, ctypes.c_ulong(flags), tail), f"mount {target}")


def private_root(anchor: str, box: str, room: int) -> None:
    """Replace the file system by one that holds the library paths, read-only, and an empty writable ``box``.

    Args:
        anchor: an existing empty directory.
        box: path of the writable directory in the new root.
        room: bytes that fit into it.

    Raises:
        OSError, KeyError: refused, or a machine whose call numbers are not known here; the old root is still there and
            ``anchor`` as it was.
    """
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", anchor, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    try:
        _furnish(anchor, box, room)
    except (OSError, KeyError):
        os.chdir("/")
        _libc.umount2(os.fsencode(anchor), MNT_DETACH)
        raise


def _furnish(anchor: str, box: str, room: int) -> None:
    """Fill the file system mounted at ``anchor`` and make it the root."""
    for path in library_paths():
        target = anchor + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path) and path.count("/") == 1:
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            open(target, "w").close()
        _mount(os.path.realpath(path), target, None, MS_BIND | MS_REC)
    attributes = struct.pack("QQQQ", 1 | 2, 0, 0, 0)  # read-only, no set-user-id
    buffer = ctypes.create_string_buffer(attributes)
    os.mkdir(anchor + box)
    _syscall("mount_setattr", MOUNT_SETATTR, -100, os.fsencode(anchor), 0x8000, buffer, len(attributes))
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    _mount("tmpfs", anchor + box, "tmpfs", flags, f"size={room},nr_inodes=4096,mode=700")
    os.chdir(anchor)
    _syscall("pivot_root", PIVOT_ROOT[platform.machine()], b".", b".")
    _checked(_libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up every capability for good."""
    header, data = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _syscall(
        "capset", CAPSET[platform.machine()], ctypes.create_string_buffer(header), ctypes.create_string_buffer(data)
    )


# --- Landlock ---------------------------------------------------------------------------------------------------------

_READ = 1 << 2 | 1 << 3
_FILE = 1 << 1 | 1 << 2 | 1 << 14
"""Rights that exist for a file that is no directory: write, read, truncate."""


def landlock_version() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    return max(0, _libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1)))


def landlock(box: str) -> None:
    """Only ``library_paths`` can be read from here on, and only ``box`` written; no TCP, no signals to others.

    Raises:
        OSError: refused.
    """
    version = landlock_version()
    if version == 0:
        raise OSError(errno.ENOSYS, "Landlock is not there")
    every = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        every |= (1 << bit) * (version >= since)
    rules = struct.pack("QQQ", every, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _syscall("landlock", LANDLOCK_CREATE, ctypes.create_string_buffer(rules, len(rules)), size, 0)
    # What comes into the box may be anything but a program to run, a device or a socket.
    own = every & ~(1 << 0 | 1 << 6 | 1 << 9 | 1 << 11)
    for path, rights in [*((p, _READ) for p in library_paths()), (box, own)]:
        if not os.path.exists(path):
            continue
        if path in DEVICES:
            rights = 1 << 1 | 1 << 2
        if not os.path.isdir(path):
            rights &= _FILE
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights & every, opened), 12)
        _syscall("landlock rule", LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(opened)
    _syscall("landlock", LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


# --- seccomp ----------------------------------------------------------------------------------------------------------

# Forbidden system calls by number, x86_64 and (in the same order) aarch64; None where the machine has no such call.
_FORBIDDEN = {
    "socket": (41, 198), "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "shmget": (29, 194),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "init_module": (175, 105), "finit_module": (313, 273),
    "kexec_load": (246, 104), "reboot": (169, 142), "swapon": (167, 224), "personality": (135, 92),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "quotactl": (179, 60), "acct": (163, 89),
    # Landlock leaves these to whoever owns the file.
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466),
    # What this user's other programs share is used by its number, without the "get" above.
    "shmat": (30, 196), "shmctl": (31, 195), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_unlink": (241, 181),
    "sched_setaffinity": (203, 122), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "syslog": (103, 116),
    # Memory that no limit on the process counts.
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_PRLIMIT = (302, 261)
_SOCKETPAIR = (53, 199)
_SECOND_ARGUMENT = {(72, 25): (8, 15), (16, 29): (0x8901, 0x8902)}
"""fcntl and ioctl that name a process to be signalled when a file is ready: signals by another door."""
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def seccomp() -> None:
    """No new processes or programs, sockets, signals, mounts, tracing or kernel facilities from here on; threads stay.

    Forbidden calls fail with EPERM, so a program that tries one sees an OSError. Of prlimit only the form on oneself is
    left, of socketpair the stream (a datagram socket could send anywhere). Calls by another machine's numbers (32 bit,
    x32) end the process.

    Raises:
        OSError: refused, or a machine whose call numbers are not known here.
    """
    machine = platform.machine()
    if machine not in _AUDIT or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    column = list(_AUDIT).index(machine)
    load, equal, above, bits, mask, ret = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    denied = sorted(number for row in _FORBIDDEN.values() if (number := row[column]) is not None)
    # Each test that holds jumps to "refuse", placed by its distance once the length is known.
    body: list[tuple[int, int, int | str, int | str]] = [(load, 0, 0, 0)]
    if machine == "x86_64":
        body.append((above, 0x40000000, "refuse", 0))
    body += [(equal, number, "refuse", 0) for number in denied]
    body += [(equal, _CLONE3[column], "missing", 0)]
    # clone: only with CLONE_THREAD; prlimit: only of process 0, oneself.
    body += [(equal, _CLONE[column], 0, 3), (load, 16, 0, 0), (bits, 0x10000, 0, "refuse"), (ret, _ALLOW, 0, 0)]
    body += [(equal, _PRLIMIT[column], 0, 3), (load, 16, 0, 0), (equal, 0, 0, "refuse"), (ret, _ALLOW, 0, 0)]
    pair: list[tuple[int, int, int | str, int | str]] = [
        (load, 24, 0, 0),
        (mask, 0xF, 0, 0),
        (equal, 1, 0, "refuse"),
        (ret, _ALLOW, 0, 0),
    ]
    body += [(equal, _SOCKETPAIR[column], 0, len(pair)), *pair]
    for numbers, refused in _SECOND_ARGUMENT.items():
        body += [(equal, numbers[column], 0, len(refused) + 2), (load, 24, 0, 0)]
        body += [*((equal, value, "refuse", 0) for value in refused), (ret, _ALLOW, 0, 0)]
    body.append((ret, _ALLOW, 0, 0))
    places = {"refuse": len(body), "missing": len(body) + 1}
    body += [(ret, _ERRNO | errno.EPERM, 0, 0), (ret, _ERRNO | errno.ENOSYS, 0, 0)]
    program = [(load, 4, 0, 0), (equal, _AUDIT[machine], 1, 0), (ret, _KILL, 0, 0)]
    for index, (code, value, yes, no) in enumerate(body):
        steps = [places[way] - index - 1 if isinstance(way, str) else way for way in (yes, no)]
        program.append((code, value, *steps))  # type: ignore[arg-type]
    packed = b"".join(struct.pack("=HBBI", code, yes, no, value) for code, value, yes, no in program)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header, len(header)))


def no_new_privileges() -> None:
    """Nothing started from here on gains rights; Landlock and seccomp ask for it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def foreign_ids() -> list[int]:
    """User ids to try in turn when root leaves: one that nothing else runs under, then the usual nobody."""
    return [0x60000000 + int.from_bytes(os.urandom(3), "big"), 65534]


def leave_root(uids: list[int], box: str) -> bool:
    """Become one of these users, without groups, for good, and give it ``box``; whether that could be done."""
    for uid in uids:
        with contextlib.suppress(OSError):
            os.chown(box, uid, uid)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return True
    return False


def readable_by_all(path: str) -> bool:
    """Whether every directory on the way to ``path`` lets other users through."""
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True
