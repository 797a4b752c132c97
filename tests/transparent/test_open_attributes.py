"""What `fstat` reports for an open copy after its source file has changed
(docs/transparency.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.session import Session

# Opens the file, has a program under the library change it, and prints what fstat says before and
# after.
PROGRAM = """
import json, os, subprocess, sys
def look():
    st = os.fstat(fd)
    names = "st_size", "st_mode", "st_mtime_ns", "st_ctime_ns"
    return {name: getattr(st, name) for name in names}
fd = os.open(sys.argv[1], os.O_RDONLY)
before = look()
subprocess.run(["sh", "-c", sys.argv[2]], check=True)
print(json.dumps([before, look()]))
"""


@pytest.fixture
def look(tmp_path: Path, session_factory: Callable[..., Session]) -> Callable[[str], Any]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"first version\n")
    session = session_factory(source).start()
    session.wait_all_present()

    def run(change: str) -> Any:
        hits = session.totals()["hits"]
        said = session.python(PROGRAM, source / "file", change.format(source / "file"))
        assert session.totals()["hits"] > hits
        return json.loads(said)

    return run


def test_times_are_those_of_the_version_that_was_opened(look: Callable[[str], Any]) -> None:
    before, after = look("printf 'other version\\n' > {}")
    assert after == before


def test_a_change_of_the_mode_is_seen_with_its_time(look: Callable[[str], Any]) -> None:
    before, after = look("chmod 640 {}")
    assert after["st_mode"] & 0o777 == 0o640
    assert after["st_ctime_ns"] > before["st_ctime_ns"]
    assert after["st_mtime_ns"] == before["st_mtime_ns"]
