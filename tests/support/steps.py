"""A Python program under the library that does its next step when the test says so."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.session import Session

# Before the program's own lines. step() tells the test that everything so far is done, and waits.
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
    """Runs `script`; every step() in it is met by one `wait`, which lets it go on.

    The program and what it has started end with the context, whatever happens in it.
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
        """Until the next step(); returns what it was given. The program still stands there."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.process.communicate()[1]
            raise AssertionError(f"the program ended ({self.process.returncode}): {said}")
        return json.loads(line)

    def go(self, word: str = "go") -> None:
        """Lets it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self, timeout: float = 60) -> None:
        """It ends by itself, with status 0 and without a word."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None  # for communicate()
        _, said = self.process.communicate(timeout=timeout)
        assert (self.process.returncode, said) == (0, "")
