"""A tier never takes more than its quota, not even for a moment. The copies, their directory and
the manifest all count towards the quota."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.draws import cases, sized
from support.files import Files, check_all, du_bytes
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from support.watch import QuotaWatch, settle

from monarch_py.storage.tiers import tier_root


def tier(tmp_path: Path, quota_bytes: int, **more: object) -> dict[str, object]:
    mount = tmp_path / "tier"
    mount.mkdir()
    return {"mount_point": mount, "max_storage_quota": quota_bytes, **more}


# Without --long, only a persistent tier is tested. It counts everything that other tiers count, and
# has a manifest as well.
@pytest.mark.parametrize("persistent", cases([False, True], [True]), ids=["lost", "kept"])
def test_many_fills_at_a_time_stay_below_it(
    session_factory: Callable[..., Session], tmp_path: Path, persistent: bool
) -> None:
    sizes = random.Random(1)
    files = Files(tmp_path / "source")
    for i in range(900):
        files.add(f"d{i % 9}/f{i}", sizes.choice((1, 4095, 4096, 4097, 20_000, 70_000)))
    quota = 8 * MIB
    level = tier(tmp_path, quota, persistent=persistent)
    session = session_factory(files.root, tiers=[level], shared_tpool_size=16).start()
    with QuotaWatch(session.tiers[0]) as watch:
        found = settle(session)
        session.wait_idle()
        if persistent:
            wait_until(lambda: not session.status()["pending"], what="the manifest's last rows")
        looks = watch.looks
        wait_until(lambda: watch.looks > looks + 1, what="two checks of the tier")
        session.stop()
    assert watch.looks > 5
    assert quota * 0.9 < watch.most_bytes <= quota
    assert found["present"] + found["no_room"] == 900
    session.start().wait_scanned()
    check_all(session, files)


def test_tiny_and_empty_files_count_what_the_manifest_takes_for_them(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """The rows of the manifest and the directory of copies count towards the quota. With tiny and
    empty files, they take more room than the content of the files."""
    files = Files(tmp_path / "source").add_many(sized(1000, 3000), 0, prefix="empty")
    files.add_many(sized(500, 1500), 1, prefix="tiny").wait_until_old()
    quota = sized(2 * MIB // 3, 2 * MIB)
    session = session_factory(files.root, tiers=[tier(tmp_path, quota, persistent=True)]).start()
    with QuotaWatch(session.tiers[0]) as watch:
        found = settle(session)
        session.stop()
    assert watch.most_bytes <= quota
    assert found["present"] > 100
    assert "no_room" in found
    session.start().wait_scanned()
    check_all(session, files)


def test_sizes_are_rounded_up_to_the_blocks_of_the_tier(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(400, 4097)
    quota = MIB
    session = session_factory(files.root, tiers=[tier(tmp_path, quota)]).start()
    with QuotaWatch(session.tiers[0]) as watch:
        found = settle(session)
    assert watch.most_bytes <= quota
    # If only the sizes of the files counted, 255 files would fit.
    assert 100 < found["present"] <= 128
    status = session.status()
    said, present = status["tiers"][0], status["sources"][0]["present"]
    assert said["files"] == present >= found["present"]
    assert said["used_bytes"] == 8192 * present
    assert said["used_bytes"] <= du_bytes(tier_root(session.tiers[0]) / "c")
    check_all(session, files)


def test_a_file_of_a_byte_may_take_a_large_page(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    """A tier on a tmpfs with huge pages stays within its quota, although statfs(2) reports blocks
    of 4 KiB even for this file system."""
    mount = mounts.tmpfs("large_pages", 256 * MIB, huge="always")
    (mount / "byte").write_bytes(b"1")
    if (mount / "byte").stat().st_blocks * 512 < 2 * MIB:
        pytest.skip("tmpfs has no large pages here: transparent_hugepage/shmem_enabled denies them")
    (mount / "byte").unlink()
    files = Files(tmp_path / "source").add_many(100, 1000)
    quota = 64 * MIB
    level = {"mount_point": mount, "max_storage_quota": quota}
    session = session_factory(files.root, tiers=[level], shared_tpool_size=16).start()
    with QuotaWatch(session.tiers[0]) as watch:
        found = settle(session)
    assert watch.most_bytes <= quota
    assert 20 <= found["present"] <= 32
    check_all(session, files)


def test_empty_files_have_copies_too(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(50, 0)
    session = session_factory(files.root, tiers=[tier(tmp_path, MIB)]).start()
    assert settle(session) == {"present": 50}
    check_all(session, files)
    totals = session.totals()
    assert (totals["hits"], session.status()["tiers"][0]["used_bytes"]) == (50, 0)


def test_room_of_changed_files_is_given_back(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(20, 100_000)
    session = session_factory(files.root, tiers=[tier(tmp_path, MIB)]).start()
    first = settle(session)
    assert first["no_room"] > 0
    copies = tier_root(session.tiers[0]) / "c"
    script = "import sys; [open(p, 'ab').write(b'') for p in sys.argv[1:]]"
    session.python(script, *(files.path(name) for name in list(files.digests)[:20]))
    wait_until(lambda: not list(copies.iterdir()), what="the end of changed files' copies")
    wait_until(
        lambda: session.status()["tiers"][0]["used_bytes"] == 0, what="the removals to be counted"
    )
    check_all(session, files)
