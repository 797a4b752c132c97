"""Counts, with valgrind, the instructions that the library adds to calls outside every source.

The library adds only a few nanoseconds to such a call. This time is too short to be measured,
because the system call takes much longer. Instruction counts are exact, and are the same on every
machine with the same compiler.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.common import Daemon, build, plain_environment
from benchmarks.numbers import Result

__all__ = ["count_instructions", "why_not_counted"]

# For each call, the limit on the instructions that the library adds; None for no limit. The 550
# instructions that an open may add take about 4 % of the time of an open without the library.
CALLS = (
    ("pread", 15.0),
    ("read", None),
    ("close", None),
    ("fstat", None),
    ("open", 550.0),
    ("stat", None),
)
# The numbers of calls in two runs. The instruction counts of the two runs are subtracted, so that
# the instructions before the first call and after the last call cancel out.
FEW, MANY = 1000, 5000


def why_not_counted() -> str | None:
    """Returns why instructions cannot be counted here; None if they can."""
    return None if shutil.which("valgrind") else "valgrind is not installed"


def _instructions(program: Path, call: str, number: int, environment: dict[str, str]) -> int:
    """Returns the number of instructions that the whole process executes."""
    counted = program.with_name("callgrind.out")
    command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={counted}"]
    subprocess.run(
        [*command, str(program), call, str(number), str(program)], env=environment, check=True
    )
    found = re.search(r"^(?:summary|totals): (\d+)", counted.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"valgrind has written no instruction count to {counted}")
    return int(found[1])


def _a_call(program: Path, call: str, environment: dict[str, str]) -> float:
    few, many = (_instructions(program, call, number, environment) for number in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def count_instructions(daemon: Daemon, place: Path) -> list[Result]:
    """Counts the instructions that the library adds to calls on a file outside every source.

    place : a directory outside every source
    """
    program = build(Path(__file__).with_name("instructions.c"), place)
    results = []
    for call, limit in CALLS:
        plain = _a_call(program, call, plain_environment())
        more = _a_call(program, call, daemon.environment()) - plain
        what = f"instructions added to {call} outside every source"
        results.append(Result(f"instructions_{call}", what, "instr", more, limit))
        print(f"  {what}: {more:.1f}", file=sys.stderr)
    if not any(result.value > 0 for result in results):
        raise RuntimeError("the counted program did not load the library")
    return results
