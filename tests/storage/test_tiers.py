"""A tier's directory, its lock and its accounting of room."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mounts import Mounts
from support.session import wait_until

from monarch_py.config.schema import TierConfig
from monarch_py.errors import TierError
from monarch_py.native import lib
from monarch_py.storage import memory
from monarch_py.storage.shortage import MARGIN_BYTES
from monarch_py.storage.tiers import Tier, copy_name, copy_number, tier_root

MIB = 1 << 20
QUOTA = 64 * MIB
Opener = Callable[..., Tier]


def sizes(*values: int) -> npt.NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    path = tmp_path / "mount"
    path.mkdir()
    return path


@pytest.fixture
def open_tier(mount: Path) -> Iterator[Opener]:
    with ExitStack() as stack:

        def make(quota_bytes: int = QUOTA, kind: str = "ssd", persistent: bool = False) -> Tier:
            tier = Tier(TierConfig(mount, quota_bytes, kind, persistent))
            stack.callback(_close, tier)
            return tier

        yield make


def _close(tier: Tier) -> None:
    try:
        tier.close()
    except OSError:  # the test has closed it
        return


# --- names --------------------------------------------------------------------------------------


@given(st.integers(0, (1 << 52) - 1))
def test_a_number_comes_back_from_its_name(number: int) -> None:
    name = copy_name(number)
    assert len(name) == lib.MONARCH_COPY_NAME
    assert copy_number(name) == number


@pytest.mark.parametrize("name", ["", "1", "lost+found", "g" * 13, "0" * 14, "manifest.sqlit"])
def test_other_names_are_no_copies(name: str) -> None:
    assert copy_number(name) is None


def test_numbers_rise_from_one_daemon_to_the_next() -> None:
    first = Tier.first_number()
    assert first < 1 << 52
    assert copy_number(copy_name(first)) == first
    assert Tier.first_number() >= first


# --- directory and lock -------------------------------------------------------------------------


def test_what_it_makes_is_for_its_owner_alone(mount: Path, open_tier: Opener) -> None:
    tier = open_tier()
    assert tier.root == tier_root(mount) == mount / f"monarch-{os.geteuid()}"
    for directory in (tier.root, tier.copies):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((tier.root / "lock").stat().st_mode) == 0o600
    assert (tier.root / "lock").read_text() == f"process {os.getpid()}\n"


def test_one_daemon_holds_it(mount: Path, open_tier: Opener) -> None:
    tier = open_tier()
    with pytest.raises(
        TierError, match=f"{mount} is held by process {os.getpid()}; stop it first$"
    ):
        open_tier()
    tier.close()
    open_tier()


def test_on_ext4_each_session_has_a_block_group_of_its_own(mounts: Mounts) -> None:
    """On ext4, the directories of successive sessions must lie in different block groups, because
    files are created slowly in a group from which other files were just removed
    (storage/apart.py)."""
    inodes_a_group = 256
    # A block group has 8 MiB.
    mount = mounts.ext4("disk", 256 * MIB, inodes=32 * inodes_a_group, is_flexible=False)
    groups = set()
    for _ in range(20):
        tier = Tier(TierConfig(mount, QUOTA, "ssd", persistent=False))
        groups.add((os.fstat(tier.fd).st_ino - 1) // inodes_a_group)
        tier.discard()
    assert len(groups) > 3, groups
    assert [path.name for path in mount.iterdir()] == ["lost+found"]


def test_what_a_killed_daemon_was_creating_is_removed(mount: Path, open_tier: Opener) -> None:
    (tier_root(mount) / "c.0123456789abcdef").mkdir(mode=0o700, parents=True)
    tier_root(mount).chmod(0o700)
    tier = open_tier()
    assert sorted(path.name for path in tier.root.iterdir()) == ["c", "lock"]


def test_a_directory_that_cannot_be_created_apart_is_created_all_the_same(
    open_tier: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(Path, "rename", fail)
    tier = open_tier()
    assert sorted(path.name for path in tier.root.iterdir()) == ["c", "lock"]


def test_a_directory_open_to_others_is_refused(mount: Path, open_tier: Opener) -> None:
    tier_root(mount).mkdir(mode=0o755)
    with pytest.raises(TierError, match="not a directory of this user alone"):
        open_tier()


def test_a_link_in_its_place_is_refused(mount: Path, tmp_path: Path, open_tier: Opener) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    tier_root(mount).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TierError, match="not a directory of this user alone"):
        open_tier()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_as_its_lock_is_not_followed(mount: Path, tmp_path: Path, open_tier: Opener) -> None:
    tier_root(mount).mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("content")
    (tier_root(mount) / "lock").symlink_to(victim)
    with pytest.raises(TierError, match="symbolic links"):
        open_tier()
    assert victim.read_text() == "content"


def test_names_are_sorted_and_leave_out_what_is_not_ours(open_tier: Opener) -> None:
    tier = open_tier()
    for name in (copy_name(30), copy_name(4), "README", "0" * 12):
        (tier.copies / name).touch()
    assert tier.listing()["number"].tolist() == [4, 30]
    tier.remove(4)
    tier.remove(4)  # it is no error to remove a copy that does not exist
    assert tier.listing()["number"].tolist() == [30]


def test_discarding_leaves_nothing_of_ours(mount: Path, open_tier: Opener) -> None:
    tier = open_tier()
    (tier.copies / copy_name(1)).touch()
    (tier.root / "manifest.sqlite").touch()
    (tier.root / "manifest.sqlite-journal").touch()
    tier.discard()
    assert list(mount.iterdir()) == []


def test_discarding_leaves_what_is_not_ours(mount: Path, open_tier: Opener) -> None:
    tier = open_tier()
    (tier.root / "notes").write_text("mine")
    tier.discard()
    assert [path.name for path in tier_root(mount).iterdir()] == ["notes"]


# --- room ---------------------------------------------------------------------------------------


def test_the_room_is_the_quota_less_a_little(open_tier: Opener) -> None:
    room = open_tier().room()
    assert QUOTA - MIB < room.free_bytes < QUOTA
    assert room.free_inodes > 0
    assert room.block_bytes >= 512


def test_room_is_taken_when_it_is_reserved_and_again_when_it_is_given_back(
    open_tier: Opener,
) -> None:
    tier = open_tier()
    before = tier.room().free_bytes
    tier.reserve(sizes(MIB + 1))
    reserved = tier.rounded(MIB + 1)
    assert reserved == MIB + tier.block_bytes
    assert tier.room().free_bytes == before - reserved
    tier.give_back(MIB + 1)
    assert tier.room().free_bytes == before
    assert (tier.used_bytes, tier.used_inodes, tier.reserved_bytes, tier.files) == (0, 0, 0, 0)


def test_a_fill_that_took_more_than_its_size_counts_as_what_it_took(open_tier: Opener) -> None:
    tier = open_tier()
    tier.reserve(sizes(1000))
    tier.settle(sizes(7), sizes(1000), sizes(3 * MIB))
    assert (tier.used_bytes, tier.used_inodes, tier.files) == (3 * MIB, 1, 1)
    tier.release(7, 1000)
    assert (tier.used_bytes, tier.used_inodes, tier.files) == (0, 0, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 10 * MIB), st.integers(0, 4 * MIB), st.booleans()), max_size=20
    )
)
def test_the_books_balance(fills: list[tuple[int, int, bool]]) -> None:
    """After any sequence of fills, the counts of bytes and files are right, and they are 0 once all
    copies are released.

    fills : for each fill: the file's size [bytes], the number of bytes that the copy took beyond
        this size, and whether the fill succeeded
    """
    tier = Tier.__new__(Tier)
    tier.block_bytes = 4096
    tier.used_bytes = tier.used_inodes = tier.reserved_bytes = tier.files = 0
    tier._excess = {}
    tier._memory = memory.MemoryRoom()
    tier.reserve(sizes(*(size for size, _, _ in fills)))
    done = [(size, tier.rounded(size) + more) for size, more, good in fills if good]
    numbers = range(1, len(done) + 1)
    tier.settle(sizes(*numbers), sizes(*(s for s, _ in done)), sizes(*(took for _, took in done)))
    for size, _, good in fills:
        if not good:
            tier.give_back(size)
    assert tier.used_bytes == sum(took for _, took in done)
    assert (tier.used_inodes, tier.files, tier.reserved_bytes) == (len(done), len(done), 0)
    for number, (size, _) in zip(numbers, done, strict=True):
        tier.release(number, size)
    assert (tier.used_bytes, tier.used_inodes, tier.files) == (0, 0, 0)


def test_a_quota_that_is_used_up_leaves_no_room(open_tier: Opener) -> None:
    tier = open_tier()
    tier.adopt(sizes(QUOTA))
    assert tier.room().free_bytes == 0
    tier.release(1, QUOTA)
    assert tier.room().free_bytes > 0


def test_the_file_system_is_not_filled_to_the_brim(mount: Path, open_tier: Opener) -> None:
    system = os.statvfs(mount)
    tier = open_tier(quota_bytes=system.f_blocks * system.f_frsize)
    free = system.f_bavail * system.f_frsize
    # Other processes may use the disk during this test, so the bounds have a margin of 64 MiB.
    assert tier.room().free_bytes <= free - MARGIN_BYTES + 64 * MIB
    tier.reserve(sizes(free))
    assert tier.room().free_bytes <= 64 * MIB


def test_a_disk_that_was_full_early_caps_the_tier_at_what_lies_there(open_tier: Opener) -> None:
    tier = open_tier()
    tier.adopt(sizes(4 * MIB))
    tier.reserve(sizes(MIB))
    tier.note_full()
    assert tier.room().free_bytes == 0
    tier.give_back(MIB)
    assert tier.room().free_bytes == 0
    tier.release(1, 4 * MIB)
    assert tier.room().free_bytes == 4 * MIB


def test_a_ram_tier_never_takes_more_than_the_memory_group_leaves(
    open_tier: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 5 * MIB)
    tier = open_tier(kind="ram")
    assert tier.room().free_bytes == 5 * MIB
    tier.reserve(sizes(2 * MIB))
    assert tier.room().free_bytes == 3 * MIB
    monkeypatch.setattr(memory, "available_bytes", lambda: MIB)
    wait_until(lambda: tier.room().free_bytes == 0, what="the next look")


def test_what_was_filled_since_the_last_look_at_the_memory_counts(
    open_tier: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look() -> int:
        looks.append(True)
        return 200 * MIB

    monkeypatch.setattr(memory, "available_bytes", look)
    monkeypatch.setattr(memory, "LOOK_S", 60)
    tier = open_tier(kind="ram", quota_bytes=1 << 40)
    tier.reserve(sizes(MIB, MIB))
    assert tier.room().free_bytes == 198 * MIB
    tier.settle(sizes(1, 2), sizes(MIB, MIB), sizes(MIB, MIB))
    assert tier.room().free_bytes == 198 * MIB
    assert len(looks) == 1
    tier.release(1, MIB)
    assert tier.room().free_bytes == 199 * MIB
    assert len(looks) == 1
    tier.reserve(sizes(65 * MIB))
    tier.settle(sizes(3), sizes(65 * MIB), sizes(65 * MIB))
    assert tier.room().free_bytes == 200 * MIB
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("free_gib", "looks_after_s"), [(0, 0.05), (1, 0.05), (8, 0.25), (16, 0.5), (900, 0.5)]
)
def test_the_less_memory_is_free_the_more_often_the_daemon_looks_at_it(
    monkeypatch: pytest.MonkeyPatch, free_gib: int, looks_after_s: float
) -> None:
    looks, now_s = [], [100.0]

    def look() -> int:
        looks.append(now_s[0])
        return free_gib << 30

    monkeypatch.setattr(memory, "available_bytes", look)
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    room = memory.MemoryRoom()
    for after_s in (0.0, 0.99 * looks_after_s, 1.01 * looks_after_s):
        now_s[0] = 100.0 + after_s
        assert room.free_bytes() == free_gib << 30
    assert looks == [100.0, now_s[0]]


def test_ram_tiers_share_the_memory_and_look_at_it_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one RAM tier reserves memory, the room in the other RAM tier shrinks too. Otherwise two
    tiers would both promise the last free memory to their fills, and the kernel would kill a
    process of the job."""
    looks = []

    def look() -> int:
        looks.append(True)
        return 100 * MIB

    monkeypatch.setattr(memory, "available_bytes", look)
    monkeypatch.setattr(memory, "LOOK_S", 60)
    room = memory.MemoryRoom()
    with ExitStack() as stack:

        def make(name: str, kind: str = "ram") -> Tier:
            (tmp_path / name).mkdir()
            config = TierConfig(tmp_path / name, 1 << 40, kind, persistent=False)
            tier = Tier(config, memory_room=room)
            stack.callback(tier.close)
            return tier

        one, other, ssd = make("one"), make("other"), make("ssd", "ssd")

        def left() -> tuple[int, int]:
            return one.room().free_bytes // MIB, other.room().free_bytes // MIB

        assert left() == (100, 100)
        one.reserve(sizes(30 * MIB))
        assert left() == (70, 70)
        one.settle(sizes(1), sizes(30 * MIB), sizes(30 * MIB))
        other.reserve(sizes(20 * MIB))
        assert left() == (50, 50)
        other.give_back(20 * MIB)
        ssd.reserve(sizes(10 * MIB))
        ssd.settle(sizes(2), sizes(10 * MIB), sizes(10 * MIB))
        assert left() == (70, 70)
        one.release(1, 30 * MIB)
        assert left() == (100, 100)
    assert len(looks) == 1


def test_an_ssd_tier_does_not_ask_about_memory(
    open_tier: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 0)
    assert open_tier(kind="ssd").room().free_bytes > 0


def test_a_tier_that_has_failed_has_no_room(open_tier: Opener) -> None:
    tier = open_tier()
    tier.usable = False
    room = tier.room()
    assert (room.free_bytes, room.free_inodes) == (0, 0)
