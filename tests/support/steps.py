"""Runs a Python program under the library, step by step, under the test's control."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.session import Session

# The lines that run before the program's own lines. step() tells the test that the program has done
# everything so far, and waits until the test lets the program continue.
PRELUDE = """
import ctypes, fcntl, hashlib, json, mmap, os, signal, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def step(*found):
    print(json.dumps(found), flush=True)
    return sys.stdin.readline().strip()
def sha(data):
    return hashlib.sha256(data).hexdigest()
"""


class Steps:
    """Runs `script`. Each call of step() pauses the script until the test has called `wait` and
    then `go`.

    The program and its children end with the context, even after an error.
    """

    def __init__(
        self, session: Session, script: str, *words: object, preload: bool = True, **more: Any
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PRELUDE + script, *map(str, words)],
            env=session.env(preload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def wait(self) -> Any:
        """Waits until the next step(). Returns a list of its arguments. The script stays paused."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.process.communicate()[1]
            raise AssertionError(f"the program ended ({self.process.returncode}): {said}")
        return json.loads(line)

    def go(self, word: str = "go") -> None:
        """Lets the program continue."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self, timeout: float = 60) -> None:
        """Waits until the program ends on its own. Checks that its status is 0 and that it has
        written nothing to standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None  # communicate() would flush this closed stream, and fail
        _, said = self.process.communicate(timeout=timeout)
        assert (self.process.returncode, said) == (0, "")
