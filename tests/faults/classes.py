"""The distinct system calls of a scenario. faulter.c logs them when it traces a process."""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from faults.calls import CALLS

__all__ = ["CallClass", "read_trace"]

NAMES = {call.number: name for name, call in CALLS.items()}


@dataclass(frozen=True, slots=True)
class CallClass:
    """A class of equal calls: they are made by threads of the same name, on files of the same kind,
    and at the same place in Monarch's code.

    key : the class as faulter.c logs it
    count : how often the class is in the trace
    """

    key: str
    count: int

    @property
    def thread(self) -> str:
        return self.key.split("|")[0]

    @property
    def call(self) -> str:
        return NAMES[int(self.key.split("|")[1])]

    @property
    def target(self) -> str:
        return self.key.split("|")[2]

    @property
    def frames(self) -> list[str]:
        """The return addresses as MODULE+OFFSET, innermost first. Empty if Python or the program
        itself has made the call."""
        return [frame for frame in self.key.split("|")[3].split(",") if frame]

    @property
    def middle(self) -> int:
        """The number of the class's middle call, counted from 1. The fault is put into this call,
        so that not all faults are at the start or at the end of a process."""
        return (self.count + 1) // 2

    def describe(self, modules: dict[str, Path]) -> str:
        """Returns the class's name in reports, with the functions on its stack."""
        names = [_function(modules, frame) for frame in self.frames]
        by = " < ".join(dict.fromkeys(names)) or "Python"
        return f"{self.thread}: {self.call}({self.target}) by {by}"


def read_trace(log: Path) -> list[CallClass]:
    """Returns the classes of calls in the log, in the order in which they first occur."""
    found = Counter(log.read_text(errors="replace").splitlines())
    return [CallClass(key, count) for key, count in found.items() if key.count("|") == 3]


def _function(modules: dict[str, Path], frame: str) -> str:
    module, _, offset = frame.partition("+")
    if module not in modules:
        return frame
    symbols = _symbols(modules[module])
    before = bisect_right(symbols, int(offset, 16), key=lambda symbol: symbol[0])
    return symbols[before - 1][1] if before else frame


@cache
def _symbols(module: Path) -> list[tuple[int, str]]:
    said = subprocess.run(["nm", "-n", str(module)], capture_output=True, text=True, check=False)
    lines = (line.split() for line in said.stdout.splitlines())
    return [
        (int(words[0], 16), words[2]) for words in lines if len(words) == 3 and words[1] in "tT"
    ]
