"""POSIX locks, while another thread closes a descriptor of the file that the program never had."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.files import Files
from support.session import Session


@pytest.fixture(scope="module")
def lock_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [Path(__file__).with_name(name) for name in ("lock_race.c", "hold.c")]
    return build_program(tmp_path_factory.mktemp("race") / "race", *sources, flags=["-pthread"])


@pytest.mark.parametrize("change", ["lock", "unlock", "convert", "wait"])
def test_locks_are_what_they_were_made_while_a_lock_is_put_on_a_copy(
    session_factory: Callable[..., Session], tmp_path: Path, lock_race: Path, change: str
) -> None:
    """See lock_race.c. To close a descriptor drops all locks of the process on its file."""
    files = Files(tmp_path / "source")
    files.add("a", 1000)
    session = session_factory(files.root).start()
    session.wait_all_present()
    found = []
    for preload in (True, False):
        done = subprocess.run(
            [lock_race, change, files.path("a")],
            env=session.env(preload),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode == 77:
            pytest.skip(f"no seccomp filter can ask here: {done.stderr}")
        assert (done.returncode, done.stderr) == (0, "")
        is_held, *locks = done.stdout.splitlines()
        assert bool(int(is_held)) == preload, "nothing is closed there"
        found.append(locks)
    assert found[0] == found[1]
    assert found[1] == ["0 free", "100 free" if change == "unlock" else "100 locked"]
