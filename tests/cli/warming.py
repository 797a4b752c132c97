"""Runs `monarch warm`, and finds out how many files have copies."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.session import Session

NO_DAEMON = "monarch: no daemon serves this configuration; start one with `monarch start`\n"
Done = subprocess.CompletedProcess[str]


def warm(
    session: Session,
    *words: str | Path,
    cwd: Path | None = None,
    given: bytes = b"",
    **environment: str,
) -> Done:
    if not given:
        before = os.getcwd()
        os.chdir(cwd or before)
        try:
            return session.monarch("warm", *map(str, words), environment=environment)
        finally:
            os.chdir(before)
    done = subprocess.run(
        session.command("warm", *map(str, words)),
        env=session.env(preload=False, **environment),
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def present(session: Session) -> int:
    return int(session.status()["sources"][0]["present"])
