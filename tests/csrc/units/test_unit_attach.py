"""Tests which daemon's session a process attaches to, and when it may use the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, control, open_descriptors
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.native import SessionState
from monarch_py.native import ffi as native
from monarch_py.native import lib as daemons

NUMBERS = 32


class Daemons:
    """Acts as a series of daemons that start one after another in the same session's directory."""

    def __init__(self, lib: Any, place: Place) -> None:
        self.lib, self.place = lib, place

    def start(self, **fields: Any) -> Any:
        """Replaces the session's segments with those of a new daemon. Returns a copy of the new
        segment `control` in this process's memory."""
        made = control(5)
        for name, value in fields.items():
            setattr(made, name, value)
        if self.place.directory.exists():
            for name in ("control", "clients"):
                (self.place.directory / name).unlink(missing_ok=True)
        self.place.put("control", made)
        path = self.place.put("clients", daemons.MONARCH_MAGIC.to_bytes(8, "little"))
        os.truncate(path, native.sizeof("struct monarch_clients"))
        return made

    def write(self, **fields: Any) -> None:
        """Changes fields of the current segment `control` in place, as a daemon does."""
        path = self.place.directory / "control"
        made = self.place.get("control", "struct monarch_control")
        for name, value in fields.items():
            setattr(made, name, value)
        with path.open("r+b") as file:
            file.write(bytes(native.buffer(made)))

    def stop(self) -> None:
        self.write(state=SessionState.CLOSED)


@pytest.fixture
def daemon(lib: Any, place: Place) -> Iterator[Daemons]:
    before = open_descriptors()
    one = Daemons(lib, place)
    one.start()
    yield one
    lib.attach_end()
    assert open_descriptors() <= before


def is_mapped(place: Place) -> bool:
    return str(place.directory) in Path("/proc/self/maps").read_text()


CASES = ["none", "magic", "state", "sources", "tiers", "path", "short", "shared", "clients_gone",
         "clients_short", "clients_magic", "clients_shared"]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_session_that_cannot_be_used_leaves_nothing_mapped(
    daemon: Daemons, lib: Any, case: str
) -> None:
    """If a session cannot be used, none of its segments stays mapped. If the reason lies only in
    the segment `clients`, a daemon does serve the session, but the process cannot map it. The
    process then tells the daemon of changes without mapping the session."""
    place = daemon.place
    fields: dict[str, dict[str, Any]] = {
        "magic": {"magic": 1}, "state": {"state": SessionState.STARTING},
        "sources": {"sources": 17}, "tiers": {"tiers": 17},
    }  # fmt: skip
    made = daemon.start(**fields.get(case, {}))
    if case == "none":
        (place.directory / "control").unlink()
    elif case == "path":
        made.source[0].path_len = 1024
        place.put("control", made)
    elif case == "short":
        os.truncate(place.directory / "control", native.sizeof("struct monarch_control") - 1)
    elif case == "shared":
        (place.directory / "control").chmod(0o640)
    elif case == "clients_gone":
        (place.directory / "clients").unlink()
    elif case == "clients_short":
        os.truncate(place.directory / "clients", native.sizeof("struct monarch_clients") - 1)
    elif case == "clients_magic":
        (place.directory / "clients").write_bytes(bytes(native.sizeof("struct monarch_clients")))
    elif case == "clients_shared":
        (place.directory / "clients").chmod(0o606)
    assert lib.attach_first() == ffi.NULL
    assert not is_mapped(place)
    assert lib.attach_lacks_room() == case.startswith("clients")
    daemon.start()
    assert lib.attach_first() != ffi.NULL and not lib.attach_lacks_room()
    assert is_mapped(place)


def test_a_change_is_told_to_the_daemon_that_serves(daemon: Daemons, lib: Any) -> None:
    """Until a new daemon has started, the old daemon is told of changes, even while the session's
    directory is gone."""
    first = lib.attach_first()
    assert lib.attach_for_change() == first
    path = daemon.place.directory / "control"
    path.rename(path.with_name("hidden"))
    lib.attach_anew(first)
    assert lib.attach_for_change() == first
    path.with_name("hidden").rename(path)
    daemon.stop()
    assert lib.attach_for_change() == ffi.NULL
    daemon.start()
    second = lib.attach_for_change()
    assert second not in (ffi.NULL, first) and lib.attach_current() == second
    assert lib.attach_before(second) == first
    # Starts a third daemon, as if the second one had been killed: the second one's segments are
    # removed, but were not marked as closed.
    daemon.start()
    lib.attach_anew(second)
    third = lib.attach_for_change()
    assert third not in (first, second) and lib.attach_before(third) == second
    assert [lib.attach_number(s) for s in (first, second, third)] == [0, 1, 2]


def test_a_read_looks_for_a_daemon_once_a_second(daemon: Daemons, lib: Any) -> None:
    first = lib.attach_first()
    assert lib.attach_for_reading(0) == first
    daemon.stop()
    daemon.start()
    assert lib.attach_for_reading(0) == ffi.NULL
    second = lib.attach_for_reading(1)
    assert second not in (ffi.NULL, first) and lib.attach_for_reading(0) == second
    daemon.stop()
    assert lib.attach_for_reading(1) == ffi.NULL
    assert lib.attach_current() == second
    daemon.start(off=1)
    assert lib.attach_for_reading(1) == ffi.NULL, "Monarch is switched off"
    assert lib.attach_current() != second
    daemon.write(off=0)
    assert lib.attach_for_reading(0) == lib.attach_current()
    assert lib.attach_second_has_passed(1) and not lib.attach_second_has_passed(0)


def test_a_daemon_that_starts_later_is_found(daemon: Daemons, lib: Any) -> None:
    path = daemon.place.directory / "control"
    path.unlink()
    assert lib.attach_first() == ffi.NULL and lib.attach_is_waiting()
    assert lib.attach_for_change() == lib.attach_for_reading(1) == ffi.NULL
    daemon.start()
    assert lib.attach_for_reading(0) == ffi.NULL
    found = lib.attach_for_reading(1)
    assert found != ffi.NULL and lib.attach_for_change() == found


def test_only_sessions_in_use_stay_mapped(daemon: Daemons, lib: Any) -> None:
    """The session before the newest one stays mapped, because threads may still use it. An older
    session is released, unless the process is listing one of its directories."""
    sessions = [lib.attach_first()]

    def next_daemon() -> None:
        daemon.stop()
        daemon.start()
        sessions.append(lib.attach_for_change())

    next_daemon()
    lib.attach_list(sessions[0], 1)
    next_daemon()
    next_daemon()
    assert [lib.attach_is_released(s) for s in sessions] == [0, 1, 0, 0]
    lib.attach_list(sessions[0], -1)
    next_daemon()
    assert [lib.attach_is_released(s) for s in sessions] == [1, 1, 1, 0, 0]
    assert lib.attach_before(sessions[4]) == sessions[3]
    assert lib.attach_before(sessions[3]) == ffi.NULL
    released = native.cast("struct monarch_control *", lib.attach_control(sessions[0]))
    assert (released.magic, released.state) == (0, 0)


def test_a_session_whose_copies_are_open_stays_mapped(
    daemon: Daemons, lib: Any, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    path.touch()
    sessions = [lib.attach_first()]
    lib.attach_copy(sessions[0], path.stat().st_ino)
    with path.open("rb"):
        for _ in range(4):
            daemon.stop()
            daemon.start()
            sessions.append(lib.attach_for_change())
        assert [lib.attach_is_released(s) for s in sessions] == [0, 1, 1, 0, 0]
    daemon.stop()
    daemon.start()
    sessions.append(lib.attach_for_change())
    assert [lib.attach_is_released(s) for s in sessions] == [1, 1, 1, 1, 0, 0]
    lib.attach_copy(ffi.NULL, 0)


def mappings(place: Place) -> int:
    text = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(place.directory) in line and "deleted" not in line for line in text)


def test_a_look_for_a_newer_daemon_leaves_nothing_mapped(daemon: Daemons, lib: Any) -> None:
    first = lib.attach_first()
    before = mappings(daemon.place)
    daemon.stop()
    for _ in range(5):
        assert lib.attach_for_change() == ffi.NULL
        assert lib.attach_for_reading(1) == ffi.NULL
    daemon.write(state=SessionState.SERVING)
    assert lib.attach_for_change() == first
    assert mappings(daemon.place) == before
    (daemon.place.directory / "clients").rename(daemon.place.directory / "hidden")
    made = control(5)
    (daemon.place.directory / "control").unlink()
    daemon.place.put("control", made)
    lib.attach_anew(first)
    for _ in range(5):
        assert lib.attach_for_change() == first, "the new daemon's session cannot be mapped"
        lib.attach_anew(first)
    assert mappings(daemon.place) <= before


def test_threads_that_attach_at_once_use_one_session(daemon: Daemons, lib: Any) -> None:
    """If two threads attach to a new session at the same time, the slower thread unmaps the
    segments that it has mapped."""
    lib.attach_first()
    before = mappings(daemon.place)
    daemon.stop()
    daemon.start()
    lib.attach_overtake()
    second = lib.attach_for_change()
    assert second == lib.attach_current() and lib.attach_number(second) == 1
    assert mappings(daemon.place) == before


def test_a_number_that_comes_again_names_no_older_descriptors(daemon: Daemons, lib: Any) -> None:
    first = lib.attach_first()
    lib.attach_set_number(first, NUMBERS - 1)
    lib.track_forget()
    words = [1 << 32 | number << 4 for number in (0, 1, NUMBERS - 1)]
    for i, word in enumerate(words):
        lib.track_set(300 + i, word)
    daemon.stop()
    daemon.start()
    second = lib.attach_for_change()
    assert lib.attach_number(second) == 0
    assert [lib.track_word(300 + i) for i in range(3)] == [0, *words[1:]]
    lib.track_forget()


@pytest.mark.parametrize("which", [0, 1])
def test_a_switch_file_switches_the_library_off(
    daemon: Daemons, lib: Any, tmp_path: Path, which: int
) -> None:
    switch = tmp_path / "off"
    made = daemon.start()
    made.switch_file[which] = bytes(switch)
    daemon.place.put("control", made)
    first = lib.attach_first()
    assert not lib.attach_is_off(first)
    switch.touch()
    lib.attach_tick()
    assert lib.attach_is_off(first) and lib.attach_for_reading(0) == ffi.NULL
    assert lib.attach_for_change() == first, "changes are recorded all the same"
    switch.unlink()
    lib.attach_tick()
    assert lib.attach_for_reading(0) == first
    switch.touch()
    assert lib.attach_is_off(lib.attach_first())


def test_a_process_without_the_daemons_rights_gets_no_copies(daemon: Daemons, lib: Any) -> None:
    first = lib.attach_first()
    other = next(group for group in range(1000, 9999) if group not in os.getgroups())
    daemon.write(groups=1, group=[other])
    assert not lib.attach_is_off(first)
    lib.attach_rights_differ()
    assert lib.attach_is_off(first)
    daemon.write(groups=0)
    lib.attach_rights_differ()
    assert lib.attach_is_off(first), "only a whole look switches it on again"
    lib.attach_tick()
    assert not lib.attach_is_off(first)


def test_a_session_without_a_directory_gives_no_copies(daemon: Daemons, lib: Any) -> None:
    """If the session's directory is gone, the library can no longer notice when the daemon ends. So
    the session counts as switched off until the directory is back."""
    first = lib.attach_first()
    path = daemon.place.directory / "control"
    path.rename(path.with_name("hidden"))
    lib.attach_tick()
    assert lib.attach_is_off(first) and lib.attach_current() == first
    path.with_name("hidden").rename(path)
    lib.attach_tick()
    assert not lib.attach_is_off(first)


def test_a_daemon_that_was_killed_is_followed_by_the_next_one(daemon: Daemons, lib: Any) -> None:
    """The segments of a killed daemon still say that it serves. The process checks once a second
    whether another daemon has started."""
    first = lib.attach_first()
    lib.attach_tick()
    assert lib.attach_current() == first
    daemon.start()
    lib.attach_tick()
    assert lib.attach_current() != first and lib.attach_before(lib.attach_current()) == first


def test_a_foreign_tier_gives_no_copies(daemon: Daemons, lib: Any, tmp_path: Path) -> None:
    """A tier is foreign if its path leads to different directories in this process and in the
    daemon. No copy is taken from this process's directory, although its files may have the names of
    copies."""
    made = daemon.start()
    made.tiers = 1
    made.tier[0].path, made.tier[0].usable = bytes(tmp_path) + b"/", 1
    daemon.place.put("control", made)
    first = lib.attach_first()
    assert lib.attach_is_off(first)
    lib.attach_tick()
    assert lib.attach_is_off(first)


@settings(max_examples=examples(200))
@given(st.integers(0, 2**31 - 1), st.integers(-5, 5), st.integers(0, 1), st.integers(0, 1))
def test_the_latest_look_counts(lib: Any, look: int, by: int, was: int, off: int) -> None:
    """From time to time, threads check whether the library is switched off. A thread stores the
    result of its check, unless the result of a later check is already stored. The number that
    counts the checks may overflow."""
    before, now = look << 1 | was, (look + by) % 2**31 << 1
    expected = now | off if by > 0 else before
    assert lib.attach_end_look(before, now, off) == expected


def test_attributes_are_those_of_fstat(lib: Any, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1234)
    os.link(path, tmp_path / "g")
    os.utime(path, ns=(1, 987654321012345678))
    for one in (path, tmp_path, Path("/dev/null"), Path("/proc/self/status")):
        fd = os.open(one, os.O_RDONLY)
        assert lib.attach_has_attributes(fd)
        os.close(fd)
    assert lib.attach_has_attributes(-1)
