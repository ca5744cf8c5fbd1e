"""Programs of our own for problems of the LiveCodeBench sample, by question id, each with a change that breaks it.

A mutation is (text, replacement): the plausible slip of a model. Problem statements are not quoted.
"""

from __future__ import annotations

import textwrap


def _code(text):
    return textwrap.dedent(text).lstrip("\n")


SOLUTIONS = {
    "abc378_b": (
        _code("""
            n = int(input())
            rules = [tuple(map(int, input().split())) for _ in range(n)]
            for _ in range(int(input())):
                kind, day = map(int, input().split())
                period, rest = rules[kind - 1]
                print(day + (rest - day) % period)
        """),
        ("(rest - day) % period", "rest - day % period"),
    ),
    "abc385_b": (
        _code("""
            import sys

            def main():
                rows, _, x, y = map(int, sys.stdin.readline().split())
                grid = [sys.stdin.readline().strip() for _ in range(rows)]
                x, y = x - 1, y - 1
                seen = set()
                for step in sys.stdin.readline().strip():
                    dx, dy = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}[step]
                    if grid[x + dx][y + dy] != "#":
                        x, y = x + dx, y + dy
                    if grid[x][y] == "@":
                        seen.add((x, y))
                print(x + 1, y + 1, len(seen))

            main()
        """),
        ("seen = set()", "seen = type('L', (list,), {'add': list.append})()"),
    ),
    "abc390_b": (
        _code("""
            n, a = int(input()), list(map(int, input().split()))
            good = all(a[i] * a[i + 2] == a[i + 1] ** 2 for i in range(n - 2))
            print("Yes" if good else "No")
        """),
        ("a[i] * a[i + 2] == a[i + 1] ** 2", "a[i + 1] - a[i] == a[i + 2] - a[i + 1]"),
    ),
    "abc397_a": (
        _code("""
            x = float(input())
            print(1 if x >= 38 else 2 if x >= 37.5 else 3)
        """),
        ("x >= 37.5", "x > 37.8"),
    ),
    "abc376_d": (
        _code("""
            import sys
            from collections import deque

            def main():
                data = list(map(int, sys.stdin.buffer.read().split()))
                n, m = data[:2]
                out = [[] for _ in range(n + 1)]
                for a, b in zip(data[2::2], data[3::2]):
                    out[a].append(b)
                distance = [-1] * (n + 1)
                distance[1] = 0
                queue = deque([1])
                while queue:
                    a = queue.popleft()
                    for b in out[a]:
                        if b == 1:
                            return distance[a] + 1
                        if distance[b] < 0:
                            distance[b] = distance[a] + 1
                            queue.append(b)
                return -1

            if __name__ == "__main__":
                print(main())
        """),
        ("return distance[a] + 1", "return distance[a]"),
    ),
    "abc385_c": (
        _code("""
            n = int(input())
            h = input().split()
            best = 1
            for gap in range(1, n):
                run = [1] * n
                for i in range(gap, n):
                    if h[i] == h[i - gap]:
                        run[i] = run[i - gap] + 1
                best = max(best, max(run))
            print(best)
        """),
        ("run[i] = run[i - gap] + 1", "run[i] = 2"),
    ),
    "abc397_b": (
        _code("""
            wanted, added = "i", 0
            for c in input().strip():
                if c != wanted:
                    added += 1
                else:
                    wanted = "o" if wanted == "i" else "i"
            print(added + (wanted == "o"))
        """),
        ('added + (wanted == "o")', "added"),
    ),
    "abc387_f": (
        _code("""
            import sys
            sys.setrecursionlimit(10000)
            MOD = 998244353

            def main():
                n, m = map(int, input().split())
                a = [int(x) - 1 for x in input().split()]
                below = [[] for _ in range(n)]
                on_cycle = [False] * n
                for start in range(n):
                    seen, v = set(), start
                    while v not in seen:
                        seen.add(v)
                        v = a[v]
                    on_cycle[v] = True
                for v in range(n):
                    if not on_cycle[v]:
                        below[a[v]].append(v)

                def ways(v):
                    # ways(v)[x]: choices in the tree of v with x_v <= x + 1
                    here = [1] * m
                    for child in below[v]:
                        sub = ways(child)
                        here = [p * q % MOD for p, q in zip(here, sub)]
                    total, out = 0, []
                    for p in here:
                        total = (total + p) % MOD
                        out.append(total)
                    return out

                result, done = 1, [False] * n
                for start in range(n):
                    if not on_cycle[start] or done[start]:
                        continue
                    here, v = [1] * m, start
                    while not done[v]:
                        done[v] = True
                        for child in below[v]:
                            here = [p * q % MOD for p, q in zip(here, ways(child))]
                        v = a[v]
                    result = result * sum(here) % MOD
                print(result)

            main()
        """),
        ("total = (total + p) % MOD", "total = p"),
    ),
    "abc397_e": (
        _code("""
            import sys

            def main():
                data = list(map(int, sys.stdin.read().split()))
                n, k = data[0], data[1]
                if k == 1:
                    return True
                size = n * k
                near = [[] for _ in range(size)]
                for u, v in zip(data[2::2], data[3::2]):
                    near[u - 1].append(v - 1)
                    near[v - 1].append(u - 1)
                order, parent = [0], [-1] * size
                for v in order:
                    for w in near[v]:
                        if w != parent[v]:
                            parent[w] = v
                            order.append(w)
                length = [1] * size
                arms = [[] for _ in range(size)]
                for v in reversed(order):
                    if len(arms[v]) > 2:
                        return False
                    length[v] += sum(arms[v])
                    if len(arms[v]) == 2 and length[v] != k or length[v] > k:
                        return False
                    if length[v] < k:
                        if parent[v] < 0:
                            return False
                        arms[parent[v]].append(length[v])
                return True

            print("Yes" if main() else "No")
        """),
        ("if length[v] < k:", "if length[v] < k - 1:"),
    ),
    "3626": (
        _code("""
            class Solution:
                def smallestNumber(self, n: int, t: int) -> int:
                    while prod(map(int, str(n))) % t:
                        n += 1
                    return n
        """),
        ("n += 1", "n += 2"),
    ),
    "3778": (
        # three lines, the classic of graders that read the first only
        _code("""
            class Solution:
                def transformArray(self, nums: List[int]) -> List[int]:
                    return sorted(x % 2 for x in nums)
        """),
        ("sorted(x % 2 for x in nums)", "[x % 2 for x in nums]"),
    ),
    "3647": (
        _code("""
            import heapq

            class Solution:
                def maxRemoval(self, nums: List[int], queries: List[List[int]]) -> int:
                    queries.sort()
                    waiting, drops = [], [0] * (len(nums) + 1)
                    covered, following = 0, 0
                    for i, x in enumerate(nums):
                        covered -= drops[i]
                        while following < len(queries) and queries[following][0] <= i:
                            heapq.heappush(waiting, -queries[following][1])
                            following += 1
                        while covered < x and waiting and -waiting[0] >= i:
                            drops[-heapq.heappop(waiting) + 1] += 1
                            covered += 1
                        if covered < x:
                            return -1
                    return len(waiting)
        """),
        ("return len(waiting)", "return len(queries) - len(waiting)"),
    ),
    "3715": (
        _code("""
            class Solution:
                def maximumCoins(self, coins: List[List[int]], k: int) -> int:
                    def from_left(parts):
                        parts = sorted(parts)
                        best = total = j = 0
                        for left, right, c in parts:
                            end = left + k - 1
                            while j < len(parts) and parts[j][1] <= end:
                                total += (parts[j][1] - parts[j][0] + 1) * parts[j][2]
                                j += 1
                            here = total
                            if j < len(parts) and parts[j][0] <= end:
                                here += (end - parts[j][0] + 1) * parts[j][2]
                            best = max(best, here)
                            if j > 0 and parts[j - 1][0] >= left:
                                total -= (right - left + 1) * c
                            else:
                                j += 1
                        return best
                    return max(from_left(coins), from_left([[-r, -l, c] for l, r, c in coins]))
        """),
        ("best = max(best, here)", "best = max(best, total)"),
    ),
    "3785": (
        _code("""
            class Solution:
                def countArrays(self, original: List[int], bounds: List[List[int]]) -> int:
                    low = max(u - (x - original[0]) for x, (u, v) in zip(original, bounds))
                    high = min(v - (x - original[0]) for x, (u, v) in zip(original, bounds))
                    return max(0, high - low + 1)
        """),
        ("high - low + 1", "high - low"),
    ),
    "3770": (
        _code("""
            class Solution:
                def generateString(self, str1: str, str2: str) -> str:
                    n, m = len(str1), len(str2)
                    word, fixed = ["a"] * (n + m - 1), [False] * (n + m - 1)
                    for i, c in enumerate(str1):
                        if c == "T":
                            for j in range(m):
                                if fixed[i + j] and word[i + j] != str2[j]:
                                    return ""
                                word[i + j], fixed[i + j] = str2[j], True
                    for i, c in enumerate(str1):
                        if c == "F" and word[i:i + m] == list(str2):
                            for j in reversed(range(m)):
                                if not fixed[i + j]:
                                    word[i + j] = "b"
                                    break
                            else:
                                return ""
                    return "".join(word)
        """),
        ("fixed[i + j] and word[i + j] != str2[j]", "fixed[i + j] and word[i + j] == str2[j]"),
    ),
    "1873_A": (
        _code("""
            for _ in range(int(input())):
                print("YES" if sum(x != y for x, y in zip(input().strip(), "abc")) <= 2 else "NO")
        """),
        ("<= 2", "< 2"),
    ),
}  # fmt: skip

# The same function without the class; LiveCodeBench takes both.
PLAIN_FUNCTION = ("3778", "def transformArray(nums):\n    even = sum(x % 2 == 0 for x in nums)\n"
                          "    return [0] * even + [1] * (len(nums) - even)\n")  # fmt: skip
