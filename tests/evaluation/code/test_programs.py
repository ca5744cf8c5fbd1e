"""What honest programs may do: the idioms of contest solutions, both kinds of test, and the words for how they fail."""

from __future__ import annotations

import json

import pytest

from resetcli.data.lcb_tests import Case
from resetcli.data.livecodebench import Problem
from resetcli.evaluation.code.grade import judge
from resetcli.evaluation.code.sandbox import Limits, Sandbox

QUICK = Limits(cpu=3, wall=10.0)


def out(code, data="", function=None, limits=QUICK):
    with Sandbox(code, function, limits) as box:
        found = box.run(data)
    assert found.status == "ok", found
    return found.output.decode()


@pytest.mark.parametrize(
    "code, data, wanted",
    [
        ("print(sum(map(int, input().split())))", "1 2", "3"),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1\n2\n", "3"),
        ("import sys\ninput = sys.stdin.readline\nprint(int(input()) + int(input()))", "1\n2\n", "3"),
        ("import sys\ninput = sys.stdin.buffer.readline\nprint(int(input()))", "7", "7"),
        ("print(open(0).read().strip())", "abc", "abc"),
        ("import os, io\ns = io.BytesIO(os.read(0, os.fstat(0).st_size))\nprint(s.readline().decode())", "7", "7"),
        ("def main():\n    print(1)\nif __name__ == '__main__':\n    main()", "", "1"),
        (
            "import threading, sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
            "def main():\n    print(1)\nt = threading.Thread(target=main)\nt.start()\nt.join()",
            "",
            "1",
        ),
        ("import threading\nthreading.Thread(target=lambda: print(1)).start()", "", "1"),
        ("import atexit\natexit.register(lambda: print(1))", "", "1"),
        ("import sys\nsys.stdout.write('1')\nsys.exit(0)", "", "1"),
        ("print(1)\nexit()", "", "1"),
        ("import sys\nprint(1)\nsys.stdout.close()", "", "1"),
        ("import sys\nout = sys.stdout.detach()\nout.write(b'1')", "", "1"),
        ("out = open(1, 'w')\nout.write('1')", "", "1"),
        ("import io, sys\nsys.stdout = io.StringIO()\nprint(1)\nsys.__stdout__.write(sys.stdout.getvalue())", "", "1"),
        ("import os\nos.write(1, b'1')\nos._exit(0)", "", "1"),
        ("def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\nprint(f(20000))", "", "20000"),
        ("@lru_cache(None)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\nprint(f(9000))", "", "9000"),
        (
            "from __future__ import annotations\nprint(deque([1])[0], gcd(4, 6), inf > 1, ascii_lowercase[:2])",
            "",
            "1 2 True ab",
        ),
        ("print(pow(2, 10, 1000), sum([1, 2]), max(1, 2), open)", "", "24 3 2 <built-in function open>"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P(1))", "", "P(x=1)"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 26, 1 << 26))\nprint(1)", "", "1"),
        ("print({'b', 'a'} == {'a', 'b'}, random.random() == random.random())", "", "True False"),
        ("import numpy as np\nprint(int(np.arange(5).sum()))", "", "10"),
        ("print('é \\ud800'[:2], len(input()))", "日本", "é  2"),
        (
            "import re, decimal, fractions, heapq, bisect, string, itertools\nprint(decimal.Decimal('1.5') + 1)",
            "",
            "2.5",
        ),
    ],
)
def test_programs(code, data, wanted) -> None:
    assert out(code, data).split() == wanted.split()


@pytest.mark.parametrize(
    "code, data, wanted",
    [
        (
            "class Solution:\n    def f(self, a: List[int], b: int = 0) -> int:\n        return sum(a) + b",
            "[1, 2]\n3",
            6,
        ),
        ("def f(a, b):\n    c = a + b\n    return c", "1\n2", 3),
        ("def f(a):\n    return (1, (2, a))", '"x"', [1, [2, "x"]]),
        ("def f(a):\n    print('noise')\n    return a", "[1.5, null, true]", [1.5, None, True]),
        ("import numpy as np\ndef f(a):\n    return np.array(a).cumsum()", "[1, 2]", [1, 3]),
        ("import numpy as np\ndef f(a):\n    return np.int64(a)", "7", 7),
        ("def f(a):\n    return {'k': a}", "1", {"k": 1}),
        ("if __name__ == '__main__':\n    input()\ndef f(a):\n    return a", "1", 1),
        (
            "class Solution:\n    def __init__(self): self.x = 1\n    def f(self, a):\n        return self.x + a",
            "1",
            2,
        ),
    ],
)
def test_functions(code, data, wanted) -> None:
    assert json.loads(out(code, data, "f")) == wanted


@pytest.mark.parametrize(
    "code, words",
    [
        ("print(1 / 0)", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("import nowhere", "ModuleNotFoundError"),
        ("print(5)", "wrong output"),
        ("while 1: pass", "time limit"),
        ("print('x' * (1 << 27))", "output limit"),
        ("x = bytearray(8 << 30)", "memory limit"),
        ("import os\nos._exit(3)", "exit code 3"),
        ("input(); input(); input()", "EOFError"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
        ("import ctypes\nctypes.string_at(0)", "ended by signal SIGSEGV"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("x = '\ud800'", "UnicodeEncodeError"),
        ("\0", "SyntaxError"),
    ],
)
def test_failures_are_named(code, words) -> None:
    problem = Problem([Case("1", "2", "stdin"), Case("1", "2", "stdin")], None)
    answer, passed = judge(code, problem, Limits(cpu=1, wall=5.0))
    assert not passed and answer == f"test 1 of 2: {words}"


def test_every_test_must_pass_and_inputs_are_apart() -> None:
    code = "import os\nn = int(input())\nprint(n + 1 if not os.path.exists('seen') else 0)\nopen('seen', 'w').close()"
    cases = [Case(str(n), str(n + 1), "stdin") for n in range(40)]
    assert judge(code, Problem(cases, None), QUICK) == ("passed all 40 tests", True)
    assert judge(code, Problem([*cases, Case("1", "3", "stdin")], None), QUICK) == (
        "test 41 of 41: wrong output",
        False,
    )
    assert judge(code, Problem(cases[:1], None), QUICK) == ("passed the test", True)


def test_large_inputs_and_outputs() -> None:
    data = "\n".join(map(str, range(1_000_000)))
    assert out("print(open(0).read())", data).split() == data.split()


def test_the_same_program_gives_the_same() -> None:
    code = "print(random.random(), list({str(i) for i in range(30)}), hash('a'))"
    assert out(code) == out(code)
