"""Computes ratios of paired rounds and their spread, describes the machine, and prints the report.

If other users run programs on the machine, its speed changes all the time. So two separate runs
cannot be compared. Instead, the processes of both variants (with and without Monarch) exist during
the whole measurement, and take turns in short rounds. Each pair of rounds gives one ratio. The
report contains the median of the ratios and their spread.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Result", "describe_machine", "file_system", "paired", "report"]


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a benchmark, which is one line of the table that `report` prints.
    value : the measured value, in `unit`; for a paired measurement, the median of the ratios
    limit : the largest allowed value, or, if `is_least` is true, the smallest allowed value; None
        for no limit
    ci95 : in a result of `paired`, an interval that contains the median with 95 % confidence,
        whatever the distribution is; in other results, the smallest and the largest value
    quartiles : the lower and the upper quartile of the values of all rounds
    wall : if `value` is a ratio of CPU times, the corresponding ratio of wall times
    with_library, without : the median times of one operation with and without the library [ns].
        There are no limits on these times, because they depend on the machine
    """

    name: str
    what: str
    unit: str
    value: float
    limit: float | None
    ci95: tuple[float, float] | None = None
    quartiles: tuple[float, float] | None = None
    wall: float | None = None
    rounds: int | None = None
    operations_a_round: int | None = None
    with_library: float | None = None
    without: float | None = None
    is_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.is_least else self.value <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def median_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Returns two of the n values. The median lies between the two with 95 % confidence. Their
    positions in the sorted list of values are n/2 - 0.98 sqrt(n) and n/2 + 0.98 sqrt(n), from the
    normal approximation of the binomial distribution."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half) - 1)
    return ordered[low], ordered[high]


def paired(
    name: str,
    what: str,
    pairs: Sequence[tuple[float, float]],
    *,
    limit: float | None,
    operations: int,
    wall: Sequence[tuple[float, float]] = (),
    difference_in: str | None = None,
) -> Result:
    """Returns the result of rounds that ran alternately with and without the library. Its value is
    the median of the ratios. If `difference_in` is a unit ("us" or "ms"), the value is the median
    of the differences per operation instead.

    pairs : for each round, the times with and without the library [ns]
    operations : the number of operations in a round
    wall : if `pairs` are CPU times, the wall times in the same form
    """
    if difference_in is None:
        values = [ours / plain for ours, plain in pairs]
    else:
        scale = {"us": 1e3, "ms": 1e6}[difference_in]
        values = [(ours - plain) / operations / scale for ours, plain in pairs]
    lower, _, upper = statistics.quantiles(values, n=4)
    return Result(
        name=name,
        what=what,
        unit=difference_in or "ratio",
        value=statistics.median(values),
        limit=limit,
        ci95=median_bounds(values),
        quartiles=(lower, upper),
        wall=statistics.median(ours / plain for ours, plain in wall) if wall else None,
        rounds=len(pairs),
        operations_a_round=operations,
        with_library=statistics.median(ours for ours, _ in pairs) / operations,
        without=statistics.median(plain for _, plain in pairs) / operations,
    )


def file_system(path: Path) -> str:
    """Returns the type of the file system of a path."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4]
        inside = mount == "/" or str(path) == mount or str(path).startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def describe_machine() -> dict[str, Any]:
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": os.uname().release,
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
    }


def _row(result: Result, width: int) -> str:
    spread = "" if result.ci95 is None else f"{result.ci95[0]:.3f} .. {result.ci95[1]:.3f}"
    sign = ">=" if result.is_least else "<="
    limit = "" if result.limit is None else f"{sign} {result.limit:g}"
    verdict = {None: "", True: "met", False: "MISSED"}[result.met]
    value = f"{result.value:.3f}"
    return f"{result.what:<{width}} {value:>12} {result.unit:<6} {spread:<20} {limit:<12} {verdict}"


def report(document: dict[str, Any], results: Sequence[Result], json_file: Path | None) -> bool:
    """Prints the results as a table to standard error. Writes the document and the results as JSON
    to `json_file`, or to standard output if `json_file` is None. Returns whether every limit is
    met."""
    width = max((len(result.what) for result in results), default=0)
    head = f"{'':<{width}} {'median':>12} {'unit':<6} {'95 % bounds':<20} {'limit':<12}"
    sys.stderr.write("\n".join([head, *(_row(result, width) for result in results)]) + "\n")
    whole = {**document, "results": [result.as_dict() for result in results]}
    text = json.dumps(whole, indent=2) + "\n"
    if json_file is None:
        sys.stdout.write(text)
    else:
        json_file.write_text(text)
    return all(result.met is not False for result in results)
