"""Tiers fail one by one, each in a different way, while programs read and files are filled.

The bytes stay correct, no call fails, and the daemon gives up the tiers that are gone. The daemon
and the programs run as root, but without the capabilities that let root read files regardless of
their permissions. Single faults and their consequences are tested in failures/test_tier_*.py.
"""

from __future__ import annotations

import errno
import random
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.draws import sized
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from trials.reading import Reading, make_known

from monarch_py.storage.tiers import tier_root

WITHOUT_RIGHTS = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--")
FILE = 300_000
# The number of files for which a tier has room. All tiers together do not have room for all files.
FILES_A_TIER = sized(2, 3)
LAPS = sized(1, 2)  # after each fault


# --- faults -------------------------------------------------------------------------------------


def fill_up(mounts: Mounts, point: Path) -> None:
    """Fills the file system to the last byte, as another program that uses it could do."""
    with (point / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError) as full:
        while ballast.write(bytes(4096)):
            pass
    assert full.value.errno == errno.ENOSPC


def detach(mounts: Mounts, point: Path) -> None:
    """Unmounts the file system lazily (umount -l): a process can still use the files that it has
    open on this file system."""
    mounts.detach(point)


def remove(path: Path) -> None:
    """Removes `path` with rm -rf. The command does not fail if the daemon removes files at the same
    time."""
    subprocess.run(["rm", "-rf", path], check=True)


def empty(mounts: Mounts, point: Path) -> None:
    remove(tier_root(point))


def remove_directory_of_copies(mounts: Mounts, point: Path) -> None:
    remove(tier_root(point) / "c")


def remove_copies(mounts: Mounts, point: Path) -> None:
    for copy in tuple((tier_root(point) / "c").iterdir()):
        copy.unlink(missing_ok=True)


def close_directory(mounts: Mounts, point: Path) -> None:
    tier_root(point).chmod(0)


def close_copies(mounts: Mounts, point: Path) -> None:
    for copy in tuple((tier_root(point) / "c").iterdir()):
        with suppress(FileNotFoundError):
            copy.chmod(0)


def cover(mounts: Mounts, point: Path) -> None:
    mounts.cover(point)


def rename(mounts: Mounts, point: Path) -> None:
    tier_root(point).rename(point / "elsewhere")


# Fault -> whether the daemon must give up the tier.
FAULTS: dict[Callable[[Mounts, Path], None], bool] = {
    fill_up: False,
    detach: True,
    empty: True,
    remove_directory_of_copies: False,
    remove_copies: False,
    close_directory: False,
    close_copies: False,
    cover: True,
    rename: True,
}


def usable(session: Session) -> list[bool]:
    """Returns for each tier whether the daemon uses it."""
    return [bool(tier["usable"]) for tier in session.status()["tiers"]]


@pytest.mark.parametrize("persistent", [False, True], ids=["lost", "kept"])
def test_readers_notice_nothing(
    session_factory: Callable[..., Session],
    reader: Path,
    tmp_path: Path,
    mounts: Mounts,
    persistent: bool,
) -> None:
    draws = random.Random(persistent)
    faults = list(FAULTS)
    draws.shuffle(faults)
    root = tmp_path / "source"
    root.mkdir()
    sizes = {seed: FILE + seed for seed in range(1, FILES_A_TIER * len(faults) + 4)}
    make_known(root, sizes)
    points = [mounts.tmpfs(fault.__name__, 4 * MIB) for fault in faults]
    quota = FILES_A_TIER * (FILE + 5000)
    tiers = [
        {"mount_point": p, "max_storage_quota": quota, "persistent": persistent} for p in points
    ]
    if subprocess.run([*WITHOUT_RIGHTS, "true"], check=False, capture_output=True).returncode:
        pytest.skip("setpriv may not take capabilities away here: run the tests as root")
    session = session_factory(root, tiers=tiers).start(prefix=WITHOUT_RIGHTS)
    session.wait_all_present()
    words = (reader, session, root, sizes, tmp_path / "state")
    with Reading(*words, seed=int(persistent), pause_us=500, prefix=WITHOUT_RIGHTS) as reading:
        for number, (fault, point) in enumerate(zip(faults, points, strict=True)):
            print(f"{number}: {fault.__name__}")
            hits = session.totals()["hits"]
            fault(mounts, point)
            reading.wait_laps(LAPS)
            assert session.totals()["hits"] > hits
            if draws.random() < 0.4:
                session.forget()  # later fills then use the tiers that still work
        reading.wait_laps(LAPS)
        gone = [number for number, fault in enumerate(faults) if FAULTS[fault]]
        wait_until(
            lambda: not any(usable(session)[n] for n in gone), what="tiers that are given up"
        )
        reading.end()
    # The first `verify` drops damaged copies, so the second one finds none.
    assert session.monarch("verify").returncode == 4
    again = session.monarch("verify")
    assert (again.returncode, " 0 damaged\n" in again.stdout) == (4, True), again.stdout
    assert all(f"monarch: tier {points[number]} goes unused: " in again.stderr for number in gone)
    session.stop()
