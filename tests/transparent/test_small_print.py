"""More than three hundred calls have the same results (return value, errno, offset and flags) with
and without the library. The calls use a file that has a copy, and most of the calls fail. If a
directory changes while it is open, its listing is also the same with and without the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.files import same_without
from support.mounts import Mounts
from support.session import MIB, Session


@pytest.mark.parametrize("kind", ["ext4", "directory"])
def test_calls_that_fail_fail_alike(
    session_factory: Callable[..., Session], tmp_path: Path, kind: str
) -> None:
    with Mounts(tmp_path) as mounts:
        source = mounts.ext4("source", 32 * MIB) if kind == "ext4" else tmp_path / "source"
        (source / "d").mkdir(parents=True)
        for name in ("f", "g", "d/x"):
            (source / name).write_bytes(bytes(range(256)) * 400)
        (source / "empty").touch()
        program = build_program(tmp_path / "small_print", Path(__file__).with_name("small_print.c"))
        session = session_factory(source).start()
        session.wait_all_present()
        before = session.totals()["hits"]
        done = same_without(session, [str(program), str(source)])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") > 300
        assert session.totals()["hits"] > before + 10
        session.stop()
