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
    """Makes standard output and standard error accept every file name. A name may contain bytes
    that are not valid text, or characters that the stream's encoding lacks. Call this function one
    time, before anything is written."""
    codecs.register_error("monarch", _encode_name)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="monarch")


def _encode_name(error: UnicodeError) -> tuple[str | bytes, int]:
    """Returns what to write for characters that cannot be encoded, and where to go on. Python
    represents bytes that are not valid text as surrogates (PEP 383). For surrogates, the result is
    the original bytes. For characters that the encoding lacks, the result is escape sequences."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.lookup_error("backslashreplace")(error)


def tell(text: str) -> None:
    """Writes a line for the user to standard error. If the write fails, for example because a disk
    is full, the command continues."""
    try:
        sys.stderr.write(f"monarch: {text}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr.fileno())


def warn(text: str) -> None:
    """Writes a warning for the user, about something that works but may surprise the user."""
    tell(f"warning: {text}")


def written(status: int) -> int:
    """Flushes standard output. Returns the exit status of the command: `status`, or the status that
    `output_failed` returns if the flush fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return output_failed(error)
    return status


def output_failed(error: OSError) -> int:
    """If `error` means that standard output could not be written, returns the exit status of the
    command. Otherwise raises `error` again."""
    if error.filename is not None or error.errno not in OUTPUT_ERRORS:
        raise error
    _discard(sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # the pipe's reader has ended: `monarch status | head`
        return 128 + signal.SIGPIPE
    tell(f"the output could not be written ({error.strerror})")
    return 1


def _discard(fd: int) -> None:
    """Redirects the descriptor `fd` of a failed stream to /dev/null. When Python exits, it tries
    again to write the text in the stream's buffer. Without the redirection, this write would fail
    too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
