"""Tests how a process finds and maps the segments of its session, and which segments it refuses."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi
from csrc.units.place import Place, control, open_descriptors

from monarch_py.errors import SessionError
from monarch_py.ipc.session import MAX_SHM_PATH_BYTES, user_directory
from monarch_py.native import SessionState
from monarch_py.native import ffi as native
from monarch_py.native import lib as daemons

PAGE = os.sysconf("SC_PAGE_SIZE")
HUGE_PAGE = 2 << 20
CLIENTS, FILLS = 0, 1
NAMES = {CLIENTS: "clients", FILLS: "fills"}
SPARES = 4
CAPACITY, POOL = 100, 8192


# --- the session's directory ----------------------------------------------------------------------


def directory_of(lib: Any, config: Path) -> bytes | None:
    found = lib.segments_find(os.fsencode(config))
    return os.fsencode(ffi.string(lib.segments_directory())) if found else None


@pytest.mark.parametrize("shm", [None, "", "/dev/shm", "/tmp/x", "/l" * 80, "/l" * 90])
def test_the_library_and_the_daemon_use_one_directory(
    lib: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shm: str | None
) -> None:
    """The directory of a session depends on MONARCH_SHM, the user and the path of the
    configuration. All paths that lead to the same configuration, directly or through links, give
    the same directory. An empty MONARCH_SHM counts as unset."""
    if shm is None:
        monkeypatch.delenv("MONARCH_SHM", raising=False)
    else:
        monkeypatch.setenv("MONARCH_SHM", shm)

    def key_of(name: str) -> int:
        resolved = os.fsencode(tmp_path.resolve() / name)
        return int(daemons.monarch_xxh3_of(resolved, len(resolved)))

    def expected(name: str) -> bytes:
        return os.fsencode(user_directory() / f"{key_of(name):016x}")

    small = next(name for name in map(str, range(10**6)) if key_of(name) < 2**56)
    for name in ("a.yaml", "b.yaml", small):
        (tmp_path / name).touch()
        assert directory_of(lib, tmp_path / name) == expected(name)
    assert expected("a.yaml") != expected("b.yaml")
    (tmp_path / "link").symlink_to(tmp_path / "a.yaml")
    (tmp_path / "d").mkdir()
    for other in ("link", "d/../a.yaml", "./a.yaml"):
        assert directory_of(lib, tmp_path / other) == expected("a.yaml"), other


def test_a_path_that_the_daemon_refuses_overruns_nothing(
    lib: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library ignores a MONARCH_SHM that is too long for its buffers. All paths that the daemon
    accepts are short enough for the library."""
    config = tmp_path / "a.yaml"
    config.touch()
    for n, is_taken in ((MAX_SHM_PATH_BYTES, True), (192, True), (193, False), (5000, False)):
        path = "/" + "p" * (n - 1)
        monkeypatch.setenv("MONARCH_SHM", path)
        found = directory_of(lib, config)
        assert found and found.startswith(os.fsencode(path if is_taken else "/dev/shm") + b"/mon")
    with pytest.raises(SessionError):
        user_directory()


def test_a_configuration_that_cannot_be_found_has_no_session(lib: Any, tmp_path: Path) -> None:
    assert directory_of(lib, tmp_path / "none") is None
    for n in (4095, 4096, 9000):
        assert directory_of(lib, Path("/" + "/".join(["d" * 99] * n)[: n - 1])) is None
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert directory_of(lib, tmp_path / "loop") is None


def test_only_a_daemon_that_shut_down_leaves_a_mark(lib: Any, place: Place) -> None:
    before = open_descriptors()
    assert not lib.segments_was_stopped()
    place.put("stopped", b"")
    assert lib.segments_was_stopped()
    (place.directory / "stopped").unlink()
    (place.directory / "stopped").symlink_to(place.config)
    assert not lib.segments_was_stopped(), "a link is no mark"
    assert open_descriptors() <= before


# --- segments -------------------------------------------------------------------------------------


def mapping(at: int) -> tuple[int, str, str] | None:
    """Returns (size, rights, path) of the mapping that begins at this address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, rights, _, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(word, 16) for word in ends.split("-"))
        if begin == at:
            return end - begin, rights, path[0] if path else ""
    return None


def map_segment(lib: Any, name: str) -> tuple[int, int]:
    """Returns the address and the size of the mapped segment, or (0, 0)."""
    size = ffi.new("uint64_t *")
    before = open_descriptors()
    at = int(lib.segments_map(name.encode(), size))
    assert open_descriptors() <= before
    return at, int(size[0])


@pytest.mark.parametrize("size", [1, PAGE, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1])
def test_a_segment_is_mapped_for_reading(lib: Any, place: Place, size: int) -> None:
    """The whole segment is mapped. A segment of at least the size of a huge page begins at an
    address at which the kernel can use huge pages."""
    content = os.urandom(100) * (size // 100 + 1)
    path = place.put("catalog.7", content[:size])
    at, found = map_segment(lib, "catalog.7")
    assert found == size
    mapped = mapping(at)
    assert mapped == ((size + PAGE - 1) // PAGE * PAGE, "r--s", str(path))
    assert bytes(ffi.buffer(ffi.cast("char *", at), size)) == content[:size]
    assert size < HUGE_PAGE or at % HUGE_PAGE == 0
    lib.shared_unmap(at, size)


@pytest.mark.parametrize("mode", [0o600, 0o400, *(0o600 | 1 << bit for bit in range(6))])
def test_a_segment_of_which_others_have_rights_is_not_mapped(
    lib: Any, place: Place, mode: int
) -> None:
    """The library does not map a segment on which other users have rights: a user who could write
    to it could redirect this process's reads."""
    place.put("catalog.7", b"x", mode)
    at, size = map_segment(lib, "catalog.7")
    assert (at != 0, size) == ((True, 1) if not mode & 0o77 else (False, 0))
    if at:
        lib.shared_unmap(at, 1)


def test_only_a_regular_file_of_this_user_is_a_segment(lib: Any, place: Place) -> None:
    """The library maps nothing if the file is empty or missing, if something else is in its place,
    or if it belongs to another user. If a FIFO is in its place, the library must not block when it
    opens the FIFO."""
    path = place.put("catalog.7", b"")
    assert map_segment(lib, "catalog.7") == (0, 0)
    path.unlink()
    assert map_segment(lib, "catalog.7") == (0, 0)
    path.symlink_to(place.put("catalog.8", b"x"))
    assert map_segment(lib, "catalog.7") == (0, 0)
    path.unlink()
    os.mkfifo(path, 0o600)
    assert map_segment(lib, "catalog.7") == (0, 0)
    path.unlink()
    path.mkdir(0o700)
    assert map_segment(lib, "catalog.7") == (0, 0)
    path.rmdir()
    place.put("catalog.7", b"x")
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        assert map_segment(lib, "catalog.7") == (0, 0)


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_free_descriptors_maps_all_the_same(lib: Any, place: Place) -> None:
    """A process that has no free descriptor can still map the segments. Without the segments, it
    could not record which files it changes."""
    place.put("catalog.7", b"x" * 10)
    size, reused = ffi.new("uint64_t *"), ffi.new("int *")
    with put_ranges(lib, place), no_free_descriptor():
        at = lib.segments_map(b"catalog.7", size)
        ranges = [lib.segments_map_range(kind, reused) for kind in NAMES]
        missing = lib.segments_map(b"catalog.8", size)
    assert ffi.string(ffi.cast("char *", at), 10) == b"x" * 10 and missing == 0
    lib.shared_unmap(at, 10)
    for kind, one in zip(NAMES, ranges, strict=True):
        found = mapping(one)
        assert found and found[2] == str(place.directory / NAMES[kind])
        lib.segments_discard(kind, one, 0)


# --- the segment `control` ------------------------------------------------------------------------


def is_usable(lib: Any, made: Any, size: int | None = None) -> bool:
    at = int(native.cast("uintptr_t", made))
    return bool(lib.segments_is_usable(at, native.sizeof(made[0]) if size is None else size))


def test_a_control_segment_is_checked_before_it_is_used(lib: Any) -> None:
    """The library uses the segment only while the daemon serves. It refuses a damaged segment, in
    which a count or a length may exceed the size of an array."""
    assert is_usable(lib, control(5))
    most = {"sources": daemons.MONARCH_MAX_SOURCES, "tiers": daemons.MONARCH_MAX_TIERS}
    for field, limit in most.items():
        made = control(5)
        setattr(made, field, limit)
        assert is_usable(lib, made)
        for beyond in (limit + 1, 2**32 - 1):
            setattr(made, field, beyond)
            assert not is_usable(lib, made), field
    for state in SessionState:
        made = control(5)
        made.state = state
        assert is_usable(lib, made) == (state == SessionState.SERVING)
    made = control(5)
    made.magic ^= 1
    assert not is_usable(lib, made)
    made = control(5)
    for size in (0, native.offsetof("struct monarch_control", "state") - 1):
        assert not is_usable(lib, made, size)
    assert not is_usable(lib, made, native.sizeof("struct monarch_control") - 1)


@pytest.mark.parametrize("which", [0, 3, 15])
def test_every_path_of_a_control_segment_must_fit(lib: Any, which: int) -> None:
    """The paths of all sources and tiers in use are checked, and no others."""
    source_bytes = len(native.new("struct monarch_control *").source[0].path)
    tier_bytes = len(native.new("struct monarch_control *").tier[0].path)
    for array, field, n_bytes in (
        ("source", "path_len", source_bytes), ("source", "alias_len", source_bytes),
        ("tier", "path_len", tier_bytes),
    ):  # fmt: skip
        made = control(5)
        made.sources = made.tiers = which + 1
        slot = getattr(made, array)[which]
        setattr(slot, field, n_bytes - 1)
        assert is_usable(lib, made)
        for beyond in (n_bytes, 2**32 - 1):
            setattr(slot, field, beyond)
            assert not is_usable(lib, made), (array, field)
        made.sources = made.tiers = which
        assert is_usable(lib, made), "it is not in use"


# --- ranges ---------------------------------------------------------------------------------------


@contextmanager
def put_ranges(lib: Any, place: Place) -> Iterator[None]:
    """Writes the segments whose size is the same in every session. At the beginning and at the end
    of the context, unmaps the spare address ranges that earlier sessions have left."""
    lib.segments_drop_spares()
    for kind, name in NAMES.items():
        os.truncate(place.put(name, name.encode()), lib.segments_range_bytes(kind))
    yield
    lib.segments_drop_spares()


@pytest.fixture
def ranges(lib: Any, place: Place) -> Iterator[Place]:
    with put_ranges(lib, place):
        yield place


def map_range(lib: Any, kind: int) -> tuple[int, bool]:
    reused = ffi.new("int *")
    before = open_descriptors()
    at = lib.segments_map_range(kind, reused)
    assert open_descriptors() <= before
    return at, bool(reused[0])


@pytest.mark.parametrize("kind", NAMES)
def test_the_addresses_of_a_released_range_are_used_again(
    lib: Any, ranges: Place, kind: int
) -> None:
    """When a session ends, threads may still use the addresses of its segments. So these address
    ranges are not unmapped, but filled with zeros. Later sessions map their segments over them. At
    most SPARES ranges are kept for this purpose; all others remain filled with zeros."""
    name, n_bytes = NAMES[kind], lib.segments_range_bytes(kind)
    rights = "rw-s" if kind == CLIENTS else "r--s"
    path, n_mapped = str(ranges.directory / name), (n_bytes + PAGE - 1) // PAGE * PAGE
    fresh = [map_range(lib, kind) for _ in range(SPARES + 1)]
    assert not any(reused for _, reused in fresh)
    at = [one for one, _ in fresh]
    assert all(mapping(one) == (n_mapped, rights, path) for one in at)
    assert all(ffi.string(ffi.cast("char *", one)) == name.encode() for one in at)
    for one in at:
        lib.segments_discard(kind, one, 1)
        assert ffi.string(ffi.cast("char *", one)) == b""
    again = [map_range(lib, kind) for _ in range(SPARES + 1)]
    assert [one for one, reused in again if reused] == at[:SPARES]
    assert at[SPARES] not in [one for one, _ in again], "its zeros stay mapped"
    assert all(ffi.string(ffi.cast("char *", one)) == name.encode() for one, _ in again)
    assert all(mapping(one) == (n_mapped, rights, path) for one, _ in again)
    for one in (*(one for one, _ in again), at[SPARES]):
        lib.segments_discard(kind, one, 0)
        assert mapping(one) is None, "no thread has got it"
    assert lib.segments_drop_spares() == 0


@pytest.mark.parametrize("case", ["short", "shared", "gone"])
def test_a_range_that_cannot_be_mapped_costs_no_addresses(
    lib: Any, ranges: Place, case: str
) -> None:
    at, _ = map_range(lib, FILLS)
    lib.segments_discard(FILLS, at, 1)
    path, n_bytes = ranges.directory / "fills", lib.segments_range_bytes(FILLS)
    if case == "short":
        os.truncate(path, n_bytes - 1)
    elif case == "shared":
        path.chmod(0o644)
    else:
        path.rename(path.with_name("hidden"))
    assert map_range(lib, FILLS) == (0, False)
    if case == "gone":
        path.with_name("hidden").rename(path)
    path.chmod(0o600)
    os.truncate(path, n_bytes)
    assert map_range(lib, FILLS) == (at, True)
    lib.segments_discard(FILLS, at, 0)


def test_a_session_maps_its_fills_once_while_its_daemon_serves(
    lib: Any, ranges: Place, session: Made
) -> None:
    own = lib.segments_set_fills(session.s, 0)
    session.control.state = SessionState.CLOSED
    assert lib.segments_fills(session.s) == 0
    session.control.state = SessionState.SERVING
    at = lib.segments_fills(session.s)
    assert mapping(at) and lib.segments_fills(session.s) == at
    session.control.state = SessionState.CLOSED
    assert lib.segments_fills(session.s) == at, "it stays mapped"
    session.control.state = SessionState.SERVING
    lib.segments_set_fills(session.s, 0)
    (ranges.directory / "fills").unlink()
    assert lib.segments_fills(session.s) == 0
    lib.segments_discard(FILLS, at, 0)
    lib.segments_set_fills(session.s, own)


# --- catalogs -------------------------------------------------------------------------------------


def catalog(generation: int, capacity: int = CAPACITY, pool: int = POOL) -> Any:
    memory = native.new("char[]", int(daemons.monarch_catalog_bytes(capacity, pool)))
    daemons.monarch_catalog_init(memory, generation, capacity, pool)
    return memory


def test_a_catalog_with_a_damaged_header_is_refused(lib: Any) -> None:
    """All offsets and sizes in the header must match the catalog's layout. Other values might point
    outside the segment."""
    memory = catalog(1)
    at, n_bytes = int(native.cast("uintptr_t", memory)), len(memory)
    c = native.cast("struct monarch_catalog *", memory)
    c.count = c.capacity
    assert lib.segments_is_sound(at, n_bytes) and lib.segments_is_sound(at, n_bytes + 1)
    for size in (0, native.sizeof("struct monarch_catalog") - 1, n_bytes - 1):
        assert not lib.segments_is_sound(at, size)
    for field in (
        "magic", "bytes", "capacity", "slots", "pool_bytes", "index_at", "inodes_at", "copies_at",
        "entries_at", "names_at", "pool_at",
    ):  # fmt: skip
        right = getattr(c, field)
        for wrong in (right - 4096, right + 4096, 0, 2**64 - 4096):
            setattr(c, field, wrong % 2**64)
            assert not lib.segments_is_sound(at, n_bytes), (field, wrong)
        setattr(c, field, right)
    c.count = c.capacity + 1
    assert not lib.segments_is_sound(at, n_bytes)


def test_a_catalog_has_limits(lib: Any) -> None:
    """A catalog that exceeds a limit is refused, even if its layout is right."""
    entries, pool = daemons.MONARCH_MAX_ENTRIES, daemons.MONARCH_MAX_POOL
    for capacity, n_bytes, is_sound in (
        (entries, pool, 1), (entries + 1, pool, 0), (entries, pool + 1, 0)
    ):  # fmt: skip
        c = native.new("struct monarch_catalog *", {"magic": daemons.MONARCH_MAGIC})
        at = int(native.cast("uintptr_t", c))
        lib.segments_lay_out(at, capacity, n_bytes)
        assert lib.segments_is_sound(at, c.bytes) == is_sound


def test_the_catalog_of_the_newest_generation_replaces_the_older_ones(
    lib: Any, session: Made, place: Place
) -> None:
    """The older catalogs stay mapped, because threads may still read them. A catalog that is
    missing, damaged or of another generation is not used, and is not left mapped."""
    own = lib.segments_catalog_of(session.s)
    seen = [own]

    def put(named: int, generation: int, magic: int | None = None) -> Path:
        memory = catalog(generation)
        if magic is not None:
            native.cast("struct monarch_catalog *", memory).magic = magic
        session.control.generation = named
        return place.put(f"catalog.{named}", memory)

    for generation in (2, 3, 10, 2**64 - 1):
        path = put(generation, generation)
        at = lib.segments_newer_catalog(session.s)
        found = mapping(at)
        assert found and found[2] == str(path)
        assert lib.segments_older(session.s, len(seen) - 1) == seen[-1]
        seen.append(at)
    for named, generation, magic in ((20, 21, None), (22, 22, 1)):
        path = put(named, generation, magic)
        assert lib.segments_newer_catalog(session.s) == seen[-1]
        assert str(path) not in Path("/proc/self/maps").read_text()
    session.control.generation = 23
    assert lib.segments_newer_catalog(session.s) == seen[-1], "there is none"
    path = put(24, 24)
    session.control.state = SessionState.CLOSED
    assert lib.segments_newer_catalog(session.s) == seen[-1], "it may be a new daemon's"
    assert str(path) not in Path("/proc/self/maps").read_text()
    for at in seen[1:]:
        assert mapping(at)
        lib.shared_unmap(at, daemons.monarch_catalog_bytes(CAPACITY, POOL))
    lib.segments_set_catalog(session.s, own)


def test_a_segments_file_is_never_made_by_the_library(lib: Any, place: Place) -> None:
    place.put("catalog.7", b"x")
    for name in ("clients", "fills", "control", "stopped"):
        map_segment(lib, name)
    map_range(lib, CLIENTS)
    found = list(place.directory.iterdir())
    assert [path.name for path in found] == ["catalog.7"]
    assert stat.S_IMODE(found[0].stat().st_mode) == 0o600
