"""The file system of a tier (tmpfs, ext4 or xfs) runs out of bytes or inodes before the tier's
quota is used."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import run_monarch
from support.draws import cases, sized
from support.files import Files, check_all, random_bytes
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from support.watch import QuotaWatch, assert_quiet, cpu_seconds, settle

from monarch_py.storage.tiers import tier_root


def capacity(mount_point: Path) -> int:
    found = os.statvfs(mount_point)
    return found.f_blocks * found.f_frsize


def level(mount_point: Path, quota_bytes: int = 0) -> dict[str, object]:
    """Returns the settings of a tier. The default quota is the size of the whole file system,
    although other files take some of it."""
    return {
        "mount_point": mount_point,
        "max_storage_quota": quota_bytes or capacity(mount_point),
        "type": "ssd",
    }


def fill_up(mount_point: Path, leave_bytes: int = 0) -> None:
    """Makes a file that takes all free room but `leave_bytes`."""
    with (mount_point / "ballast").open("wb", buffering=0) as ballast:
        size, part = 0, 1 << 30
        while part >= 4096:
            try:
                if free_bytes(mount_point) - part < leave_bytes:
                    raise OSError(errno.ENOSPC, "enough")
                os.posix_fallocate(ballast.fileno(), size, part)
                size += part
            except OSError as error:
                assert error.errno == errno.ENOSPC
                part //= 2


def free_bytes(mount_point: Path) -> int:
    found = os.statvfs(mount_point)
    return found.f_bavail * found.f_frsize


def copies_on(mount_point: Path) -> int:
    return len(list((tier_root(mount_point) / "c").iterdir()))


@pytest.fixture(params=cases(["tmpfs", "ext4", "xfs"], ["ext4", "xfs"]))
def small(request: pytest.FixtureRequest, mounts: Mounts) -> Path:
    """Returns the mount point of a file system with about 40 MiB of free room, which is less than
    the quota of a tier on it."""
    sizes = {"tmpfs": 64 * MIB, "ext4": 64 * MIB, "xfs": 300 * MIB}
    point: Path = getattr(mounts, request.param)("small", sizes[request.param])
    fill_up(point, leave_bytes=40 * MIB)
    return point


def test_what_does_not_fit_goes_to_the_next_tier_and_then_to_the_source(
    session_factory: Callable[..., Session], tmp_path: Path, small: Path, mounts: Mounts
) -> None:
    files = Files(tmp_path / "source").add_many(80, MIB - 100)
    second = mounts.tmpfs("second", 24 * MIB)
    session = session_factory(files.root, tiers=[level(small), level(second, 20 * MIB)]).start()
    with QuotaWatch(small) as first_watch, QuotaWatch(second) as second_watch:
        found = settle(session)
    assert first_watch.most_bytes <= capacity(small)
    assert 18 * MIB < second_watch.most_bytes <= 20 * MIB
    assert found["present"] + found["no_room"] == 80
    assert copies_on(small) >= 36
    assert copies_on(second) in (18, 19)
    check_all(session, files)
    assert_quiet(session)


def test_the_first_tier_is_filled_first(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    files = Files(tmp_path / "source").add_many(12, MIB)
    first, second = mounts.tmpfs("first", 64 * MIB), mounts.tmpfs("second", 64 * MIB)
    tiers = [level(first, 8 * MIB), level(second, 64 * MIB)]
    session = session_factory(files.root, tiers=tiers).start()
    session.wait_scanned()
    session.python("import sys; [open(p).close() for p in sys.argv[1:]]", files.path("f00003"))
    wait_until(lambda: session.status()["sources"][0]["present"] == 1, what="the first copy")
    assert (copies_on(first), copies_on(second)) == (1, 0)
    assert settle(session) == {"present": 12}
    assert (copies_on(first), copies_on(second)) == (7, 5)
    check_all(session, files)


def test_somebody_takes_the_room_while_files_are_filled(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    """If another file takes the room that fills under way still need, these fills fail. The files
    are then copied to the next tier, or programs read them from the source."""
    count = sized(300, 600)
    files = Files(tmp_path / "source").add_many(count, 60_000)
    first, second = mounts.ext4("first", 64 * MIB), mounts.tmpfs("second", 16 * MIB)
    # The limit on operations slows the fills down, so that most files have no copy yet when the
    # disk becomes full.
    session = session_factory(
        files.root,
        tiers=[level(first), level(second, 8 * MIB)],
        source_limits={"operations": 800},
    ).start()
    session.wait_scanned()
    session.want_all()
    wait_until(lambda: copies_on(first) > 60, what="the first copies")
    fill_up(first)
    found = settle(session)
    assert found["present"] + found.get("no_room", 0) == count
    assert 20 < copies_on(first) < count
    check_all(session, files)
    assert_quiet(session)
    # The file that took the room is removed. When the copies are dropped and made again, they use
    # this room as well.
    (first / "ballast").unlink()
    session.forget()
    assert settle(session) == {"present": count}
    check_all(session, files)


def test_a_full_disk_is_not_tried_for_ever_for_empty_files(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    """The daemon does not try forever to copy empty files to a full disk. An empty file needs no
    room for content, but it needs room for its name."""
    count = sized(1000, 3000)
    files = Files(tmp_path / "source").add_many(count, 0)
    point = mounts.ext4("first", 16 * MIB)
    session = session_factory(files.root, tiers=[level(point)]).start()
    session.wait_scanned()
    fill_up(point)
    found = settle(session)
    assert found["present"] + found["no_room"] == count
    assert cpu_seconds(session) < 5
    check_all(session, files)
    assert_quiet(session)


def test_inodes_run_out_before_the_bytes_do(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    files = Files(tmp_path / "source").add_many(200, 1000)
    first = mounts.tmpfs("first", 16 * MIB, inodes=50)
    second = mounts.tmpfs("second", 16 * MIB, inodes=120)
    session = session_factory(files.root, tiers=[level(first), level(second)]).start()
    found = settle(session)
    assert found == {"present": found["present"], "no_room": 200 - found["present"]}
    assert copies_on(first) >= 30
    assert copies_on(second) >= 100
    check_all(session, files)
    assert_quiet(session)


def test_a_large_file_does_not_block_small_ones(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    files = Files(tmp_path / "source").add_many(10, 200_000, prefix="small")
    files.add("large", 20 * MIB)
    point = mounts.tmpfs("first", 64 * MIB)
    session = session_factory(files.root, tiers=[level(point, 8 * MIB)], shared_tpool_size=1)
    session.start().wait_scanned()
    session.python("import sys; open(sys.argv[1]).close()", files.path("large"))
    wait_until(
        lambda: session.status()["sources"][0]["bypass"] == {"no_room": 1},
        what="a file without room",
    )
    assert settle(session) == {"present": 10, "no_room": 1}
    check_all(session, files)


def test_a_tier_smaller_than_any_file_is_no_harm(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    files = Files(tmp_path / "source").add_many(10, 300_000)
    files.add("empty", 0)
    first, second = mounts.tmpfs("first", 4 * MIB), mounts.tmpfs("second", 16 * MIB)
    tiers = [level(first, 4096), level(second)]
    session = session_factory(files.root, tiers=tiers).start()
    found = settle(session)
    assert found == {"present": 11}
    check_all(session, files)
    assert random_bytes(4, 1) != random_bytes(4, 2)  # the files differ from one another


def test_who_takes_the_room_of_a_tier_is_told(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    count = 30
    files = Files(tmp_path / "source").add_many(count, 100_000)
    point = mounts.tmpfs("ram", 16 * MIB)
    fill_up(point, leave_bytes=3 * MIB)
    tiers = [level(point, 12 * MIB)]
    session = session_factory(files.root, tiers=tiers, prefetch="none")
    told = f"tier {point}: copies get at most 2 MiB of the quota of 12 MiB, because its file system"
    others = "other files take 13 MiB; remove files there, or add a tier on another file system"
    words = ["config", "check", "-c", str(session.config)]
    done = run_monarch(words, session.env(preload=False))
    assert done.returncode == 0
    assert told in done.stderr
    assert others in done.stderr
    try:
        done = session.monarch("start")
        assert done.returncode == 0
        assert told in done.stderr
        assert others in done.stderr
        assert others in session.monarch("status").stdout
        done = session.monarch("warm")
        assert 0 < session.status()["tiers"][0]["files"] < count
        assert (done.returncode, done.stderr) == (0, "")  # a full tier is no failure
        assert "because other files take 13 MiB: remove files there, or add" in done.stdout
        # The room that copies take does not count as taken by other files.
        found = session.monarch("doctor", "--json")
        (tier,) = [f for f in json.loads(found.stdout) if f["what"] == "tier (ssd)"]
        assert told in tier["hint"]
        assert others in tier["hint"]
        (point / "ballast").unlink()
        assert "remove files" not in session.monarch("status").stdout
        assert session.monarch("warm").returncode == 0
        assert session.status()["tiers"][0]["files"] == count
    finally:
        session.monarch("stop")
