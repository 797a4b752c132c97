"""A program of tests/support/programs that takes operations one by one and answers each."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.files import PROGRAMS
from support.session import Session


class Commands:
    """Runs programs/<name>.py; ends with the context, whatever happens in it."""

    def __init__(self, session: Session, name: str, *words: object, preload: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAMS / name), *map(str, words)],
            env=session.env(preload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def __call__(self, *words: object) -> Any:
        """One operation; returns its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            said = self.process.communicate()[1]
            raise AssertionError(f"the program ended ({self.process.returncode}): {said}")
        return json.loads(line)
