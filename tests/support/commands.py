"""Runs a program that reads operations as JSON lines, and returns its answer to each operation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.files import PROGRAMS
from support.session import Session


class Commands:
    """A running Python program. Leaving the context ends the program, even after an error.

    program : its path, or its name in tests/support/programs
    """

    def __init__(
        self, session: Session, program: str | Path, *words: object, preload: bool = True
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAMS / program), *map(str, words)],
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
        """Sends one operation and returns its answer."""
        return self.each([words])[0]

    def each(self, operations: Sequence[Sequence[object]]) -> list[Any]:
        """Sends the operations at once and returns their answers. The operations must fit into a
        pipe's buffer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("".join(json.dumps(words) + "\n" for words in operations))
        self.process.stdin.flush()
        return [json.loads(self._line()) for _ in operations]

    def _line(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        said = self.process.communicate()[1]
        raise AssertionError(f"the program ended ({self.process.returncode}): {said}")
