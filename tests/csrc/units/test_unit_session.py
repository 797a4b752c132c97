"""Tests what the library finds out about its process and session: the rank, the rights, mounts,
tiers and copies. Also tests for which files and directories the catalog may answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.native import Kind, Reason, State

SECOND = 10**9
BYPASS = State.BYPASS
CHANGED, FAILED, UNSUPPORTED = Reason.CHANGED, Reason.FAILED, Reason.UNSUPPORTED
FILE, DIR, LINK, OTHER = Kind
ENTRY = 5
UNMAPPED = 65534


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 1), ("1", 2), ("9", 10), ("10", 11), ("007", 8), ("126", 127), ("127", 0), ("128", 0),
     ("1000", 0), ("99999999999999999999", 0), ("-1", 0), ("1a", 0),
     ("a", 0), ("1 ", 0), ("/", 0), (":", 0)],
)  # fmt: skip
def test_a_rank_is_the_launchers_number_and_one(lib: Any, text: str, number: int) -> None:
    """A text that is not a number, or a number that is too large for the library's tables, gives
    rank 0, which means no rank."""
    assert lib.session_rank_number(text.encode()) == number


LAUNCHERS = [
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID",
]  # fmt: skip


def test_the_innermost_launcher_numbers_the_rank(lib: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launcher stores the rank in a variable of its own. The first of these variables that is
    set and not empty decides. If its value is not a number, the process has no rank, even if a
    later variable has a number."""
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    assert lib.session_rank() == 0
    for i, name in reversed(list(enumerate(LAUNCHERS))):
        monkeypatch.setenv(name, str(i + 3))
        assert lib.session_rank() == i + 4
    monkeypatch.setenv("LOCAL_RANK", "")
    assert lib.session_rank() == 5
    monkeypatch.setenv("LOCAL_RANK", "x")
    assert lib.session_rank() == 0


def test_sources_and_tiers_are_found_by_their_device(lib: Any, session: Made) -> None:
    """The search for a device begins at the source or tier with the given number. It ends at the
    session's last source or tier, and skips tiers that cannot be used."""
    session.control.sources = session.control.tiers = 4
    for i, dev in enumerate((5, 6, 5, 6, 5)):
        session.control.source[i].dev = session.control.tier[i].dev = dev
        session.control.tier[i].usable = i != 2
    for find, found in ((lib.session_source_on, [0, 2]), (lib.session_tier_on, [0])):
        assert find(session.s, 7, 0) == -1
        for first in range(5):
            expected = next((i for i in found if i >= first), -1)
            assert find(session.s, 5, first) == expected
            assert find(session.s, 6, first) == next((i for i in (1, 3) if i >= first), -1)


def test_hints_wait_for_the_daemon_in_their_slots(lib: Any, session: Made) -> None:
    """A hint names a path that a program has opened, but that the catalog lacks. The library writes
    a hint into a slot, and rings the daemon's doorbell. If the slot still holds an unread hint, the
    new hint is lost. The library does not send a path that is too long."""
    n = len(session.clients.scan_hint)
    for i in range(n):
        assert lib.session_hint(session.s, i % 16, b"path%d" % i, len(b"path%d" % i), i % 2)
    assert session.clients.doorbell == n
    for i, hint in enumerate(session.clients.scan_hint):
        got = bytes(ffi.buffer(ffi.cast("char *", int(native_address(hint.path))), hint.path_len))
        assert (hint.source, got, hint.is_part) == (i % 16, b"path%d" % i, i % 2)
        assert hint.ticket & 3 == 2
    assert not lib.session_hint(session.s, 0, b"late", 4, 0)
    assert session.clients.scan_hint[0].path_len == 5
    assert session.clients.doorbell == n
    first = int(session.clients.scan_hint[1].ticket)
    session.clients.scan_hint[1].ticket = first & ~3  # the daemon has read the hint
    assert lib.session_hint(session.s, 3, b"p" * 1004, 1004, 0)
    assert session.clients.scan_hint[1].ticket == first & ~3
    assert lib.session_hint(session.s, 3, b"p" * 1003, 1003, 0)
    hint = session.clients.scan_hint[1]
    assert (hint.path_len, hint.source, hint.ticket) == (1003, 3, (first & ~3) + 6)


def native_address(field: Any) -> int:
    from monarch_py.native import ffi as native

    return int(native.cast("uintptr_t", native.addressof(field)))


# --- rights -----------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(
    theirs=st.lists(st.integers(0, 6), max_size=6),
    ours=st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, UNMAPPED]), min_size=1, max_size=8),
    same_users=st.booleans(),
)
def test_a_process_needs_all_groups_of_the_daemon(
    lib: Any, lasting: Made, theirs: list[int], ours: list[int], same_users: bool
) -> None:
    """The order of the groups does not matter. In a container with its own user namespace, some
    groups of a process may have no number (UNMAPPED). Each of these may be one of the daemon's
    groups. So the process may lack as many of the daemon's groups as it has groups without a
    number."""
    lasting.control.groups = len(theirs)
    for i, group in enumerate(theirs):
        lasting.control.group[i] = group
    lasting.control.users = Path("/proc/self/ns/user").stat().st_ino + (not same_users)
    missing = sum(group not in ours for group in theirs)
    expected = not missing or (not same_users and missing <= ours.count(UNMAPPED))
    assert lib.rights_has_groups(lasting.s, ffi.new("uint32_t[]", ours), len(ours)) == expected


def test_the_groups_of_a_process_are_its_effective_and_its_supplementary_ones(
    lib: Any, session: Made
) -> None:
    session.control.users = Path("/proc/self/ns/user").stat().st_ino
    groups = {os.getegid(), *os.getgroups()}
    session.control.groups = len(groups)
    for i, group in enumerate(sorted(groups)):
        session.control.group[i] = group
    assert lib.rights_has_daemons_groups(session.s)
    other = next(group for group in range(1000, 9999) if group not in groups)
    session.control.group[len(groups)] = other
    session.control.groups += 1
    assert not lib.rights_has_daemons_groups(session.s)
    session.control.groups = 65538  # a damaged segment
    assert not lib.rights_has_daemons_groups(session.s)


def set_groups(session: Made, groups: set[int]) -> None:
    session.control.groups = len(groups)
    for i, group in enumerate(sorted(groups)):
        session.control.group[i] = group


def test_a_process_may_have_very_many_groups(lib: Any, session: Made) -> None:
    """If a process has very many groups, the library maps memory for their list. The result must be
    correct, as with few groups, and the memory must be unmapped again."""
    session.control.users = Path("/proc/self/ns/user").stat().st_ino
    own = {os.getegid(), *os.getgroups()}
    other = next(group for group in range(1000, 9999) if group not in own)
    mapped = Path("/proc/self/maps").read_text().count("\n")
    for i in range(200):
        set_groups(session, own | ({other} if i % 2 else set()))
        assert lib.rights_has_many_groups(session.s) == (i % 2 == 0)
    assert Path("/proc/self/maps").read_text().count("\n") < mapped + 100


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give itself groups")
@pytest.mark.parametrize("n", [1, 62, 63, 64, 65, 300])
def test_the_daemons_groups_are_found_among_any_number_of_groups(
    lib: Any, session: Made, n: int
) -> None:
    session.control.users = Path("/proc/self/ns/user").stat().st_ino
    groups = set(range(20000, 20000 + n))
    child = os.fork()
    if child == 0:
        os.setgroups(sorted(groups))
        set_groups(session, groups | {os.getegid()})
        right = bool(lib.rights_has_daemons_groups(session.s))
        set_groups(session, groups | {30000})
        os._exit(not (right and not lib.rights_has_daemons_groups(session.s)))
    assert os.waitpid(child, 0)[1] == 0


# --- mounts and tiers -------------------------------------------------------------------------


def mount_points() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def test_what_is_mounted_below_a_path_is_seen(lib: Any) -> None:
    """The library reads the kernel's list of mounts in pieces. Its result must be that of a search
    in the complete list. If another test mounts or unmounts something during the search, this test
    repeats the search."""
    paths = {"/none", "/pro", "/proc/self", "/sy"}
    for point in mount_points():
        if "\\" not in point:  # leaves out paths with a blank, which mountinfo writes as \040
            paths |= {point, str(Path(point).parent), point + "x", point[:-1]}
    for path in paths - {"", "/"}:
        points, is_found = mount_points(), lib.roots_is_mounted_upon(path.encode())
        while points != (now := mount_points()):
            points, is_found = now, lib.roots_is_mounted_upon(path.encode())
        assert bool(is_found) == any(point.startswith(path + "/") for point in points), path


def test_a_tier_that_leads_elsewhere_or_is_not_private_is_foreign(
    lib: Any, session: Made, tmp_path: Path
) -> None:
    """A tier is foreign if its path leads to another device or inode, or if other users have rights
    on it. A tier that is missing or not in use is never foreign."""
    here = tmp_path / "tier"
    here.mkdir(mode=0o700)
    found = here.stat()
    session.control.tiers = 2
    for tier in session.control.tier[0:2]:
        tier.path, tier.usable = os.fsencode(here), 1
        tier.dev, tier.ino = found.st_dev, found.st_ino
    assert not lib.roots_has_foreign_tier(session.s)
    last = session.control.tier[1]
    for field in ("dev", "ino"):
        setattr(last, field, getattr(last, field) + 1)
        assert lib.roots_has_foreign_tier(session.s)
        last.usable = 0
        assert not lib.roots_has_foreign_tier(session.s)
        last.usable = 1
        setattr(last, field, getattr(last, field) - 1)
    for mode in (0o701, 0o710, 0o740, 0o702):
        here.chmod(mode)
        assert lib.roots_has_foreign_tier(session.s)
    here.chmod(0o700)
    last.path = os.fsencode(tmp_path / "gone")
    assert not lib.roots_has_foreign_tier(session.s)


def test_a_source_is_ours_while_its_path_leads_to_it(
    lib: Any, session: Made, tmp_path: Path
) -> None:
    """For each source, the library remembers whether the path leads to the source, and whether the
    alias does. It checks again only after the function roots_may_differ was called."""
    session.control.sources = 3
    for i in range(3):
        place = tmp_path / str(i)
        place.mkdir()
        found = place.stat()
        source = session.control.source[i]
        source.dev, source.ino, source.path = found.st_dev, found.st_ino, os.fsencode(place)
        source.alias = os.fsencode(tmp_path / f"alias{i}")
    (tmp_path / "alias1").symlink_to(tmp_path / "1")
    (tmp_path / "1").rename(tmp_path / "away")
    (tmp_path / "1").mkdir()

    def ours() -> list[int]:
        return [lib.roots_is_ours(session.s, i, alias) for i in range(3) for alias in (0, 1)]

    assert ours() == [1, 0, 0, 0, 1, 0]
    (tmp_path / "1").rmdir()
    (tmp_path / "away").rename(tmp_path / "1")
    assert ours() == [1, 0, 0, 0, 1, 0]
    lib.roots_may_differ()
    assert ours() == [1, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("by_alias", [0, 1])
def test_a_source_is_its_device_and_its_inode(
    lib: Any, session: Made, tmp_path: Path, by_alias: int
) -> None:
    """A directory whose device or inode number differs from that of the source is another
    directory, even if the numbers differ only by 1."""
    found, source = tmp_path.stat(), session.control.source[0]
    session.control.sources = 1
    source.path = source.alias = os.fsencode(tmp_path)
    for dev in (-1, 0, 1):
        for ino in (-1, 0, 1):
            source.dev, source.ino = found.st_dev + dev, found.st_ino + ino
            lib.roots_may_differ()
            assert lib.roots_is_ours(session.s, 0, by_alias) == (dev == ino == 0)


# --- copies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "fits"), [(0, 1), (10, 1), (3994, 1), (3995, 0), (3996, 0), (60000, 0)]
)
def test_a_path_at_the_source_fits_or_is_refused(
    lib: Any, session: Made, length: int, fits: int
) -> None:
    """The source's path, a slash, the file's path and the final NUL must fit into 4096 bytes."""
    path = b"/" + b"s" * 99
    session.control.source[0].path, session.control.source[0].path_len = path, 100
    entry = session.entries[ENTRY]
    entry.path_len = length
    out = ffi.new("char[]", b"z" * 5000)
    assert lib.copies_source_path(session.s, ENTRY, out) == fits
    if fits:
        assert bytes(ffi.buffer(out, 101)) == path + b"/"
    assert out[101 + length if fits else 0] == (b"\0" if fits else b"z")


def describe(session: Made, path: Path, kind: int = FILE) -> Any:
    """Copies the file's attributes into the entry, as a scan does."""
    found, entry = path.stat(), session.entries[ENTRY]
    session.control.source[3].dev = found.st_dev
    entry.source, entry.kind, entry.ino, entry.size = 3, kind, found.st_ino, found.st_size
    entry.mtime_ns, entry.ctime_ns = found.st_mtime_ns, found.st_ctime_ns
    return entry


@pytest.mark.parametrize("field", ["ino", "size", "mtime_ns", "ctime_ns", "dev"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_file_is_as_scanned_only_if_all_its_attributes_are(
    lib: Any, session: Made, tmp_path: Path, field: str, by: int
) -> None:
    path = tmp_path / "f"
    path.write_text("content")
    where = describe(session, path)
    assert lib.copies_is_as_scanned(session.s, ENTRY, os.fsencode(path))
    where = session.control.source[3] if field == "dev" else where
    setattr(where, field, getattr(where, field) + by)
    assert not lib.copies_is_as_scanned(session.s, ENTRY, os.fsencode(path))


@given(st.integers(0, 0o177777))
def test_only_a_regular_file_that_only_its_owner_reads_may_be_a_copy(lib: Any, mode: int) -> None:
    assert lib.copies_has_mode(mode) == (mode == 0o100400)
    assert lib.copies_has_mode(0o100400)


# --- what the catalog may answer --------------------------------------------------------------


@pytest.mark.parametrize("state", range(5))
@pytest.mark.parametrize("reason", range(6))
def test_the_catalog_answers_for_files_whose_attributes_it_holds(
    lib: Any, session: Made, state: int, reason: int
) -> None:
    """The catalog does not answer for a file that bypasses the tiers because it has changed, has
    failed or is unsupported. It does answer for a file that bypasses them for another reason, such
    as lack of room."""
    session.control.revalidate_ns = SECOND
    entry = session.entries[ENTRY]
    entry.word = state | reason << 4
    is_unsure = state == BYPASS and reason in (CHANGED, FAILED, UNSUPPORTED)
    for kind, expected in ((FILE, not is_unsure), (LINK, not is_unsure), (OTHER, False)):
        entry.kind = kind
        assert bool(lib.metadata_can_tell(session.s, ENTRY)) == expected


def test_the_catalog_answers_only_for_so_long_after_a_comparison(lib: Any, session: Made) -> None:
    """Before the daemon first compares the catalog with the source, the catalog answers, because
    the scan is recent. If the last comparison is too old, the catalog does not answer, and the
    library tells the daemon once that it is too old."""
    control, clients = session.control, session.clients
    control.revalidate_ns = 1000 * SECOND
    assert lib.metadata_is_fresh(session.s) == 0
    assert lib.metadata_can_tell(session.s, ENTRY)
    control.compared_ns = lib.shared_now() - 999 * SECOND
    assert lib.metadata_is_fresh(session.s) and lib.metadata_can_tell(session.s, ENTRY)
    assert (clients.stale, clients.doorbell) == (0, 0)
    control.compared_ns = lib.shared_now() - 1000 * SECOND
    for _ in range(2):
        assert not lib.metadata_is_fresh(session.s)
        assert not lib.metadata_can_tell(session.s, ENTRY)
        assert (clients.stale, clients.doorbell) == (1, 1)
    control.compared_ns = 0
    assert lib.metadata_can_tell(session.s, ENTRY)
    control.revalidate_ns = 0  # the catalog may never answer
    assert not lib.metadata_can_tell(session.s, ENTRY)


def listing(first: int, n: int) -> int:
    return first << 32 | (n + 1)


def list_as(entry: Any, value: int) -> None:
    """Sets the listing of a directory. A directory's entry stores the listing in the field
    `copy_ino`. In a file's entry, this field holds the copy's inode."""
    setattr(entry, "copy_ino", value)  # noqa: B010


def test_a_listing_is_told_for_a_second_after_a_look(
    lib: Any, session: Made, tmp_path: Path
) -> None:
    """If a look at the source finds that the directory has not changed since it was listed, the
    catalog answers for this directory for one second."""
    entry = describe(session, tmp_path, DIR)
    told = listing(10, 20)
    list_as(entry, told)
    path = os.fsencode(tmp_path)
    assert lib.metadata_listing(session.s, ENTRY) == 0
    assert not lib.metadata_can_tell(session.s, ENTRY)
    assert lib.metadata_look_and_list(session.s, ENTRY, path) == told
    assert lib.metadata_listing(session.s, ENTRY) == told
    assert lib.metadata_can_tell(session.s, ENTRY)
    lib.metadata_keep_look(session.s, ENTRY, 1010 * 10**6)
    assert lib.metadata_listing(session.s, ENTRY) == 0
    lib.metadata_keep_look(session.s, ENTRY, 0)
    assert lib.metadata_listing(session.s, ENTRY) == told
    entry.word = BYPASS
    assert lib.metadata_listing(session.s, ENTRY) == 0
    entry.word = 0
    entry.kind = FILE
    assert lib.metadata_listing(session.s, ENTRY) == 0
    entry.kind = DIR
    for outside in (listing(4096, 1), listing(4000, 97), listing(2**31, 2**31)):
        list_as(entry, outside)  # a damaged entry
        assert lib.metadata_listing(session.s, ENTRY) == 0
    list_as(entry, listing(4000, 96))
    assert lib.metadata_listing(session.s, ENTRY) == listing(4000, 96)


@pytest.mark.parametrize("change", ["ino", "mtime_ns", "ctime_ns", "gone", "file", "unreadable"])
def test_a_directory_that_changed_is_listed_by_the_source(
    lib: Any, session: Made, tmp_path: Path, change: str
) -> None:
    """The library marks a directory as changed for all processes if a look at the source finds
    another directory at the path, another mtime or ctime, or no directory. If the look fails for
    another reason, the library does not mark the directory."""
    here = tmp_path / "d"
    here.mkdir()
    entry = describe(session, here, DIR)
    list_as(entry, listing(10, 20))
    path = os.fsencode(here)
    if change in ("ino", "mtime_ns", "ctime_ns"):
        setattr(entry, change, getattr(entry, change) + 1)
    if change == "gone":
        here.rmdir()
    if change == "file":
        here.rmdir()
        here.touch()
        path += b"/x"
    if change == "unreadable":
        path += b"/" + b"n" * 300  # ENAMETOOLONG
    assert lib.metadata_look_and_list(session.s, ENTRY, path) == 0
    assert session.clients.changes == (change != "unreadable")
    assert lib.metadata_listing(session.s, ENTRY) == 0


@pytest.mark.parametrize("what", [1, 2, 3, 0])
def test_a_directory_that_changes_during_a_look_is_listed_by_the_source(
    lib: Any, session: Made, tmp_path: Path, what: int
) -> None:
    """If the daemon stores the directory's new times in the entry during the look, the look finds
    no difference. Even then, the old listing must not be returned."""
    entry = describe(session, tmp_path, DIR)
    list_as(entry, listing(10, 20))
    lib.metadata_meanwhile(session.s, ENTRY, what)
    found = lib.metadata_look_and_list(session.s, ENTRY, os.fsencode(tmp_path))
    assert found == (0 if what else listing(10, 20))
    assert bool(lib.metadata_listing(session.s, ENTRY)) == (not what), "the look is not kept"
