"""The command logs."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from monarch_py.cli.options import examples, served_config_option
from monarch_py.errors import SessionError
from monarch_py.ipc.session import SessionDir

# By default, the command prints this many lines from the end of the previous daemon's log. These
# lines show how that daemon ended.
LINES_BEFORE = 20
# With `--follow`, the command looks for new lines after each pause of this length [s].
LOOK_S = 0.2
PIECE_BYTES = 1 << 20
# Each time, `--follow` also reads this many bytes at the beginning of the log. If these bytes have
# changed, a new daemon has begun a new log: a log's first line contains the daemon's start time.
FIRST_BYTES = 64
INTERRUPTED = 130


@click.command(
    short_help="Print the logs of the daemon and of the previous daemon.",
    epilog=examples("monarch logs", "monarch logs -n 50"),
)
@served_config_option
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    help="Print only this many lines at the end of each log.  [default: all lines of the daemon's"
    f" log, {LINES_BEFORE} lines of the previous daemon's log]",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
def logs(config_file: Path, lines: int | None, *, follow: bool) -> None:
    """Print the log of the configuration's daemon. The log is kept when the daemon ends.

    The end of the previous daemon's log is printed first. `monarch serve` logs to its own standard
    error instead.
    """
    session = SessionDir.of(config_file)
    end = 0
    before = _last(session.log_before, LINES_BEFORE if lines is None else lines)
    current = _last(session.log, lines)
    if before is None and current is None:
        raise SessionError(
            f"no daemon of {config_file} has left a log on this node; `monarch serve` logs to its"
            " own standard error"
        )
    for path, found in ((session.log_before, before), (session.log, current)):
        if found is not None:
            text, end = found
            click.echo(f"==> {path} <==")
            click.echo(text, nl=not text.endswith(b"\n") and bool(text))
    if follow:
        try:
            for piece in _new(session.log, end if current is not None else 0):
                click.echo(piece, nl=False)
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _last(path: Path, lines: int | None) -> tuple[bytes, int] | None:
    """Returns the last `lines` lines of a log, and the offset at which the log ends. If `lines` is
    None, returns all lines. If there is no log, returns None."""
    try:
        with path.open("rb") as file:
            return b"".join(file if lines is None else deque(file, lines)), file.tell()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SessionError(f"{path} cannot be read ({error.strerror})") from error


def _new(path: Path, begin: int) -> Iterator[bytes]:
    """Yields the bytes of a log after the offset `begin`, and then forever the bytes that are added
    to the log. If the first bytes of the log change, the next daemon has begun a new log, and this
    log is yielded from its beginning."""
    first = b""
    with suppress(OSError), path.open("rb") as file:
        first = file.read(FIRST_BYTES)
    while True:
        with suppress(OSError), path.open("rb") as file:
            head = file.read(FIRST_BYTES)
            if not head.startswith(first):
                begin = 0
            first = head
            file.seek(begin)
            while piece := file.read(PIECE_BYTES):
                begin += len(piece)
                yield piece
        time.sleep(LOOK_S)
