"""The output of the commands: one style of messages, tables that fit, names as they are.

Text is never markup, since a path may contain brackets. Without a terminal, a table is plain text
with one line per row, however long. On a terminal, a table that is too wide becomes a list.
"""

from __future__ import annotations

import codecs
import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["console", "output_failed", "prepare", "print_table", "show", "tell", "warn", "written"]

# Errors of writing to a disk, a pipe or a terminal.
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


def prepare() -> None:
    """Makes the output accept names that are not text, or that its encoding lacks. Call it once,
    before anything is written."""
    codecs.register_error("monarch", _encode_name)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="monarch")


def _encode_name(error: UnicodeError) -> tuple[str | bytes, int]:
    """Writes bytes of a name that are not text unchanged (PEP 383), and characters that the
    encoding lacks as escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.lookup_error("backslashreplace")(error)


def tell(text: str) -> None:
    """Writes a line to the user on standard error. A full disk there does not change our status."""
    try:
        sys.stderr.write(f"monarch: {text}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr.fileno())


def warn(text: str) -> None:
    """Writes a line about something that works but may surprise the user."""
    tell(f"warning: {text}")


def written(status: int) -> int:
    """Flushes the output. Returns the status to exit with: `status`, or that of a failed write."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return output_failed(error)
    return status


def output_failed(error: OSError) -> int:
    """The status to exit with after standard output could not be written. Raises `error` again if
    it is about something else."""
    if error.filename is not None or error.errno not in OUTPUT_ERRORS:
        raise error
    _discard(sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # its reader has gone: `monarch status | head`
        return 128 + signal.SIGPIPE
    tell(f"the output could not be written ({error.strerror})")
    return 1


def _discard(fd: int) -> None:
    """Replaces a descriptor by /dev/null. Otherwise the rest of the buffer would fail again when
    Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def console() -> Console:
    """The console of standard output. Without a terminal it does not fold lines."""
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = 10_000
    return made


def show(what: RenderableType) -> None:
    """Prints `what` without the blanks with which rich fills lines."""
    out = console()
    with out.capture() as captured:
        out.print(what)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(" "))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1
) -> None:
    """Prints a table whose first `left` columns are text and the others numbers. A cell that is
    None is empty; columns whose cells are all empty are left out."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(columns)) if any(row[i] for row in cells)] or [0]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for i in kept:
        table.add_column(columns[i], justify="left" if i < left else "right", no_wrap=True)
    for row in cells:
        table.add_row(*(row[i] for i in kept))
    out = console()
    if title:
        show(Text(title, style="bold"))
    wide = Measurement.get(out, out.options.update(max_width=10_000), table).maximum
    if wide <= out.width:
        show(table)
    else:
        _print_list([columns[i] for i in kept], [[row[i] for i in kept] for row in cells])


def _print_list(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints the first cell of each row uncut on its own line, and the named other cells below."""
    for first, *others in rows:
        click.echo(first)
        cells = [
            Text.assemble((f"{column} ", "dim"), cell.replace(" ", "\u00a0"))
            for column, cell in zip(columns[1:], others, strict=True)
            if cell
        ]
        show(Padding(Text(", ").join(cells), (0, 0, 0, 2)))
