"""The rates of a daemon's work: how much its counters grew between two reports, per second."""

from dataclasses import dataclass
from typing import Any

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates between two reports of a daemon. All are per second, except `hit_ratio` and
    `waiting`.

    opens, hits : opens of dataset files, and opens that got a copy instead of the source file
    tier_bytes : the total size of the files of which programs opened a copy
    fill_bytes : bytes that the daemon read from the sources to make copies
    program_bytes : bytes that programs themselves read from the sources
    peer_bytes, served_bytes : bytes that came from other nodes, and bytes that went to other nodes
    filled_bytes : the total size of the copies that were finished
    waits : reads that waited for a part of a copy
    waiting : how many threads of programs were waiting for a copy, on average
    """

    opens: float = 0.0
    hits: float = 0.0
    tier_bytes: float = 0.0
    fill_bytes: float = 0.0
    program_bytes: float = 0.0
    peer_bytes: float = 0.0
    served_bytes: float = 0.0
    filled_bytes: float = 0.0
    waits: float = 0.0
    waiting: float = 0.0

    @property
    def hit_ratio(self) -> float | None:
        """The share of opens that got a copy, from 0 to 1; None if there were no opens."""
        return self.hits / self.opens if self.opens else None

    @classmethod
    def between(cls, before: Report | None, after: Report) -> "Rates":
        """Returns the rates between two reports. All rates are 0 if `before` is None, or if it is a
        report of another daemon."""
        if before is None or before["pid"] != after["pid"]:
            return cls()
        seconds = float(after["uptime_seconds"] - before["uptime_seconds"])
        if seconds <= 0:
            return cls()

        def rate(name: str) -> float:
            return float(after["totals"][name] - before["totals"][name]) / seconds

        return cls(
            opens=rate("opens"),
            hits=rate("hits"),
            tier_bytes=rate("bytes_from_tier"),
            fill_bytes=rate("source_bytes_read_by_fills"),
            program_bytes=rate("source_bytes_read_by_programs"),
            peer_bytes=rate("bytes_from_peers"),
            served_bytes=(_served(after) - _served(before)) / seconds,
            filled_bytes=rate("filled_bytes"),
            waits=rate("waits"),
            waiting=rate("wait_seconds"),
        )


def _served(report: Report) -> float:
    return float(report["nodes"]["served_bytes"]) if report["nodes"] else 0.0


def left_bytes(source: Report) -> int:
    """Returns the total size of those files of a source that have no copy yet and may get one.

    source : the entry of the source in a report
    """
    return max(
        0, int(source["bytes"] - source["present_bytes"] - sum(source["bypass_bytes"].values()))
    )


def seconds_left(report: Report, filled_bytes: float) -> float | None:
    """Returns how long the remaining copies will take at the present rate [s]. Files for which no
    tier has room are not included. Returns None if no copies are being made, or none remain.

    filled_bytes : the rate at which copies are finished [bytes/s]
    """
    room = sum(tier["free_bytes"] for tier in report["tiers"] if tier["usable"])
    left = min(room, sum(left_bytes(source) for source in report["sources"]))
    if filled_bytes <= 0 or not left:
        return None
    return float(left / filled_bytes)
