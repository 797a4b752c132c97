"""The manual pages and the shell completions match the commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.draws import cases
from support.manuals import COMPLETIONS, PACKAGING, files

SHARE = PACKAGING / "share"


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    return sorted((SHARE / "man" / "man1").iterdir())


def test_they_are_of_these_commands() -> None:
    stored = {
        str(path.relative_to(SHARE)): path.read_text()
        for path in SHARE.rglob("*")
        if path.is_file() and path.parent.name != "bin"
    }
    assert stored == files(), "run `PYTHONPATH=tests python -m support.manuals`"


def test_man_has_nothing_to_complain_of(pages: list[Path]) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("the program groff is not installed (Debian: apt-get install groff-base)")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-Kutf8", *map(str, pages)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "monarch-warm - Copy files ahead of a job." in done.stdout.replace("\N{HYPHEN}", "-")


# typed words -> the completions that are offered
OFFERED = {
    "monarch wa": {"warm"},
    "monarch st": {"start", "status", "stop"},
    "monarch warm --dry": {"--dry-run"},
    "monarch plan m": {"make"},
}


@pytest.mark.parametrize("typed", cases(OFFERED, [*OFFERED][1:]))
def test_bash_completes(typed: str, tmp_path: Path) -> None:
    command = tmp_path / "monarch"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m monarch_py "$@"\n')
    command.chmod(0o755)
    words = typed.split()
    script = (
        f". {SHARE / COMPLETIONS['bash']}\n"
        f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\n"
        "_monarch_completion monarch\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == OFFERED[typed]
