"""Tests the calls that open files: the changes that the library records before and after each call,
and the file that a path opens."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi
from csrc.units.place import Place, open_descriptors, without_stdin
from csrc.units.serving import Served

from monarch_py.native import State
from monarch_py.native import ffi as native

AT_FDCWD = -100
SECOND = 10**9
READ, WRITE, BOTH = os.O_RDONLY, os.O_WRONLY, os.O_RDWR
CREATE, TRUNCATE, NOFOLLOW = os.O_CREAT, os.O_TRUNC, os.O_NOFOLLOW
PATH = os.O_PATH | os.O_CLOEXEC
NEEDS_MODE = [CREATE, CREATE | BOTH, os.O_TMPFILE | WRITE, CREATE | TRUNCATE]
NEEDS_NONE = [READ, WRITE, TRUNCATE, os.O_DIRECTORY, os.O_DIRECTORY | WRITE]
FD = 1000  # a descriptor that is not open


class Calls:
    def __init__(self, lib: Any) -> None:
        self.lib = lib

    def make(
        self, call: str, flags: int = 0, mode: int = 0, returned: int = FD, lacks: bool = False
    ) -> str:
        """Makes the call on the file `f` while libc's function is replaced by one that returns
        `returned`. Returns all steps. lacks: whether libc seems to lack the function."""
        done = self.lib.open_steps_of(call.encode(), flags, mode, returned, lacks)
        assert done == returned
        return self.steps()

    def steps(self) -> str:
        return os.fsdecode(ffi.string(self.lib.open_steps()))


@pytest.fixture
def alone(lib: Any) -> Calls:
    """There is no daemon."""
    return Calls(lib)


@pytest.fixture
def calls(lib: Any, session: Made) -> Calls:
    """There is a daemon without a source."""
    return Calls(lib)


def test_a_mode_is_passed_if_the_flags_need_one(alone: Calls) -> None:
    for flags in NEEDS_MODE:
        assert alone.make("open", flags, 0o640) == f"open -100 f {flags:o} 640"
        assert alone.make("openat", flags, 0o640) == f"openat 7 f {flags:o} 640"
    for flags in NEEDS_NONE:
        assert alone.make("open", flags, 0o640) == f"open -100 f {flags:o} 0"
        assert alone.make("openat", flags, 0o640) == f"openat 7 f {flags:o} 0"
    flags = CREATE | WRITE | TRUNCATE
    assert alone.make("creat", 0, 0o640) == f"open -100 f {flags:o} 640"


def test_a_fortified_open_without_its_mode_is_libcs_error(alone: Calls) -> None:
    """libc's fortified functions terminate a program that passes no mode where a mode is needed. If
    no mode is needed, or if libc lacks the fortified function, the library calls open or openat
    instead."""
    for flags in NEEDS_MODE:
        assert alone.make("__open_2", flags) == f"__open_2 -100 f {flags:o} 0"
        assert alone.make("__openat_2", flags) == f"__openat_2 7 f {flags:o} 0"
        assert alone.make("__open_2", flags, lacks=True).startswith("open -100 f ")
        assert alone.make("__openat_2", flags, lacks=True).startswith("openat 7 f ")
    for flags in NEEDS_NONE:
        assert alone.make("__open_2", flags) == f"open -100 f {flags:o} 0"
        assert alone.make("__openat_2", flags) == f"openat 7 f {flags:o} 0"


@pytest.mark.parametrize(("call", "at"), [("open", -100), ("openat", 7)])
def test_an_open_that_changes_a_file_is_recorded(calls: Calls, call: str, at: int) -> None:
    """A call that truncates a file is recorded before it is made, because the caller may be killed
    right after the call. An open that only creates a file changes no file that exists."""
    for flags, before, after in (
        (READ, "", ""), (WRITE, "", f", changed {FD} f"), (BOTH, "", f", changed {FD} f"),
        (BOTH | CREATE, "", f", changed {FD} created f"), (CREATE, "", f", made {FD}"),
        (TRUNCATE, f"file {at} f, ", f", changed {FD} f"),
        (TRUNCATE | CREATE, f"file {at} f, ", f", changed {FD} created f"),
        (WRITE | TRUNCATE | NOFOLLOW, f"file {at} f itself, ", f", changed {FD} f"),
    ):  # fmt: skip
        original = f"{call} {at} f {flags:o} {0o640 if flags & CREATE else 0:o}"
        assert calls.make(call, flags, 0o640) == before + original + after
        failed = -errno.ENOSPC
        assert calls.make(call, flags, 0o640, returned=failed) == before + original


def test_a_copy_that_was_opened_for_writing_is_closed_again(lib: Any, calls: Calls) -> None:
    """The path may be the name of a copy's descriptor. The library then closes the copy and opens
    the source's file, without O_CREAT, because this file exists. It also opens the source's file if
    the kernel has refused to open the copy for writing (EACCES)."""
    lib.open_leads_to_copy(1)
    try:
        for flags in (WRITE, WRITE | CREATE):
            mode = 0o640 if flags & CREATE else 0
            first, again = f"open -100 f {flags:o} {mode:o}", f"open -100 /real {WRITE:o} 0"
            changed = f"changed {FD}{' created' if flags & CREATE else ''} f"
            assert calls.make("open", flags, mode) == f"{first}, {changed}, close {FD}, {again}"
            refused = calls.make("open", flags, mode, returned=-errno.EACCES)
            assert refused == f"{first}, file -100 f, {again}"
            assert calls.make("open", flags, mode, returned=-errno.EPERM) == first
    finally:
        lib.open_leads_to_copy(0)
    assert calls.make("open", WRITE, returned=-errno.EACCES) == (
        f"open -100 f {WRITE:o} 0, file -100 f"
    )


@pytest.mark.parametrize(
    ("call", "original"),
    [("mkstemp", "mkstemp -100 f 0 0"), ("mkostemp", "mkostemp -100 f 2000000 0"),
     ("mkstemps", "mkstemps -100 f 0 3"), ("mkostemps", "mkostemps -100 f 2000000 3")],
)  # fmt: skip
def test_a_temporary_file_is_a_new_name(calls: Calls, call: str, original: str) -> None:
    assert calls.make(call, os.O_CLOEXEC) == f"{original}, changed {FD} created f"
    assert calls.make(call, os.O_CLOEXEC, returned=-errno.ENOSPC) == original


def test_openat2_records_what_it_changes(calls: Calls) -> None:
    """A call that truncates a file is recorded before it is made, because the caller may be killed
    right after the call."""
    for flags in (READ, os.O_DIRECTORY, NOFOLLOW):
        assert calls.make("openat2", flags) == f"openat2 7 f {flags:o} 30"
    for flags, before, after in (
        (WRITE, "", f", changed {FD} f"), (BOTH | CREATE, "", f", changed {FD} created f"),
        (TRUNCATE, "file 7 f, ", f", changed {FD} f"),
        (WRITE | TRUNCATE | NOFOLLOW, "file 7 f itself, ", f", changed {FD} f"),
    ):  # fmt: skip
        original = f"openat2 7 f {flags:o} 30"
        assert calls.make("openat2", flags) == before + original + after
        assert calls.make("openat2", flags, returned=-errno.ENOSPC) == before + original


def test_only_flags_that_the_caller_has_given_are_read(calls: Calls) -> None:
    """If the structure that the caller passes to openat2 is too short to contain the flags, the
    library reads no flags from it, and leaves the error to the kernel."""
    flags = WRITE | TRUNCATE
    assert calls.make("openat2 short", flags) == f"openat2 7 f {flags:o} 7"
    assert calls.make("openat2 flags", flags).startswith("file 7 f, openat2 ")
    assert calls.make("openat2 none").startswith("openat2 7 f ")


def test_an_older_libc_has_no_openat2(calls: Calls) -> None:
    for flags, before in ((READ, ""), (WRITE, ""), (TRUNCATE, "file 7 f")):
        assert calls.lib.open_steps_of(b"openat2", flags, 0, FD, 1) == -errno.ENOSYS
        assert calls.steps() == before


def test_a_file_that_is_truncated_by_its_handle_is_recorded_first(calls: Calls) -> None:
    """The library first opens the handle with O_PATH, to find out which file will be truncated."""
    path = f"open_by_handle_at 7 h {PATH:o} 0"
    for flags in (READ, os.O_DIRECTORY):
        assert calls.make("open_by_handle_at", flags) == f"open_by_handle_at 7 h {flags:o} 0"
    for flags in (WRITE, BOTH):
        original = f"open_by_handle_at 7 h {flags:o} 0"
        assert calls.make("open_by_handle_at", flags, returned=-errno.ENOSPC) == original
        assert calls.lib.open_steps_of(b"open_by_handle_at", flags, 0, FD, 0) == -9999, "EIO is set"
        assert calls.steps() == f"{original}, changed {FD}"
    for flags in (TRUNCATE, WRITE | TRUNCATE):
        original = f"open_by_handle_at 7 h {flags:o} 0"
        calls.lib.open_steps_of(b"open_by_handle_at", flags, 0, FD, 0)
        assert calls.steps() == f"{path}, changed {FD}, {original}, changed {FD}"
        assert calls.make("open_by_handle_at", flags, returned=-errno.ENOSPC) == (
            f"{path}, changed -1, {original}"
        )


def test_the_descriptor_by_which_a_handles_file_was_found_is_closed(calls: Calls) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    calls.lib.open_steps_of(b"open_by_handle_at", TRUNCATE, 0, fd, 0)
    assert str(fd) not in open_descriptors()


def test_a_spawned_child_opens_the_sources_file_for_writing(calls: Calls) -> None:
    """If the path of a spawn action leads to a copy, the library replaces this path by the path of
    the source's file. It does so when the action is added, before the child exists."""
    for flags in (READ, os.O_DIRECTORY):
        assert calls.make("addopen", flags, 0o600) == f"addopen 7 f {flags:o} 600"
    for flags in (WRITE, CREATE, TRUNCATE):
        assert calls.make("addopen", flags, 0o600) == (
            f"file -100 f, addopen 7 /real {flags:o} 600"
        )
    assert calls.make("addopen", WRITE | NOFOLLOW).startswith("file -100 f itself, ")


# --- which file a path opens --------------------------------------------------------------------


class Files:
    """A source with the file f and the link l to it, and a copy of f with other content."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.file, self.link = lib, root / "f", root / "l"
        root.mkdir()
        tier.mkdir(mode=0o700)
        self.file.write_bytes(b"source")
        self.link.symlink_to("f")
        self.served = Served(lib, place, root, tier)
        self.copy = self.served.publish("f", b"copied")

    def open(
        self, path: Path | str, flags: int = READ, mode: int = 0o600, dir_fd: int = AT_FDCWD
    ) -> int:
        fd = int(self.lib.open_file(dir_fd, os.fsencode(path), flags, mode))
        assert fd != -9999, "errno is left alone"
        return fd

    def read(self, path: Path | str, flags: int = READ, dir_fd: int = AT_FDCWD) -> bytes | int:
        """Opens the path. Returns what is read through the descriptor, or -errno."""
        fd = self.open(path, flags, dir_fd=dir_fd)
        if fd < 0:
            return fd
        try:
            return os.read(fd, 100)
        finally:
            os.close(fd)


@pytest.fixture
def files(lib: Any, place: Place, tmp_path: Path) -> Iterator[Files]:
    lib.track_forget()
    lib.backing_forget()
    before = open_descriptors()
    one = Files(lib, place, tmp_path / "data", tmp_path / "tier")
    yield one
    one.served.end()
    lib.track_forget()
    assert open_descriptors() == before


def test_a_reader_gets_the_copy_if_there_is_one(files: Files) -> None:
    fd = os.open(files.file.parent, os.O_RDONLY)
    for path, dir_fd in ((files.file, AT_FDCWD), (files.link, AT_FDCWD), ("f", fd), ("l", fd)):
        assert files.read(path, dir_fd=dir_fd) == b"copied"
    os.close(fd)
    assert files.read(files.link, NOFOLLOW) == -errno.ELOOP
    assert files.read(files.file, os.O_DIRECTORY) == -errno.ENOTDIR
    assert files.read(files.file.with_name("none")) == -errno.ENOENT


@pytest.mark.parametrize("case", ["removed", "absent", "bypass", "off", "changed", "no directory"])
def test_a_reader_gets_the_source_if_the_copy_cannot_be_opened(files: Files, case: str) -> None:
    if case == "removed":
        files.copy.unlink()
    elif case == "absent":
        files.served.entry("f").word = State.ABSENT
        files.served.control.fill_on_open = 0
    elif case == "bypass":
        files.served.entry("f").word = State.BYPASS
    elif case == "off":
        files.served.control.off = 1
    elif case == "changed":
        files.served.known.mark_changed(files.file)
    else:
        files.served.control.tier[0].path = os.fsencode(files.file.parent / "none/")
    directory = os.open(files.file.parent, os.O_RDONLY)
    for path in ("f", "l"):
        assert files.read(files.file.with_name(path)) == b"source"
        assert files.read(path, dir_fd=directory) == b"source"
    os.close(directory)


@pytest.mark.parametrize(
    "flags", [WRITE, BOTH, WRITE | TRUNCATE, WRITE | CREATE, os.O_APPEND | BOTH]
)
def test_a_writer_gets_the_source(files: Files, flags: int) -> None:
    """A writer gets the source's file even if the path is the name of a copy's descriptor.
    Afterwards, readers get the source's file too."""
    fd = files.open(files.file)
    for path in (files.file, f"/proc/self/fd/{fd}"):
        written = files.open(path, flags)
        assert written >= 0
        assert os.fstat(written).st_ino == files.file.stat().st_ino
        assert files.copy.read_bytes() == b"copied"
        os.close(written)
    assert files.file.stat().st_size == (0 if flags & TRUNCATE else 6)
    assert files.read(files.file) == (b"" if flags & TRUNCATE else b"source")
    os.close(fd)


def test_a_copys_descriptor_is_opened_again_as_the_sources_path(files: Files) -> None:
    fd = files.open(files.file)
    again = f"/proc/self/fd/{fd}"
    assert files.read(again) == b"copied"
    files.copy.unlink()
    assert files.read(again) == b"source"
    os.close(fd)


def test_an_open_that_creates_nothing_changes_nothing(files: Files) -> None:
    """If the file exists, an open for reading with O_CREAT gets the source's file, and the copy
    stays valid. A new file gets the mode that the program has passed."""
    assert files.read(files.file, CREATE) == b"source"
    assert files.read(files.file) == b"copied"
    new = files.open(files.file.with_name("new"), CREATE | os.O_EXCL)
    assert new >= 0 and os.fstat(new).st_mode & 0o777 == 0o600
    os.close(new)
    assert files.read(files.file, CREATE | os.O_EXCL) == -errno.EEXIST


class Counted:
    """The library's counts. `changes` returns what the library has counted since `changes` was last
    called."""

    def __init__(self, files: Files) -> None:
        self.files, self.clients = files, files.served.clients
        self.before = self._sums()

    def _sums(self) -> dict[str, int]:
        names = ("hits", "misses", "bytes_from_tier", "bytes_from_source", "source_opens")
        return {name: sum(int(getattr(one, name)) for one in self.clients.stats) for name in names}

    def changes(self) -> dict[str, int]:
        before, self.before = self.before, self._sums()
        return {name: n - before[name] for name, n in self.before.items() if n != before[name]}


SIZE = len(b"source")
OF_COPY = {"hits": 1, "bytes_from_tier": SIZE}
OF_SOURCE = {"misses": 1, "bytes_from_source": SIZE, "source_opens": 1}


def test_each_open_is_counted_once(files: Files) -> None:
    """An open that fails, an open of a directory and an open with O_PATH are not counted. If the
    daemon follows the opens (`follow_opens`), it also learns which files were opened."""
    counted, opened = Counted(files), files.served.clients.opened
    files.read(files.file)
    assert counted.changes() == OF_COPY
    os.close(files.open(files.file, os.O_PATH))
    os.close(files.open(files.file.parent.parent))
    assert files.open(files.file.with_name("none")) == -errno.ENOENT
    assert counted.changes() == {}
    number = files.served.id("f")
    assert not opened.word[number // 64]
    files.served.control.follow_opens = 1
    for state, changes in ((State.PRESENT, OF_COPY), (State.BYPASS, OF_SOURCE)):
        entry = files.served.entry("f")
        entry.word = entry.word & ~15 | state
        opened.word[number // 64] = 0
        files.read(files.file)
        assert counted.changes() == changes and opened.word[number // 64] == 1 << number % 64
    files.file.unlink()
    assert files.read(files.file) == -errno.ENOENT
    assert counted.changes() == {}


def test_an_open_gets_the_copy_for_which_it_has_waited(files: Files) -> None:
    """An open that has waited for a copy counts as an open of the copy."""
    entry = files.served.entry("f")
    whole, address = int(entry.word), int(native.cast("uintptr_t", native.addressof(entry, "word")))
    entry.word = whole & ~15 | State.FILLING
    counted, lib = Counted(files), files.lib
    lib.progress_forget()
    lib.progress_took(SECOND // 4, SECOND // 4)
    lib.open_wait_note(1)
    lib.open_wait_completes(address, whole)
    try:
        for waits in (1, 2):
            with without_stdin():
                assert files.read(files.file) == b"copied"
            assert lib.open_wait_waits() == waits and counted.changes() == OF_COPY
            entry.word = whole & ~15 | State.FILLING
        files.copy.unlink()
        assert files.read(files.file) == b"source", "the copy was removed meanwhile"
        assert lib.open_wait_waits() == 3 and counted.changes() == OF_SOURCE
    finally:
        lib.open_wait_completes(0, 0)
        lib.progress_forget()
        lib.wait_forget()


def test_a_path_outside_the_sources_that_leads_into_one_gets_the_copy(files: Files) -> None:
    """At the first open, the library learns where the link outside the source leads. Even this open
    gets the copy. The source's file is opened instead if the flags require it, or if the entry of
    the file is being changed."""
    for name, flags, content, counts in (
        ("one", READ, b"copied", OF_COPY), ("two", os.O_NONBLOCK, b"copied", OF_COPY),
        ("three", os.O_DSYNC, b"source", {}),
    ):  # fmt: skip
        elsewhere = files.file.parent.parent / name
        elsewhere.symlink_to(files.file.parent)
        counted = Counted(files)
        for _ in range(3):
            assert files.read(elsewhere / "f", flags) == content, name
            assert counted.changes() == counts, name
    files.served.entry("f").version += 1
    elsewhere = files.file.parent.parent / "four"
    elsewhere.symlink_to(files.file.parent)
    assert files.read(elsewhere / "f") == b"source"


def test_descriptor_0_is_like_any_other(files: Files) -> None:
    """If a program has closed its standard input, its next open returns descriptor 0. The library
    treats this descriptor like any other."""
    with without_stdin():
        assert files.read(files.file) == b"copied"
        assert files.read(files.link) == b"copied"
        fd = files.open(files.file)
        assert fd == 0 and files.read("/proc/self/fd/0") == b"copied"
        os.close(fd)
        assert files.read(files.file, CREATE) == b"source"
        files.served.entry("f").word += 1 << 12
        assert files.read(files.file) == b"source", "the entry names another copy"
        os.close(files.open(files.file, BOTH))
        fd = files.open(files.file.with_name("new"), CREATE | os.O_EXCL | WRITE)
        assert fd == 0
        os.close(fd)


def is_recorded(files: Files, path: Path) -> bool:
    """Returns whether the library has recorded that the file has changed."""
    found = path.stat()
    return bool(files.lib.watch_is_changed(files.served.s, found.st_dev, found.st_ino))


def test_with_metadata_from_the_source_each_open_compares_the_file(files: Files) -> None:
    """If the file has changed, no open gets the copy any more. Readers get the file's new
    version."""
    files.served.control.metadata_cached = 0
    counted = Counted(files)
    for path in (files.file, files.link):
        assert files.read(path) == b"copied"
    assert files.read(files.file, NOFOLLOW) == b"copied"
    assert files.read(files.link, NOFOLLOW) == -errno.ELOOP
    assert counted.changes() == {name: 3 * n for name, n in OF_COPY.items()}
    assert not is_recorded(files, files.file)
    files.file.write_bytes(b"changed")
    assert files.read(files.link) == b"changed"
    assert is_recorded(files, files.file)


def test_a_file_that_is_gone_is_not_replaced_by_its_copy(files: Files) -> None:
    files.served.control.metadata_cached = 0
    files.file.rename(files.file.with_name("other"))
    assert files.read(files.file) == -errno.ENOENT
    assert is_recorded(files, files.file.with_name("other"))


def test_only_the_owner_may_leave_the_time_of_access(files: Files) -> None:
    """Only a file's owner may open the file with O_NOATIME. The copy belongs to the caller, so an
    open of the copy would succeed even if the caller does not own the source's file. Therefore, the
    copy is opened only if the caller owns the file according to the catalog."""
    flags, counted = os.O_NOATIME, Counted(files)
    assert files.read(files.file, flags) == b"copied" and counted.changes() == OF_COPY
    files.served.entry("f").uid += 1
    assert files.read(files.file) == b"copied" and counted.changes() == OF_COPY
    found = files.read(files.file, flags)
    assert found == (b"source" if os.geteuid() == files.file.stat().st_uid else -errno.EPERM)


@pytest.mark.parametrize("flags", [os.O_DSYNC, os.O_SYNC])
def test_an_open_with_a_flag_that_the_library_uses_itself_gets_the_source(
    files: Files, flags: int
) -> None:
    assert files.read(files.file, flags) == b"source"


def test_the_flags_of_an_open_reach_the_copy(files: Files) -> None:
    for flags in (READ, os.O_CLOEXEC, os.O_NONBLOCK, os.O_NOCTTY, NOFOLLOW):
        fd = files.open(files.file, flags)
        assert os.fstat(fd).st_ino == files.copy.stat().st_ino
        assert files.lib.descriptors_fcntl(fd, fcntl.F_GETFL, 0) & flags == flags & ~(
            os.O_CLOEXEC | os.O_NOCTTY
        )
        assert fcntl.fcntl(fd, fcntl.F_GETFD) == bool(flags & os.O_CLOEXEC)
        os.close(fd)
