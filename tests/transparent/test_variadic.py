"""Arguments that a caller does not pass have no effect on open, fcntl, ioctl and mremap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.files import same_without
from support.mounts import Mounts
from support.session import MIB, Session


@pytest.mark.parametrize("is_copy", [True, False])
def test_what_callers_left_in_registers_changes_nothing(
    session_factory: Callable[..., Session], tmp_path: Path, is_copy: bool
) -> None:
    """If a caller does not pass an argument, the value in the argument's register has no effect
    (see variadic.c). This is tested with a file that has a copy, and with a file that has none."""
    program = build_program(tmp_path / "variadic", Path(__file__).with_name("variadic.c"))
    with Mounts(tmp_path) as mounts:
        source = mounts.ext4("source", 32 * MIB)
        for name in "fg":
            (source / name).write_bytes(bytes(range(256)) * 400)
        served = {"path": str(source), "exclude": [] if is_copy else ["f"]}
        session = session_factory([served]).start()
        session.wait_all_present()
        before = session.totals()["hits"]
        done = same_without(session, [str(program), str(source)])
        assert (done.returncode, done.stderr) == (0, "")
        assert "F_DUPFD_CLOEXEC 0x1: 301" in done.stdout
        assert (session.totals()["hits"] > before) == is_copy
        session.stop()
