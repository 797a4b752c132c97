"""Writes the commands' messages, and handles output that cannot be written.

The module `screen` prints tables. It is slow to load, so commands without tables use only this
module.
"""

import codecs
import errno
import os
import signal
import sys

# The errno values with which a write to a disk, a pipe or a terminal can fail.
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


def prepare() -> None:
    """Makes standard output and standard error accept every file name, even if the name is not
    valid text or has characters that the stream's encoding lacks. Call it once, before anything is
    written."""
    codecs.register_error("monarch", _encode_name)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="monarch")


def _encode_name(error: UnicodeError) -> tuple[str | bytes, int]:
    """The error handler for characters that cannot be encoded. If a name has bytes that are not
    valid text (PEP 383), these bytes are written unchanged. Characters that the encoding lacks are
    written as escape sequences."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.lookup_error("backslashreplace")(error)


def tell(text: str) -> None:
    """Writes a line to the user on standard error. If the write fails, for example because a disk
    is full, the command continues."""
    try:
        sys.stderr.write(f"monarch: {text}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr.fileno())


def warn(text: str) -> None:
    """Writes a line about something that works but may surprise the user."""
    tell(f"warning: {text}")


def written(status: int) -> int:
    """Flushes the output. Returns the status to exit with: `status`, or the status of a failed
    write."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return output_failed(error)
    return status


def output_failed(error: OSError) -> int:
    """If `error` means that standard output could not be written, returns the status to exit with.
    Otherwise raises `error` again."""
    if error.filename is not None or error.errno not in OUTPUT_ERRORS:
        raise error
    _discard(sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # the pipe's reader has ended: `monarch status | head`
        return 128 + signal.SIGPIPE
    tell(f"the output could not be written ({error.strerror})")
    return 1


def _discard(fd: int) -> None:
    """Redirects the descriptor `fd` of a failed stream to /dev/null. The stream's buffer still has
    unwritten text. When Python exits, it tries to write this text again. Without the redirection,
    this write would fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
