"""Runs `monarch` commands, in the test's own process unless they need a separate one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from tempfile import TemporaryFile
from unittest import mock

from monarch_py.cli import main
from support.forking import fork_monarch

# Commands that need a separate process: they replace or start a program, handle signals, or read
# what a user types.
PROCESSES = {"calibrate", "demo", "run", "serve", "start"}


def run_monarch(
    words: Sequence[str], environment: Mapping[str, str], timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs `monarch WORDS` with exactly this environment.

    timeout : limit for a command in a separate process [s]; for any other command, the test's own
        limit applies
    """
    # A command that is started with the library in LD_PRELOAD restarts itself without the library.
    is_anew = "LD_PRELOAD" in environment
    if PROCESSES.intersection(words) or "-" in words or "-f" in words or is_anew:
        return _forked(words, environment, timeout) or subprocess.run(
            [sys.executable, "-m", "monarch_py", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["monarch", *words]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int)
    said, errors = (_text(stream) for stream in (out, err))
    return subprocess.CompletedProcess(["monarch", *words], status, said, errors)


def _forked(
    words: Sequence[str], environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str] | None:
    if "-" in words or "-f" in words:
        return None  # the command reads standard input, or runs until it is stopped
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = fork_monarch(words, environment, out.fileno(), err.fileno())
        if process is None:
            return None
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, status, out.read(), err.read())


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(errors="surrogateescape")
