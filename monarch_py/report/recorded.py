"""Reads the report of a run, as `monarch run --json` writes it, for `monarch report` and advice.

The file may come from another machine or another version, or be damaged, so every field is checked
before it is used.
"""

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from monarch_py.arrays import Floats
from monarch_py.daemon.history import COUNTED
from monarch_py.errors import MonarchError

# The version of the report's schema (docs/status.md) that this module reads.
SCHEMA = 1
# A file larger than this [bytes] is not a report. The report of a million files has only 0.2 MB.
MOST_BYTES = 64 << 20
HOW = "give a file that `monarch run --json` or `monarch status --json --history` has written"
# The largest number of intervals into which the time of the run is divided.
MOST_INTERVALS = 120
# If programs open each file once an epoch, the number of epochs follows from the number of opens.
# If more than MOST_EPOCHS epochs would follow, programs have opened files more often than once an
# epoch, and the number of epochs is not known.
MOST_EPOCHS = 1000

# The largest number of reading threads that a report may have. No real report has as many.
MOST_READERS = 4096
# A run that is shorter than this [s] is treated as if it lasted this long, so that its rates are
# finite.
SHORTEST_S = 1e-3

Count = Annotated[float, Meta(ge=0, le=1e18)]
Whole = Annotated[int, Meta(ge=0, le=10**17)]


class Tier(Struct):
    mount_point: str
    usable: bool
    quota_bytes: Whole
    used_bytes: Whole
    files: Whole
    kind: str = "ssd"


class Source(Struct):
    path: str
    files: Whole
    bytes: Whole
    present: Whole
    present_bytes: Whole
    bypass: dict[str, Whole]
    bypass_bytes: dict[str, Whole]

    @property
    def served(self) -> tuple[int, int]:
        """The number of files that may have copies, and their total size [bytes]."""
        excluded = self.bypass.get("excluded", 0), self.bypass_bytes.get("excluded", 0)
        return max(0, self.files - excluded[0]), max(0, self.bytes - excluded[1])


# The values of counters by name, see `totals` in docs/status.md.
Totals = dict[str, Count]
# Columns of numbers, one for each counter.
Columns: Any = msgspec.defstruct("Columns", [(name, list[Count]) for name in COUNTED])


class History(Columns):  # type: ignore[misc]
    """The history of a daemon, see `history` in docs/status.md."""

    seconds: Annotated[list[Count], Meta(min_length=1)]
    epoch: list[Annotated[int, Meta(ge=0, le=10**9)] | None]
    readers: list[Annotated[int, Meta(ge=0, le=MOST_READERS)]]
    memory_bytes: list[Whole]


class Files(Struct):
    """Groups of files, see `files` in docs/status.md."""

    source: list[Whole]
    first: list[str]
    count: list[Whole]
    bytes: list[Whole]
    copied_bytes: list[list[Whole]]


class Run(Struct):
    totals: Totals
    begun_seconds: Count


class Nodes(Struct):
    members: list[Any]


class _Report(Struct):
    schema: int
    version: str
    uptime_seconds: Count
    prefetch: str
    scan: str
    tiers: list[Tier]
    staging: Tier | None
    sources: Annotated[list[Source], Meta(min_length=1)]
    totals: Totals
    nodes: Nodes | None
    history: History
    files: Files
    rooms: list[Whole]
    memory_bytes: Whole
    other_jobs: Whole
    run: Run | None = None
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a run.

    seconds : its length [s]
    opens, hits : the number of opens, and how many of them got a copy
    """

    seconds: float
    opens: float
    hits: float

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.opens if self.opens else 0.0


class Recorded:
    """The content of a run's report.

    length : how long the run took [s]
    totals : how much each counter increased during the run
    seconds : (n + 1,) the bounds of n consecutive intervals of the run; the first bound is 0 [s]
    counted : for each counter in COUNTED, its increase in each interval, (n,)
    readers : how many threads usually read at the same time, as far as the daemon can see
    memory_bytes : how much memory was available for a RAM tier throughout the run
    """

    def __init__(self, report: _Report) -> None:
        self.report = report
        begun = report.run.begun_seconds if report.run else 0.0
        end = max(report.uptime_seconds, report.history.seconds[-1])
        self.length = max(SHORTEST_S, end - begun)
        self.totals = report.run.totals if report.run else report.totals
        at = np.array(report.history.seconds) - begun
        is_after = at > 0
        self._at: Floats = np.array([0.0, *at[is_after], self.length])
        self._sums = {name: self._sum(name, is_after) for name in COUNTED}
        readers = np.array(report.history.readers)[is_after]
        self.readers = int(np.median(readers[readers > 0])) if readers.any() else 1
        memory = np.array(report.history.memory_bytes)[is_after]
        self.memory_bytes = int(min([report.memory_bytes, *memory]))
        self._epochs = [e for e, is_in in zip(report.history.epoch, is_after, strict=True) if is_in]
        n = int(np.clip(is_after.sum(), 1, MOST_INTERVALS))
        self.seconds: Floats = np.linspace(0.0, self.length, n + 1)
        self.counted = {
            name: np.diff(np.interp(self.seconds, self._at, sums))
            for name, sums in self._sums.items()
        }

    def _sum(self, name: str, is_after: Any) -> Floats:
        """Returns the increase of the counter `name` from the beginning of the run up to each of
        the times `self._at`."""
        report = self.report
        column, gained = np.array(getattr(report.history, name)), self.totals[name]
        first = report.totals[name] - gained
        inside = np.minimum(column[is_after] - first, gained)
        return np.maximum.accumulate(np.array([0.0, *inside, gained]))

    @property
    def nodes(self) -> int:
        return max(1, len(self.report.nodes.members)) if self.report.nodes else 1

    @property
    def files(self) -> int:
        """The number of files that may have copies."""
        return sum(source.served[0] for source in self.report.sources)

    @property
    def bytes(self) -> int:
        """The total size of the files that may have copies."""
        return sum(source.served[1] for source in self.report.sources)

    @cached_property
    def source_bytes(self) -> Floats:
        """The bytes that were read from the sources in each interval, (n,)."""
        fills = self.counted["source_bytes_read_by_fills"]
        return fills + self.counted["source_bytes_read_by_programs"]

    @property
    def is_planned(self) -> bool:
        """Whether the history contains the numbers of epochs. It does if the daemon followed a
        plan."""
        return any(epoch is not None for epoch in self._epochs)

    def epochs(self, given: int | None = None) -> list[Epoch]:
        """Returns the epochs of the run. If the user has given their number, the opens are divided
        equally among the epochs. Otherwise, if the daemon followed a plan, the plan defines the
        epochs. Otherwise, an epoch is assumed to have `files` / `nodes` opens.

        If no plan defines the epochs, the result is empty in two cases: if no file was opened, or
        if there would be more than MOST_EPOCHS epochs.

        given : the number of epochs; None if the user has not given it
        """
        opens, at = self._sums["opens"], self._at
        if given is None and self.is_planned:
            known = [-1 if epoch is None else epoch for epoch in self._epochs]
            before = np.maximum.accumulate([-1, *known])[:-1]
            is_new = (np.array(known) > before) & (before >= 0)
            # The history does not say when an epoch ended. Each of its points only has a time, and
            # the epoch at this time. So an epoch is assumed to end at the first point with a later
            # epoch.
            ends = np.array([0.0, *at[1:-1][is_new], self.length])
        else:
            count = given or round(float(opens[-1]) * self.nodes / max(1, self.files))
            if not opens[-1] or count > MOST_EPOCHS:
                return []
            wanted = np.linspace(0, opens[-1], max(1, count) + 1)
            ends = np.interp(wanted, opens, at)
            ends[0], ends[-1] = 0.0, self.length
        of = {name: np.interp(ends, at, self._sums[name]) for name in ("opens", "hits")}
        rows = zip(np.diff(ends), np.diff(of["opens"]), np.diff(of["hits"]), strict=True)
        return [Epoch(*map(float, row)) for row in rows]


def load(file: Path) -> Recorded:
    """Reads a report from a file, or from standard input if `file` is `-`. Raises MonarchError if
    the file is not a usable report; the message names the file."""
    try:
        if str(file) == "-":
            text = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with open(file, "rb") as opened:
                text = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise MonarchError(f"{file}: cannot be read ({error.strerror}); {HOW}") from None
    if len(text) > MOST_BYTES:
        raise MonarchError(f"{file}: is too large for a report; {HOW}")
    try:
        _check_kind(file, msgspec.json.decode(text))
        recorded = msgspec.json.decode(text, type=_Report)
        _check_columns(recorded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MonarchError(f"{file}: is damaged or not a report ({error}); {HOW}") from None
    return Recorded(recorded)


def _check_kind(file: Path, found: Any) -> None:
    """Raises MonarchError unless the JSON document `found` is a report with a history."""
    if not isinstance(found, dict) or not found.keys() & {"schema", "exit_status"}:
        raise MonarchError(f"{file}: is not a report of Monarch; {HOW}")
    if "schema" not in found:
        why = found.get("problem") or "no daemon served the run"
        raise MonarchError(f"{file}: holds no report of a daemon: {why}")
    if found["schema"] != SCHEMA or "policies" in found:
        raise MonarchError(
            f"{file}: is not a report of schema {SCHEMA}; {HOW}, with this version of Monarch"
        )
    if "history" not in found:
        raise MonarchError(f"{file}: has no history; {HOW}")


def _check_columns(report: _Report) -> None:
    """Raises ValueError if the parts of a report do not fit together: for example, if columns of
    one table have different lengths, or if a counter decreases."""
    history, files = report.history, report.files
    columns = {name: getattr(history, name) for name in ("seconds", *COUNTED)}
    others: list[list[Any]] = [history.epoch, history.readers, history.memory_bytes]
    lengths = {len(column) for column in (*columns.values(), *others)}
    groups: list[list[Any]] = [files.source, files.first, files.count, files.bytes]
    if len(lengths) > 1 or len({len(column) for column in groups + files.copied_bytes}) > 1:
        raise ValueError("columns of different lengths")
    for totals in (report.totals, report.run.totals if report.run else report.totals):
        if lacking := set(COUNTED) - set(totals):
            raise ValueError(f"totals lack {min(lacking)}")
    for name, column in columns.items():
        if np.any(np.diff(column) < 0):
            raise ValueError(f"history.{name} decreases")
    if len(report.rooms) != len(report.tiers):
        raise ValueError("the number of rooms is not the number of tiers")
    places = len(report.tiers) + (report.staging is not None)
    if len(files.copied_bytes) != places or max(files.source, default=0) >= len(report.sources):
        raise ValueError("files do not belong to these tiers and sources")
