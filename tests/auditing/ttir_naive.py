"""The slow oracle: run one program of a TTIR module on whole NumPy arrays, line by line, with nothing factored.

It shares no code with the evaluator under test, reads its text by other means, and knows only what the test kernels
use.  Floating point is None.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np

FLOATS = ("mulf", "addf", "subf", "divf", "maxnumf", "maximumf")
COMPARE = {"slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal, "eq": np.equal}
ARITHMETIC = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "divsi": lambda a, b: np.trunc(a / b).astype(np.int64),
    "remsi": np.fmod,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "andi": np.bitwise_and,
}


def size(kind: str) -> tuple[int, ...]:
    found = re.search(r"tensor<((?:\d+x)+)", kind)
    return tuple(map(int, found[1][:-1].split("x"))) if found else ()


class Naive:
    """`accesses` holds (kind, buffer, sorted element offsets) in order."""

    def __init__(self, text: str, args: dict, pid: int, grid: tuple[int, int, int] = (1 << 31, 1, 1)) -> None:
        self.lines = [re.sub(r" loc\(.*", "", x).strip() for x in text.splitlines() if not x.startswith("#")]
        self.grid = grid
        self.pid = (pid % grid[0], pid // grid[0] % grid[1], pid // grid[0] // grid[1])
        self.env: dict = {}
        self.n: Counter = Counter()
        self.dots: Counter = Counter()
        self.accesses: list = []
        for name, kind in re.findall(r"%(\w+): (!tt\.ptr<\w+>|\w+)", text[text.index("tt.func") :].split("\n")[0]):
            if kind.startswith("!"):
                self.env["%" + name] = (args[name], np.int64(0))
            else:
                self.env["%" + name] = None if kind.startswith("f") else np.int64(args[name])
        self.run(2, len(self.lines) - 2)

    def end(self, at: int) -> int:
        """The line that closes the block opened on line `at`."""
        depth = 1
        while depth:
            at += 1
            depth += self.lines[at].endswith("{") or self.lines[at].endswith("({")
            depth -= self.lines[at].startswith("}")
        return at

    def run(self, at: int, stop: int) -> list:
        yielded: list = []
        while at < stop:
            line = self.lines[at]
            if " scf.for " in " " + line:
                close = self.end(at)
                self.loop(line, at, close)
                at = close
            elif line.startswith("scf.if"):
                middle = at + 1
                while not (self.lines[middle].startswith("}") and self.depth(at, middle) == 0):
                    middle += 1
                close = self.end(middle) if self.lines[middle].endswith("{") else middle
                if self.env[re.search(r"%\S+", line)[0]]:
                    self.run(at + 1, middle)
                elif close > middle:
                    self.run(middle + 1, close)
                at = close
            elif '"tt.reduce"' in line:
                close = self.end(at)
                self.n["reductions"] += 1
                self.n["fp32"] += math.prod(size(self.lines[close]))
                self.env[line.split(" = ")[0]] = None
                at = close
            elif line.startswith("scf.yield"):
                yielded = [self.env[x] for x in re.findall(r"%[\w#]+", line.split(" : ")[0])]
            elif not line.startswith(("tt.return", "}")):
                self.one(line)
            at += 1
        return yielded

    def depth(self, start: int, at: int) -> int:
        opened = sum(self.lines[i].endswith("{") for i in range(start, at))
        return opened - sum(self.lines[i].startswith("}") for i in range(start, at + 1))

    def loop(self, line: str, at: int, close: int) -> None:
        iv, low, high, step = re.search(r"scf\.for (%\S+) = (%\S+) to (%\S+) step (%\S+)", line).groups()
        carried = re.findall(r"(%[\w#]+) = (%[\w#]+)", (re.search(r"iter_args\((.*?)\)", line) or [0, ""])[1])
        values = [self.env[start] for _, start in carried]
        for i in range(int(self.env[low]), int(self.env[high]), int(self.env[step])):
            self.env[iv] = np.int64(i)
            self.env.update((name, value) for (name, _), value in zip(carried, values, strict=True))
            values = self.run(at + 1, close)
            self.n["trips"] += 1
        result = line.split(" = ")[0].split(":")[0]
        self.env.update((f"{result}#{i}", value) for i, value in enumerate(values))
        if len(values) == 1:
            self.env[result] = values[0]

    def one(self, line: str) -> None:
        left, right = line.split(" = ", 1) if line.startswith("%") else ("", line)
        name, _, rest = right.partition(" ")
        kind = rest.split(" : ")[-1]
        given = [self.env[x] for x in re.findall(r"%[\w#]+", rest.split(" : ")[0])]
        short = name.split(".")[1]
        if short in FLOATS:
            self.n["fp32"] += math.prod(size(kind))
        self.n["exp2"] += math.prod(size(kind)) if name == "math.exp2" else 0
        if name == "tt.dot":
            (m, k), (_, n) = (size(x) for x in re.findall(r"tensor<\S+", kind)[:2])
            self.dots[m, n, k] += 1
        if name in ("tt.load", "tt.store"):
            masks = given[1:2] if name == "tt.load" else given[2:]
            buffer, at = given[0]
            on = np.broadcast_to(masks[0] if masks else True, at.shape)
            self.accesses.append((short, buffer, np.sort(np.atleast_1d(at[on]).ravel())))
            self.env[left] = None
        elif left:
            self.env[left] = self.value(short, rest, kind, given)

    def value(self, short: str, rest: str, kind: str, given: list):
        if short == "constant":
            text = re.match(r"(?:dense<)?([^>\s]+)", rest)[1]
            if not re.fullmatch(r"-?\d+", text):
                return None
            return np.full(size(kind), int(text)) if size(kind) else np.int64(text)
        if short == "get_program_id":
            return np.int64(self.pid["xyz".index(rest[0])])
        if short == "get_num_programs":
            return np.int64(self.grid["xyz".index(rest[0])])
        if short == "make_range":
            return np.arange(int(re.search(r"start = (\d+)", rest)[1]), int(re.search(r"end = (\d+)", rest)[1]))
        if any(x is None for x in given) or short in ("dot", "select", "cmpf", "exp2", "load"):
            return None
        if isinstance(given[0], tuple):
            buffer, at = given[0]
            return buffer, at + given[1] if short == "addptr" else self.value(short, rest, kind, [at])
        if short in ARITHMETIC:
            return ARITHMETIC[short](*given)
        if short == "cmpi":
            return COMPARE[rest.split(",")[0]](*given)
        if short in ("extsi", "trunci"):
            return given[0]
        if short in ("splat", "broadcast"):
            return np.broadcast_to(given[0], size(kind.split("->")[1])).copy()
        if short == "expand_dims":
            return np.expand_dims(given[0], int(re.search(r"axis = (\d+)", rest)[1]))
        raise AssertionError(f"the oracle does not know {short}: {rest}")
