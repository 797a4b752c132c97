"""The command warm."""

import errno
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from monarch_py.cli.messages import tell
from monarch_py.cli.options import as_json, examples, served_config_option
from monarch_py.commands.warm import Progress, Warm
from monarch_py.errors import SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.report.summary import room_bytes, room_hint
from monarch_py.util.quoting import quoted
from monarch_py.util.signals import handle, handling
from monarch_py.util.units import counted, format_size

# Time [s] between two lines of progress if standard error is not a terminal.
LINE_S = 5.0
# The shown rate is an average over this time [s], so that single large files and short pauses
# hardly change it.
RATE_S = 20.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number: int, _frame: object) -> None:
    """Handles the first signal: raises SystemExit, so that the command prints its summary before it
    ends. Also restores the default actions, so that a second signal ends the process at once."""
    handle(SIGNALS, signal.SIG_DFL)
    sys.exit(128 + number)


# --- progress -----------------------------------------------------------------------------------


def _text(progress: Progress, bytes_per_s: float, left_s: float | None) -> str:
    """Returns the progress as text.

    left_s : the estimated time until all files are copied [s]; None if it is not known
    """
    to_fill = progress.filled_files + progress.left_files
    if not to_fill:
        return _nothing_yet(progress)
    parts = [
        f"{progress.filled_files:,} of {to_fill:,} files",
        f"{format_size(progress.filled_bytes)} of {format_size(_to_fill(progress))}",
        f"{format_size(round(bytes_per_s))}/s",
    ]
    if not progress.complete:
        parts.append("the sources are still being listed")
    elif left_s is not None:
        parts.append(f"{timedelta(seconds=round(left_s))} left")
    return ", ".join(parts)


def _nothing_yet(progress: Progress) -> str:
    """Returns the progress as text, for the time before the first file that needs a copy is
    known."""
    found = f"{counted(progress.there_files, 'file')} already there" if progress.there_files else ""
    if progress.complete:
        return found or "no file to copy"
    return f"listing the sources, {found or 'no file found yet'}"


def _to_fill(progress: Progress) -> int:
    """Returns the total size [bytes] of the files that this command has copied or will copy."""
    return max(0, progress.bytes - progress.there_bytes - progress.at_source_bytes)


class _Display:
    """Shows the progress on standard error. On a terminal, shows a bar. Otherwise, writes a line of
    text every few seconds."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._next = bar, time.monotonic() + LINE_S
        bar.add_task("warm", total=None, text="")
        (self._task,) = bar.tasks

    def show(self, progress: Progress) -> None:
        # Set the total only when it no longer changes, because rich forgets a task's rate whenever
        # the total changes.
        total = _to_fill(progress) if progress.complete else None
        self._bar.update(self._task.id, total=total, completed=progress.filled_bytes)
        text = _text(progress, self._task.speed or 0, self._task.time_remaining)
        self._bar.update(self._task.id, text=text)
        if self._bar.disable and time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_S
            tell(text)


def _bar() -> Bar:
    console = Console(stderr=True)
    return Bar(
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        console=console,
        transient=True,
        speed_estimate_period=RATE_S,
        disable=not console.is_terminal,
    )


# --- summary ------------------------------------------------------------------------------------


def _why_left(reason: str, files: int, *, has_tiers: bool) -> str:
    if reason == "no_room":
        if has_tiers:
            return f"{files:,} did not fit into the tiers"
        return f"{files:,} could not be copied, because no tier can be used"
    return f"{files:,} {reason}"


def _tell_failures(report: dict[str, Any], *, is_everything: bool) -> int:
    """Tells the user in which tiers the daemon could not record copies. If the command copies all
    files, also names each source in which the scan could not read some paths, and returns the exit
    status 1. A path without read permission does not make the status 1, because users often lack
    permission for paths such as `lost+found`. Otherwise returns 0.

    is_everything : whether the command copies all files
    """
    for text in filter(None, (tier.get("unrecorded") for tier in report.get("tiers", ()))):
        tell(text)
    status = 0
    for source in report.get("sources", ()) if is_everything else ():
        if source["scan_errors"]:
            tell(
                f"{source['path']}: {counted(source['scan_errors'], 'path')} could not be read"
                f" ({source['scan_error']}), so the files there have no copies; see `monarch logs`"
            )
            status |= source["scan_error"] != os.strerror(errno.EACCES)
    return status


def _forecast(progress: Progress, room: int) -> str:
    """Returns the summary of `--dry-run`.

    room : how many bytes of new copies fit into the tiers
    """
    left = max(0, _to_fill(progress) - progress.filled_bytes)
    said = f"{counted(progress.left_files, 'file')} ({format_size(left)}) would be filled"
    said += f", {progress.there_files:,} ({format_size(progress.there_bytes)}) already there"
    return f"{said}; the tiers have room for {format_size(room)} now" if left > room else said


def _summary(progress: Progress, *, wait: bool, hint: str, has_tiers: bool) -> str:
    """Returns the summary of the command.

    hint : a text that says how to make room for the files that did not fit; "" for no hint
    has_tiers : whether any tier can be used
    """
    filled = (
        f"{counted(progress.filled_files, 'file')} ({format_size(progress.filled_bytes)}) filled"
    )
    if progress.replaced_files:
        filled += f", {progress.replaced_files:,} of them again (replaced at the source)"
    if not wait:
        left = _to_fill(progress) - progress.filled_bytes
        filled += f", {progress.left_files:,} ({format_size(max(0, left))}) ordered"
    elif progress.left_files:
        filled += f", {progress.left_files:,} not filled"
    there = f"{progress.there_files:,} ({format_size(progress.there_bytes)}) already there"
    stay = ""
    if progress.at_source:
        left_by = progress.at_source.items()
        why = ", ".join(_why_left(reason, n, has_tiers=has_tiers) for reason, n in left_by)
        stay = f"; {sum(progress.at_source.values()):,} "
        stay += f"({format_size(progress.at_source_bytes)}) stay at the source: {why}"
        stay += f"; {hint}" if hint else ""
    return f"{filled}, {there}{stay}"


@click.command(
    short_help="Copy files ahead of a job.",
    epilog=examples(
        "monarch warm -c tiers.yaml",
        "monarch warm -c tiers.yaml --dry-run /pfs/imagenet/train",
        "find /pfs/imagenet -name '*.idx' -print0 | monarch warm -c tiers.yaml -0 --from-file -",
    ),
)
@served_config_option
@click.option(
    "--from-file",
    "list_file",
    metavar="LIST",
    type=click.File("rb"),
    help="Also read paths from LIST, one per line; - is stdin.",
)
@click.option("-0", "--null", is_flag=True, help="The paths in LIST end with NUL, not newlines.")
@click.option("--no-wait", is_flag=True, help="Request the copies, but do not wait for them.")
@click.option("--dry-run", is_flag=True, help="Copy nothing; say what would be copied.")
@as_json
@click.argument("paths", metavar="[PATH ...]", nargs=-1)
def warm(
    *,
    config_file: Path,
    list_file: BinaryIO | None,
    null: bool,
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    paths: tuple[str, ...],
) -> None:
    """Copy files and directories ahead of a job; without PATH, everything.

    Files that programs read in the meantime are copied first. Ctrl-C keeps what has been copied;
    run the command again to go on. Exits with 1 if a PATH selects no file, if a file could not
    be read at the source, or if files have no room because a tier cannot be used. Without PATH,
    also exits with 1 if a directory could not be read, unless you have no permission to read it.
    """
    if null and list_file is None:
        raise click.UsageError("-0 describes LIST; give --from-file LIST too")
    texts = list(paths) if paths or list_file is not None else None
    if list_file is not None and texts is not None:
        texts += map(os.fsdecode, filter(None, list_file.read().split(b"\0" if null else b"\n")))
    session, run, status, ended = SessionDir.of(config_file), None, 0, ""
    try:
        with handling(SIGNALS, _end):
            run = Warm(session, texts, is_dry=dry_run)
            with _bar() as bar:
                run.run(_Display(bar).show, wait=not (no_wait or dry_run))
    except SystemExit as signal_seen:
        status = int(signal_seen.code or 0)
        ended = "interrupted; run it again to go on: "
    if run is None:  # the signal came before any copy was requested
        sys.exit(status)
    troubles = [f"{quoted(path)}: {why}" for path, why in run.chosen.problems]
    hint, has_tiers = "", True
    report: dict[str, Any] = {}
    if not ended:
        with suppress(SessionError):  # raised if another command has just stopped the daemon
            report = DaemonConnection(session).ask("status")
        status = _tell_failures(report, is_everything=texts is None)
    if "no_room" in run.progress.at_source and report:
        troubles += [tier["why"] for tier in report["tiers"] if not tier["usable"]]
        hint = room_hint(report, *run.no_room())
        has_tiers = bool(hint)
    for trouble in troubles:
        tell(trouble)
    if as_json:
        problems = [{"path": path, "problem": why} for path, why in run.chosen.problems]
        click.echo(json.dumps({**asdict(run.progress), "problems": problems}, indent=2))
    elif dry_run and ended:
        click.echo("interrupted; nothing was copied")
    elif dry_run:
        click.echo(_forecast(run.progress, room_bytes(report)))
    else:
        said = _summary(run.progress, wait=not no_wait, hint=hint, has_tiers=has_tiers)
        click.echo(ended + said)
    sys.exit(status or int(bool(troubles) or "failed" in run.progress.at_source))
