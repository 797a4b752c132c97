"""The summary of `monarch run`: what Monarch gained, what the source served, and what to change.

The summary's lines have at most 80 characters.
"""

import re
import shutil
import textwrap
from contextlib import suppress
from typing import Any

from monarch_py.storage.shortage import HINT, MARGIN_BYTES
from monarch_py.util.units import GIB, MIB, counted, format_size

WIDTH = 80
# The column at which the text after a line's label begins.
INDENT = 11
# Matches the last digit of a number, and the unit after it. No line break may separate the two.
NUMBER = re.compile(r"(\d) ([KMGTPE]?i?B\b|%)")


def since(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """Returns how much a daemon's counters grew between two of its reports. If `before` is None or
    a report of another daemon, returns how much they grew since the start of the daemon.

    The result is a dictionary:
    totals : the growth of each counter in the report's `totals`
    staged : how many copies were made in the staging area
    served_bytes : how many bytes were sent to other nodes
    begun_seconds : the time from the daemon's start to the earlier report [s]
    """
    first = before if before is not None and before["pid"] == after["pid"] else None

    def gained(*names: str) -> float:
        counts = []
        for report in (after, first):
            found: Any = report
            for name in names:
                found = found[name] if found else None
            counts.append(found or 0)
        return counts[0] - counts[1]

    return {
        "totals": {name: gained("totals", name) for name in after["totals"]},
        "staged": gained("staging", "staged"),
        "served_bytes": gained("nodes", "served_bytes"),
        "begun_seconds": first["uptime_seconds"] if first else 0.0,
    }


def summary(report: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Returns the lines of the summary.

    report : the daemon's status after the run;  run : the result of `since`
    """
    told = [("monarch:", _opens(report, run["totals"]))]
    if run["totals"]["opens"]:
        told += [("  source:", read_from_source(run["totals"]))]
    told += [("  filled:", text) for text in _not_filled(report, run["totals"])]
    told += [("  tier:", _place(t) if t["usable"] else t["why"]) for t in report["tiers"]]
    told += [("  staging:", text) for text in _staging(report, run)]
    told += [("  nodes:", text) for text in exchanged(run)]
    told += [("  ahead:", text) for text in unused(report)]
    told += [("  no room:", text) for text in _no_room(report)]
    told += [("  skipped:", text) for text in _left_out(report)]
    told += [("  plan:", _plan(plan)) for plan in report["plans"]]
    return [line for label, text in told for line in _wrapped(label, text)]


def _wrapped(label: str, text: str) -> list[str]:
    first = label.ljust(INDENT) if label.startswith(" ") else label + " "
    whole = NUMBER.sub("\\1\u00a0\\2", text)
    lines = textwrap.wrap(
        whole,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * INDENT,
        # Users copy paths and sizes from the summary, so a line break must not divide them.
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def _opens(report: dict[str, Any], totals: dict[str, Any]) -> str:
    if report["switched_off"]:
        return "switched off by an administrator or by your `switch_file`: nothing was served"
    if not totals["opens"]:
        roots = " or ".join(source["path"] for source in report["sources"])
        return (
            f"no file below {roots} was opened; the program may use another path or mount of the"
            " dataset, or may not load the library (a static program, `env -i`)"
        )
    return opened(totals)


def opened(totals: dict[str, Any]) -> str:
    share = f"{100 * totals['hits'] / (totals['opens'] or 1):.1f} %"
    opens = counted(totals["opens"], "open")
    text = f"{opens} of dataset files, {totals['hits']:,} ({share}) from copies"
    if totals["bytes_while_filling"]:
        text += f"; {format_size(totals['bytes_while_filling'])} were read while copies were made"
    return text


def read_from_source(totals: dict[str, Any]) -> str:
    fills, own = totals["source_bytes_read_by_fills"], totals["source_bytes_read_by_programs"]
    without = totals["bytes_from_tier"] + totals["bytes_from_source"]
    return (
        f"{format_size(fills + own)} read ({format_size(fills)} to fill copies, {format_size(own)}"
        f" by programs); {format_size(without)} without Monarch"
    )


def _not_filled(report: dict[str, Any], totals: dict[str, Any]) -> list[str]:
    is_meant = report["prefetch"] == "none" and totals["hits"] < totals["opens"]
    if totals["fills"] or not is_meant:
        return []
    return ["nothing; with `prefetch: none` only `monarch warm` makes copies"]


def _place(tier: dict[str, Any]) -> str:
    room = f"{format_size(tier['used_bytes'])} of {format_size(tier['quota_bytes'])}"
    foreign = f" ({tier['foreign']:,} of other sources)" if tier.get("foreign") else ""
    return f"{tier['mount_point']}: {counted(tier['files'], 'copy')}{foreign}, {room}"


def _staging(report: dict[str, Any], run: dict[str, Any]) -> list[str]:
    staging = report["staging"]
    if staging is None or not (run["staged"] or staging["files"]):
        return []
    return [f"{_place(staging)}; {run['staged']:,} were made here in this run"]


def exchanged(run: dict[str, Any]) -> list[str]:
    came, went = run["totals"]["bytes_from_peers"], run["served_bytes"]
    if not came and not went:
        return []
    return [f"{format_size(came)} came from other nodes, {format_size(went)} went to them"]


def unused(report: dict[str, Any]) -> list[str]:
    ahead = report["ahead"]
    if not ahead or not ahead["unused_files"]:
        return []
    size = format_size(ahead["unused_bytes"])
    return [f"{counted(ahead['unused_files'], 'copy')} ({size}) that no program has opened yet"]


def _left_out(report: dict[str, Any]) -> list[str]:
    """Returns a text for each reason why files were not copied. The reason "no_room" is missing
    here, because `_no_room` returns its text."""
    words = {
        "excluded": "excluded by the configuration",
        "changed": "changed since the daemon examined them",
        "failed": "could not be copied: see `monarch logs`",
        "unsupported": "have attributes that the catalog cannot hold",
    }
    found = {
        reason: sum(source["bypass"].get(reason, 0) for source in report["sources"])
        for reason in words
    }
    return [f"{counted(n, 'file')} {words[reason]}" for reason, n in found.items() if n]


def _no_room(report: dict[str, Any]) -> list[str]:
    files = sum(source["bypass"].get("no_room", 0) for source in report["sources"])
    size = sum(source["bypass_bytes"].get("no_room", 0) for source in report["sources"])
    if not files:
        return []
    text = f"{counted(files, 'file')} ({format_size(size)}) left to the source"
    hint = room_hint(report, files, size)
    return [f"{text}; {hint}" if hint else f"{text}: no tier can be used (see above)"]


def room_hint(report: dict[str, Any], files: int, size: int) -> str:
    """Returns a hint how to make room for more files; "" if no tier can be used.

    report : the daemon's status
    files, size : how many more files need room, and their total size [bytes]
    """
    usable = [tier for tier in report["tiers"] if tier["usable"]]
    if not usable:
        return ""
    # Advise a larger quota for the last tier, which is the slowest and is filled last. A copy takes
    # whole blocks of 4096 bytes: at most one block more than the file's size in bytes.
    tier, n_bytes = usable[-1], size + files * 4096
    quota, needed = rounded_up(tier["used_bytes"] + n_bytes), n_bytes + MARGIN_BYTES
    free = others = 0
    with suppress(OSError):
        disk = shutil.disk_usage(tier["mount_point"])
        free, others = disk.free, max(0, disk.used - tier["used_bytes"])
    if free < needed <= free + others:
        return (
            f"the file system of {tier['mount_point']} has {format_size(free)} left, because other"
            f" files take {format_size(others)}: {HINT}"
        )
    if free < needed:
        return f"{tier['mount_point']} has {format_size(free)} left: add a larger tier"
    return f"`max_storage_quota: {quota}` for {tier['mount_point']} would hold all these files"


def room_bytes(report: dict[str, Any]) -> int:
    """Returns how many bytes of new copies fit into the tiers without evicting other copies."""
    return sum(tier["free_bytes"] for tier in report["tiers"] if tier["usable"])


def rounded_up(n_bytes: int) -> str:
    unit, name = (GIB, "GiB") if n_bytes >= 10 * GIB else (MIB, "MiB")
    return f"{-(-n_bytes // unit)}{name}"


def _plan(plan: dict[str, Any]) -> str:
    if plan["state"] == "dropped":
        return f"{plan['file']} was dropped: {plan['why']}"
    if plan["position"] is None:
        return f"{plan['file']} was not followed: {plan['state']}"
    place = f"epoch {plan['epoch']}, {plan['position']:,} accesses"
    return f"{plan['file']} was followed up to {place}; {plan['fitting']:,} opens fitted the plan"
