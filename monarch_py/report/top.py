"""The live view of a daemon: what its tiers hold, where bytes come from, and who reads."""

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from monarch_py.report.rates import Rates, Report, seconds_left
from monarch_py.util.quoting import quoted
from monarch_py.util.units import counted, format_size

# The view estimates how long the remaining copies will take, from the mean rate of copying in the
# last AVERAGED_S seconds.
AVERAGED_S = 20.0
BAR_WIDTH = 20
# Widths in a table that contains bars [characters]. LEAST_NAME : the least width of the column of
# names. NEEDED_WIDTH : the width of all other columns together.
NEEDED_WIDTH, LEAST_NAME = 64, 16
# The table of programs lists at most this many processes. It only counts the others.
MOST_PROGRAMS = 10


class View:
    """Makes the frames of the live view. A frame shows the latest report of the daemon, and the
    rates between the previous report and the latest one."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()
        self._open: Sequence[dict[str, Any]] | None = None

    def take(self, report: Report) -> None:
        """Adds the newest report."""
        if self._reports and self._reports[-1]["pid"] != report["pid"]:
            self._reports.clear()
        self._reports.append(report)
        while (
            len(self._reports) > 2
            and report["uptime_seconds"] - AVERAGED_S >= (self._reports[1]["uptime_seconds"])
        ):
            self._reports.popleft()

    def take_open(self, rows: Sequence[dict[str, Any]]) -> None:
        """Sets which programs have which files open (the rows of `monarch status --open`)."""
        self._open = rows

    def frame(self, width: int) -> RenderableType:
        """Returns the frame for the latest report. `take` must be called before.

        width : the screen's width [characters]
        """
        report = self._reports[-1]
        now = Rates.between(self._reports[-2] if len(self._reports) > 1 else None, report)
        lately = Rates.between(self._reports[0], report)
        parts: list[RenderableType] = [
            _head(report),
            _flows(report, now),
            Text(),
            _tiers(report, width),
            Text(),
            _sources(report, lately, width),
        ]
        if self._open:
            parts += [Text(), _programs(self._open)]
        return Group(*parts)


def _head(report: Report) -> Text:
    state = "switched off" if report["switched_off"] else "serving"
    up = timedelta(seconds=round(report["uptime_seconds"]))
    pending = counted(report["pending"], "fill")
    text = f"daemon {report['pid']}, {state}, up for {up}, {pending} pending"
    return Text.assemble(("monarch top", "bold"), "  ", text)


def _flows(report: Report, rates: Rates) -> Table:
    totals = report["totals"]
    table = _grid(2)
    table.add_row("opens", _opens(rates.opens, rates.hit_ratio, totals))
    source = rates.fill_bytes + rates.program_bytes
    parts = [f"{_rate(rates.fill_bytes)} fills", f"{_rate(rates.program_bytes)} programs"]
    table.add_row("tiers", f"{_rate(rates.tier_bytes)} of files opened")
    table.add_row("source", f"{_rate(source)} ({', '.join(parts)})")
    if report["nodes"]:
        table.add_row(
            "nodes", f"{_rate(rates.peer_bytes)} from them, {_rate(rates.served_bytes)} to them"
        )
    table.add_row("waits", f"{rates.waits:,.0f}/s, {rates.waiting:.2f} threads wait for a copy")
    return table


def _opens(opens: float, ratio: float | None, totals: dict[str, Any]) -> str:
    share = "" if ratio is None else f", {100 * ratio:.1f} % from copies"
    since = f"{100 * totals['hits'] / totals['opens']:.1f} %" if totals["opens"] else "-"
    return f"{opens:,.0f}/s{share} (since the start: {since} of {totals['opens']:,})"


def _rate(bytes_per_s: float) -> str:
    return f"{format_size(round(bytes_per_s))}/s"


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for number in range(columns):
        table.add_column(style="dim" if number == 0 else "", no_wrap=number == 0)
    return table


class _Shares:
    """Builds a table with a column of names, a column of bars, and columns of numbers. If the
    screen is too narrow for all columns, the column of bars is omitted.

    table : the table;  width : the screen's width [characters]
    """

    def __init__(self, title: str, columns: Sequence[str], width: int) -> None:
        self.table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        self._has_bars = width >= NEEDED_WIDTH + LEAST_NAME
        needed = NEEDED_WIDTH if self._has_bars else NEEDED_WIDTH - BAR_WIDTH - 2
        self._name_width = max(LEAST_NAME, width - needed)
        self.table.add_column(title, no_wrap=True)
        if self._has_bars:
            self.table.add_column("", width=BAR_WIDTH)
        for column in columns:
            self.table.add_column(column, justify="right", no_wrap=True)

    def add(self, name: str, part: float, whole: float, *numbers: str) -> None:
        """Adds a row. Its bar shows the share `part / whole`."""
        bar = ProgressBar(total=max(whole, 1), completed=min(part, whole), width=BAR_WIDTH)
        bars = [bar] if self._has_bars else []
        name = _short(quoted(name), self._name_width)
        self.table.add_row(name, *bars, _share(part, whole), *numbers)


def _short(name: str, width: int) -> str:
    """Returns the name if it has at most `width` characters. Otherwise returns only its end,
    because names differ most at their ends."""
    return name if len(name) <= width else "…" + name[1 - width :]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _tiers(report: Report, width: int) -> Table:
    shares = _Shares("tier", ["full", "used", "of", "copies"], width)
    tiers = [(tier["mount_point"], tier) for tier in report["tiers"]]
    if report["staging"] is not None:
        tiers.append((f"{report['staging']['mount_point']} (staging)", report["staging"]))
    for name, tier in tiers:
        used, quota = tier["used_bytes"], tier["quota_bytes"]
        sizes = format_size(used), format_size(quota), f"{tier['files']:,}"
        label = name if tier["usable"] else f"{name} (unused)"
        shares.add(label, used, quota, *sizes)
    return shares.table


def _sources(report: Report, lately: Rates, width: int) -> RenderableType:
    shares = _Shares("source", ["copied", "files", "of", "to come"], width)
    for source in report["sources"]:
        files, present = source["files"], source["present"]
        label = source["path"] if source["scanned"] else f"{source['path']} (being scanned)"
        coming = source["filling"] + source["wanted"]
        counts = f"{present:,}", f"{files:,}", f"{coming:,}"
        shares.add(label, present, files, *counts)
    left = seconds_left(report, lately.filled_bytes)
    if left is None:
        return shares.table
    when = f"at {_rate(lately.filled_bytes)}, all files for which there is room are copied in"
    return Group(shares.table, Text(f"{when} {timedelta(seconds=round(left))}", style="dim"))


def _programs(rows: Iterable[dict[str, Any]]) -> Table:
    """Returns a table of the processes that have the most files open. The table also shows where
    the content of these files comes from (for example a tier, or the source)."""
    served: dict[tuple[int, str], Counter[str]] = {}
    latest: dict[tuple[int, str], str] = {}
    for row in rows:
        key = row["pid"], row["command"]
        served.setdefault(key, Counter())[row["served_by"]] += 1
        latest[key] = row["path"]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("program", no_wrap=True)
    table.add_column("files open", justify="right", no_wrap=True)
    table.add_column("served by", no_wrap=True)
    table.add_column("one of these files", overflow="ellipsis")
    most = sorted(served, key=lambda key: (-served[key].total(), key))
    for pid, command in most[:MOST_PROGRAMS]:
        counts = served[pid, command]
        by = ", ".join(f"{name} {files}" for name, files in counts.most_common())
        name = os.path.basename(latest[pid, command])
        table.add_row(f"{quoted(command)} {pid}", str(counts.total()), by, quoted(name))
    if len(most) > MOST_PROGRAMS:
        table.add_row(f"{len(most) - MOST_PROGRAMS} more", "", "", "")
    return table
