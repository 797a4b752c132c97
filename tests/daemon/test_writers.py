"""Which files a daemon takes for changed at its start, because a process may write to them."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_py.daemon.openfiles import writers


def test_files_that_are_open_for_writing_and_have_a_name(tmp_path: Path) -> None:
    with (
        (tmp_path / "written").open("wb") as written,
        (tmp_path / "removed").open("wb") as removed,
        (tmp_path / "read").open("wb"),
    ):
        (tmp_path / "removed").unlink()
        status = os.fstat(written.fileno())
        found = set(writers({status.st_dev}))
        assert (status.st_dev, status.st_ino) in found
        assert (status.st_dev, os.fstat(removed.fileno()).st_ino) not in found
    with (tmp_path / "read").open("rb") as read:
        status = os.fstat(read.fileno())
        assert (status.st_dev, status.st_ino) not in set(writers({status.st_dev}))
