"""Tests the decisions of autostart: whether a daemon is wanted, and whether a start is allowed."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import resource
import signal
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi
from csrc.units.place import Place, control, is_open, open_descriptors, without_stdin
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.native import SessionState

SECOND = 10**9
WITHIN, APART, UNNEEDED = 600 * SECOND, 5 * SECOND, 60 * SECOND
UNKNOWN, NO, YES = range(3)
FIRST_LINE = "monarch autostart 1"

# --- the claim ----------------------------------------------------------------------------------


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, APART, UNNEEDED, WITHIN]), st.integers(-2, 2), st.booleans()),
        min_size=3,
        max_size=3,
    )
)
def test_three_starts_are_allowed_in_ten_minutes(
    lib: Any, past: list[tuple[int, int, bool]]
) -> None:
    """At most three starts are allowed in ten minutes, and two starts are at least five seconds
    apart. A start that turned out to be unneeded counts for only one minute, and the next start may
    follow it at once. A start whose time lies in the future was made before the last boot, and does
    not count."""
    now = 10_000 * SECOND
    starts = [(now - ago + by) & ~1 | odd for ago, by, odd in past]
    counts = [s + (UNNEEDED if s & 1 else WITHIN) if s <= now else 0 for s in starts]
    until = max([min(counts), *(s + APART for s in starts if s <= now and not s & 1)])
    first = ffi.new("int *")
    assert lib.claim_starts() == 3
    assert lib.claim_taken(starts, now, first) == (until if until > now else 0)
    assert counts[first[0]] == min(counts) and first[0] == counts.index(min(counts))
    assert lib.claim_taken([0, 0, 0], now, first) == 0


def claim(lib: Any) -> tuple[int, int]:
    errors = ffi.new("int *", -7)
    return int(lib.claim_start(errors)), int(errors[0])


@pytest.fixture
def closing() -> Iterator[None]:
    """Closes the descriptors that a claim leaves open. The library does not close them, because the
    process that takes the claim becomes the starter."""
    before = open_descriptors()
    yield
    for fd in open_descriptors() - before:
        os.close(int(fd))


@pytest.mark.usefixtures("closing")
def test_the_claim_is_a_lock_and_a_time(lib: Any, place: Place) -> None:
    """A successful claim of a start returns a descriptor of the locked file `starts` and a
    descriptor of the log. Every descriptor that the claim opens is closed on exec. Only this user
    can access the files."""
    assert lib.claim_taken_until() == 0
    before = open_descriptors()
    start = lib.shared_now()
    fd, errors = claim(lib)
    assert fd >= 0 and errors >= 0
    for one in open_descriptors() - before:
        assert fcntl.fcntl(int(one), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert fcntl.fcntl(errors, fcntl.F_GETFL) & os.O_APPEND
    for path, mode in ((place.directory, 0o700), (place.directory.parent, 0o700)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    for name in ("starts", "log"):
        assert stat.S_IMODE((place.directory / name).stat().st_mode) == 0o600
    assert os.readlink(f"/proc/self/fd/{errors}") == str(place.directory / "log")
    times = struct.unpack("3Q", (place.directory / "starts").read_bytes())
    assert start - 1 <= times[0] <= lib.shared_now() and times[0] % 2 == 0
    assert times[1:] == (0, 0)
    assert lib.claim_taken_until() == times[0] + APART
    os.close(fd)
    assert claim(lib)[0] == -1, "five seconds have not passed"


@pytest.mark.usefixtures("closing")
def test_one_starter_at_a_time_has_the_claim(lib: Any, place: Place) -> None:
    place.put("starts", b"")
    with (place.directory / "starts").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert claim(lib)[0] == -1
    assert (place.directory / "starts").read_bytes() == b""
    assert claim(lib)[0] >= 0


def test_times_that_others_could_have_written_do_not_count(lib: Any, place: Place) -> None:
    now = lib.shared_now() & ~1
    for mode, is_taken in ((0o600, True), (0o620, False), (0o604, False)):
        place.put("starts", ffi.new("uint64_t[3]", [now, now, now]), mode)
        assert (lib.claim_taken_until() > 0) == is_taken
    assert lib.claim_taken_until() == 0


@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize("what", ["link", "open_directory", "file", "open_file", "no_file"])
def test_a_place_that_others_could_have_made_is_refused(
    lib: Any, place: Place, tmp_path: Path, what: str
) -> None:
    """The library claims no start in a directory or file that another user may have made, because
    that user could choose where the daemon writes."""
    user = place.directory.parent
    if what == "link":
        (tmp_path / "there").mkdir(mode=0o700)
        user.symlink_to(tmp_path / "there")
    elif what == "open_directory":
        user.mkdir()
        user.chmod(0o710)
    elif what == "file":
        user.touch(mode=0o700)
    elif what == "open_file":
        place.put("starts", b"", 0o640)
    else:
        place.put("other", b"")
        (place.directory / "starts").mkdir()
    assert claim(lib) == (-1, -7)
    assert not (tmp_path / "there").exists() or not any((tmp_path / "there").iterdir())
    before = open_descriptors()
    if what in ("open_directory", "file"):
        assert lib.claim_makes_directory(bytes(user)) < 0
        assert open_descriptors() <= before


# --- the record ---------------------------------------------------------------------------------


class Records:
    """The session's file `autostart`, which contains records. The methods write this file, and read
    it like a process with the configuration `config` and the mount namespace `mounts`."""

    def __init__(self, lib: Any, place: Place, config: str = "/c", mounts: int = 7) -> None:
        self.lib, self.place, self.config, self.mounts = lib, place, config, mounts
        self.text = ffi.new("char[]", 40000)

    def read(self, *records: list[str]) -> int:
        lines = [FIRST_LINE, *(line for record in records for line in [*record, "end"])]
        return self.read_text("\n".join(lines) + "\n")

    def read_text(self, text: str) -> int:
        self.place.put("autostart", text.encode())
        return int(self.lib.record_read(self.text, self.config.encode(), self.mounts))

    def has(self, path: str) -> bool:
        return bool(self.lib.record_has(self.text, path.encode()))


@pytest.fixture
def records(lib: Any, place: Place) -> Records:
    return Records(lib, place)


RECORD = ["config /c", "mounts 7", "wish yes", "source /data"]


def test_a_record_holds_only_in_its_own_setting(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record in the file `autostart` holds only while its configuration, mount namespace, files
    and environment variables are the same as when it was written."""
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.write_text("content")
    now = there.stat()
    monkeypatch.setenv("MADE_SET", "a=b")
    monkeypatch.setenv("MADE_EMPTY", "")
    monkeypatch.delenv("MADE_UNSET", raising=False)
    facts = {
        f"file {now.st_ino} {now.st_size} {now.st_mtime_ns} {there}": [
            f"file {now.st_ino + 1} {now.st_size} {now.st_mtime_ns} {there}",
            f"file {now.st_ino} {now.st_size + 1} {now.st_mtime_ns} {there}",
            f"file {now.st_ino} {now.st_size} {now.st_mtime_ns + 1} {there}",
            f"file 0 0 0 {there}",
        ],
        f"file 0 0 0 {gone}": [f"file {now.st_ino} {now.st_size} {now.st_mtime_ns} {gone}"],
        "value MADE_SET=a=b": ["value MADE_SET=a", "value MADE_SET=", "value MADE_SET"],
        "value MADE_EMPTY=": ["value MADE_EMPTY", "value MADE_EMPTY=x"],
        "value MADE_UNSET": ["value MADE_UNSET=", "value MADE_UNSET=a"],
        "config /c": ["config /b", "config /d", "config /c/"],
        "mounts 7": ["mounts 6", "mounts 8", "mounts 70"],
    }
    for wish in ("yes", "no"):
        whole = [*facts, f"wish {wish}", "source /data"]
        expected = YES if wish == "yes" else NO
        assert records.read(whole) == expected
        assert records.read([*whole, "later /what/is/new"]) == expected
        for i, others in enumerate(facts.values()):
            for other in others:
                differs = [*whole[:i], other, *whole[i + 1 :]]
                assert records.read(differs) == UNKNOWN, other
                assert records.read(differs, whole) == expected, other


def test_the_first_record_of_the_setting_counts(records: Records) -> None:
    """If several records in the file `autostart` match the process's setting, only the first one
    counts. The sources that this record names are the sources of the configuration."""
    other = ["config /d", "wish yes", "source /other"]
    refused = ["config /c", "source /refused"]
    assert records.read(other, RECORD, refused) == YES
    assert records.has("/data/x") and not records.has("/other/x") and not records.has("/refused/x")
    assert records.read(other, refused, RECORD) == NO
    assert records.has("/refused/x")
    assert records.read(other, other) == UNKNOWN
    assert records.read() == UNKNOWN


def test_a_file_is_of_a_source_if_it_lies_below_it(records: Records) -> None:
    assert records.read([*RECORD, "source /more/data"]) == YES
    for path in ("/data/x", "/data/x/y", "/more/data/x", "/data/"):
        assert records.has(path)
    for path in ("/data", "/dat/x", "/datax", "/datax/y", "/more/x", "/more/data", "/x/data/y", ""):
        assert not records.has(path)


def test_a_record_that_is_not_whole_is_none(records: Records) -> None:
    """A record in the file `autostart` may be incomplete because another process is still writing
    it, or because the disk was full. An incomplete record does not count."""
    whole = "\n".join([FIRST_LINE, *RECORD, "end"]) + "\n"
    assert records.read_text(whole) == YES
    for n in range(len(whole)):
        assert records.read_text(whole[:n]) == UNKNOWN, n
    for text in (
        whole.replace("autostart 1", "autostart 2"),
        whole.replace("\nend", "\nxend"),
        whole.replace("wish", "wi\0sh"),
        whole + "end",
        whole + "more\n",
        whole[1:],
    ):
        assert records.read_text(text) in (UNKNOWN, YES) and (
            records.read_text(text) == UNKNOWN or "\0" in text
        )
    for n, expected in ((32767, YES), (32768, UNKNOWN)):
        fill = "value A".ljust(n - len(whole) - 1, "A")
        assert records.read_text(whole.replace("wish", f"{fill}\nwish")) == expected
    (records.place.directory / "autostart").unlink()
    assert records.lib.record_read(records.text, b"/c", 7) == UNKNOWN


# --- whether a start is wanted --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "has"),
    [("autostart: true", 1), ("x\n  autostart", 1), ("autostar", 0), ("aautostart", 1),
     ("autoautostart", 1), ("autostaxautostart", 1), ("autostarautostart", 1), ("auto start", 0),
     ("", 0), ("AUTOSTART", 0), ("start", 0), ("utostart", 0)],
)  # fmt: skip
def test_the_word_is_searched_in_a_configuration(
    lib: Any, tmp_path: Path, text: str, has: int
) -> None:
    path = tmp_path / "c"
    path.write_text(text)
    assert lib.autostart_has_word(bytes(path)) == has


def test_only_the_beginning_of_a_regular_file_is_searched(lib: Any, tmp_path: Path) -> None:
    path = tmp_path / "c"
    before = open_descriptors()
    for n, has in ((0, 1), (2040, 1), (65536 - 9, 1), (65536 - 8, 0)):
        path.write_text(" " * n + "autostart")
        assert lib.autostart_has_word(bytes(path)) == has, n
    assert lib.autostart_has_word(ffi.NULL) == 0
    assert lib.autostart_has_word(bytes(tmp_path)) == 0
    assert lib.autostart_has_word(bytes(tmp_path / "none")) == 0
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    ("path", "is_systems"),
    [("/usr/lib/x", 1), ("/usr", 0), ("/usrlocal/x", 0), ("/lib/x", 1), ("/lib32/x", 1),
     ("/lib64/x", 1), ("/libx32/x", 1), ("/library/x", 0), ("/bin/x", 1), ("/sbin/x", 1),
     ("/etc/x", 1), ("/proc/1", 1), ("/sys/x", 1), ("/dev/shm/x", 1), ("/data/usr/x", 0),
     ("/home/x", 0), ("pipe:[123]", 1), ("", 1), ("/", 0)],
)  # fmt: skip
def test_no_dataset_lies_in_a_directory_of_the_system(lib: Any, path: str, is_systems: int) -> None:
    assert lib.autostart_is_the_systems(path.encode()) == is_systems


@pytest.mark.parametrize(
    ("named", "lacks"),
    [("", 0), ("/a", 0), ("/b/b", 0), ("/alias", 0), ("/a:/b/b", 0), ("/b/b:/a:/alias", 0),
     ("/a:", 0), ("/c", 1), ("/a:/c", 1), ("/c:/a", 1), ("/a/", 1), ("/b", 1), ("/b/b/b", 1),
     ("/al", 1), ("/aliases", 1), ("/a::/a", 1)],
)  # fmt: skip
def test_a_daemon_is_told_of_a_source_that_it_lacks(
    lib: Any, session: Made, named: str, lacks: int
) -> None:
    session.control.sources = 2
    for source, path, alias in zip(session.control.source, (b"/a", b"/b/b"), (b"/alias", b"/x"),
                                   strict=False):  # fmt: skip
        source.path, source.path_len = path, len(path)
        source.alias, source.alias_len = alias, len(alias)
    session.control.source[2].path, session.control.source[2].path_len = b"/c", 2
    assert lib.autostart_lacks_source(session.s, named.encode()) == lacks
    assert not lib.autostart_lacks_source(session.s, ffi.NULL)


# --- starts ---------------------------------------------------------------------------------------


class Program:
    """Acts as a program of a job, in the test's process. Counts the requests to start a daemon."""

    def __init__(self, lib: Any, place: Place, data: Path) -> None:
        self.lib, self.place, self.data = lib, place, data

    def load(self, session: Made | None = None) -> bool:
        s = session.s if session else ffi.NULL
        return bool(self.lib.autostart_init(bytes(self.place.config), s))

    def opens(self, path: Path | None = None) -> int:
        """Ends the pause that follows an attempt to start a daemon, and opens a file. Returns the
        number of daemon starts that this open requests."""
        self.lib.autostart_end_pause()
        before, signals = self.lib.autostart_launches(), blocked()
        fd = os.open(path or self.data, os.O_RDONLY)
        try:
            return int(self.lib.autostart_opened(fd) - before)
        finally:
            os.close(fd)
            assert blocked() == signals

    def record(self, *lines: str) -> None:
        mounts = Path("/proc/self/ns/mnt").stat().st_ino
        text = [FIRST_LINE, f"config {self.place.config}", f"mounts {mounts}", *lines, "end", ""]
        self.place.put("autostart", "\n".join(text).encode())


def blocked() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))


@pytest.fixture
def program(
    lib: Any, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    for name in ("AUTOSTART", "SOURCE", "SITE_CONFIG"):
        monkeypatch.delenv(f"MONARCH_{name}", raising=False)
    place.config.write_text("autostart: true\n")
    data = tmp_path / "data"
    data.mkdir()
    (data / "f").write_text("x")
    before = open_descriptors()
    yield Program(lib, place, data / "f")
    lib.autostart_init(b"/none", ffi.NULL)
    lib.autostart_leave(ffi.NULL)
    assert open_descriptors() <= before


def test_the_first_open_of_a_dataset_asks_for_a_daemon(program: Program, tmp_path: Path) -> None:
    assert program.load()
    assert program.opens(Path("/etc/passwd")) == 0
    assert program.opens(program.data.parent) == 0, "a directory"
    assert program.opens() == 1
    arguments = [os.fsdecode(ffi.string(program.lib.autostart_argument(i))) for i in (1, 2, 5, 6)]
    assert arguments == ["-I", "-c", str(program.place.config), str(program.data)]
    assert program.lib.autostart_argument(7) == ffi.NULL
    assert program.opens() == 1


def test_attempts_are_a_fifth_of_a_second_apart(lib: Any, program: Program) -> None:
    program.load()
    assert program.opens() == 1
    with program.data.open("rb") as file:
        assert lib.autostart_opened(file.fileno()) == 1
        assert lib.autostart_opened(-1) == 1
    assert 0 < lib.autostart_end_pause() <= 200_000_000
    lib.autostart_set_running(1)
    assert program.opens() == 0, "the last launch has not ended"
    assert 0 < lib.autostart_end_pause() <= 200_000_000
    lib.autostart_set_running(0)
    assert program.opens() == 1


@pytest.mark.parametrize(
    ("word", "asked", "record", "is_on"),
    [(True, None, None, True), (False, None, None, False), (False, "1", None, True),
     (True, "0", None, False), (True, "", None, True), (False, "", None, False),
     (False, None, "yes", True), (False, None, "no", False), (False, "1", "no", True),
     (False, "0", "yes", False), (False, None, "other", False), (True, None, "other", True),
     (False, "1", "other", True)],
)  # fmt: skip
def test_a_daemon_is_started_if_the_user_wants_one(
    program: Program, monkeypatch: pytest.MonkeyPatch,
    word: bool, asked: str | None, record: str | None, is_on: bool,
) -> None:  # fmt: skip
    """If MONARCH_AUTOSTART has a value, it decides whether daemons are started. Otherwise a record
    in the file `autostart` decides, if there is one for the process's setting. Without such a
    record, the word `autostart` in the configuration decides."""
    program.place.config.write_text("autostart" if word else "manual")
    if asked is not None:
        monkeypatch.setenv("MONARCH_AUTOSTART", asked)
    if record:
        setting = ["value PATH=other"] if record == "other" else []
        program.record(*setting, f"wish {record}", f"source {program.data.parent}")
    assert program.load() == is_on
    assert program.opens() == is_on


def test_a_site_may_want_daemons(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.place.config.write_text("")
    (tmp_path / "site").write_text("autostart")
    monkeypatch.setenv("MONARCH_SITE_CONFIG", str(tmp_path / "site"))
    assert program.load()


def test_a_record_names_the_files_that_ask_for_a_daemon(program: Program, tmp_path: Path) -> None:
    program.record("wish yes", f"source {program.data.parent}")
    other = tmp_path / "other"
    other.touch()
    assert program.load()
    assert [program.opens(other), program.opens()] == [0, 1]


def test_a_record_that_was_made_meanwhile_counts(program: Program, tmp_path: Path) -> None:
    """After the library was loaded into this process, a starter of another process may read the
    configuration and write a record. This process then follows the record."""
    other = tmp_path / "other"
    other.touch()
    assert program.load()
    program.record("wish yes", f"source {program.data.parent}")
    assert [program.opens(other), program.opens()] == [0, 1]
    assert program.load()
    (program.place.directory / "autostart").unlink()
    assert program.load()
    program.record("wish no")
    assert program.opens() == 0 and not program.lib.autostart_is_on()


def test_a_daemon_that_serves_is_not_started_again(
    program: Program, session: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a daemon serves, no second daemon is started, even if this process is not attached to
    the serving daemon yet. If a user has stopped the session's daemon, the session gets no new
    daemon. If the daemon was killed, the session gets a new one."""
    monkeypatch.setenv("MONARCH_AUTOSTART", "1")
    session.control.pids = 0
    assert program.load(session)
    assert program.opens() == 0
    session.control.state = SessionState.CLOSED
    assert program.opens() == 1
    found = program.place.put("control", control()).stat()
    assert program.opens() == 0, "another daemon serves"
    program.lib.autostart_of(session.s, found.st_dev, found.st_ino)
    assert program.opens() == 1, "that is this session's"
    for dev, ino in ((found.st_dev + 1, found.st_ino), (found.st_dev, found.st_ino + 1)):
        program.lib.autostart_of(session.s, dev, ino)
        assert program.opens() == 0
    closed = control()
    closed.state = SessionState.CLOSED
    program.place.put("control", closed)
    assert program.opens() == 1
    program.place.put("control", bytes(ffi.buffer(ffi.new("char[100]"))))
    assert program.opens() == 1
    program.place.put("stopped", b"")
    assert program.opens() == 1
    program.place.put("stopped", b"x")
    assert program.opens() == 0
    program.lib.autostart_leave(ffi.NULL)
    assert program.opens() == 1, "this process was never attached to the daemon that was stopped"


def test_a_claim_that_is_taken_is_waited_for(lib: Any, program: Program) -> None:
    """If a new start is not allowed yet, because the last start is too recent, the process tries
    again after one second at most. It does not wait until APART is over: if the last start turns
    out to be unneeded, a new start is allowed at once."""
    program.load()
    now = lib.shared_now()
    for ago, low, high in ((APART - SECOND // 2, 0, SECOND // 2), (0, SECOND // 2, SECOND)):
        program.place.put("starts", ffi.new("uint64_t[3]", [(now - ago) & ~1, 0, 0]))
        assert program.opens() == 0
        assert low < lib.autostart_end_pause() <= high
    program.place.put("starts", ffi.new("uint64_t[3]", [(now - APART) & ~1, 0, 0]))
    assert program.opens() == 1


@pytest.mark.parametrize("which", range(8))
def test_a_process_that_was_confined_since_it_was_loaded_starts_none(
    lib: Any, program: Program, which: int
) -> None:
    """The namespaces, root directory, capabilities or ids of this process have changed since it
    loaded the library. A daemon that it starts would inherit them and would be of little use to
    other processes. So the process starts no daemon, and never tries again."""
    program.load()
    differs = lib.autostart_loaded(which) if which < 6 else lib.autostart_ids(which - 6)
    differs[0] += 1
    assert program.opens() == 0
    assert not lib.autostart_is_on()


def test_a_process_that_adopts_orphans_starts_none(lib: Any, program: Program) -> None:
    libc = ctypes.CDLL(None)
    before = ctypes.c_int()
    libc.prctl(37, ctypes.byref(before), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    libc.prctl(36, 1, 0, 0, 0)
    try:
        program.load()
        assert program.opens() == 0
        assert not lib.autostart_is_on()
    finally:
        libc.prctl(36, before.value, 0, 0, 0)


def test_a_start_waits_for_signals_and_descriptors(lib: Any, program: Program) -> None:
    """No daemon is started while a signal is blocked that was not blocked at load, because a
    handler of the signal may be running. No daemon is started while no descriptor is free, because
    the library then cannot examine the process."""
    program.load()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        assert program.opens() == 0
        assert lib.autostart_is_on()
        program.load()
        assert program.opens() == 1, "it was blocked at load already"
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert program.opens() == 1
    with program.data.open("rb") as file:
        lib.autostart_end_pause()
        first = next(n for n in itertools.count() if not is_open(n))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first, limits[1]))
        try:
            before = lib.autostart_launches()
            after = lib.autostart_opened(file.fileno())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert after == before
    assert lib.autostart_is_on() and program.opens() == 1


def test_one_thread_of_a_process_makes_the_attempt(lib: Any, program: Program) -> None:
    """A thread makes no attempt to start a daemon if another thread of the process has reserved the
    attempt. The other thread may do so even after the first thread has looked for a reservation and
    found none. In a forked child, a reservation by a thread of the parent does not count."""
    program.load()
    lib.autostart_take(os.getpid())
    assert program.opens() == 0
    lib.autostart_take_meanwhile(1)
    assert program.opens() == 0
    lib.autostart_take_meanwhile(0)
    assert program.opens() == 1
    lib.autostart_take(os.getpid() + 1)
    assert program.opens() == 1


def test_a_daemon_that_was_killed_is_replaced(
    lib: Any, program: Program, session: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon counts as killed if its process is gone, or if its heartbeat has not changed for ten
    seconds. For a daemon in another pid namespace, only the heartbeat counts."""
    monkeypatch.setenv("MONARCH_AUTOSTART", "1")
    pids = Path("/proc/self/ns/pid").stat().st_ino
    session.control.pids, session.control.pid = pids, os.getpid()
    lib.autostart_of(session.s, 1, 1)
    assert program.load(session)
    assert lib.autostart_watch(session.s) == 0
    dead = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(dead, 0)
    session.control.pid = dead
    session.control.pids = pids + 1
    assert lib.autostart_watch(session.s) == 0
    session.control.pids = 0
    assert lib.autostart_watch(session.s) == 0
    session.control.pids = pids
    assert lib.autostart_watch(session.s) == 1
    assert ffi.string(lib.autostart_argument(6)) == b""
    session.control.pid = os.getpid()
    for ago, more in ((9, 0), (10, 1)):
        lib.autostart_end_pause()
        lib.autostart_silent_for(session.s, ago * SECOND)
        before = lib.autostart_launches()
        assert lib.autostart_watch(session.s) - before == more
    lib.autostart_end_pause()
    session.control.heartbeat += 1
    assert lib.autostart_watch(session.s) == 2
    session.control.state = SessionState.CLOSED
    session.control.pid = dead
    assert lib.autostart_watch(session.s) == 2, "the daemon was stopped"


def test_at_load_a_daemon_is_started_only_if_one_is_needed(
    program: Program, session: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is a session at load, a start is needed in two cases: the session's daemon was
    killed, or that daemon lacks a source of this job."""
    pids = Path("/proc/self/ns/pid").stat().st_ino
    control = session.control
    control.pids, control.pid, control.sources = pids, os.getpid(), 1
    control.source[0].path, control.source[0].path_len = b"/data", 5

    def launched() -> int:
        is_on = program.load(session)
        assert is_on or not program.lib.autostart_launches()
        return int(program.lib.autostart_launches())

    assert launched() == 0
    assert not program.lib.autostart_is_planned(), "nothing shows that one may be needed"
    monkeypatch.setenv("MONARCH_SOURCE", "/data")
    assert launched() == 0
    monkeypatch.setenv("MONARCH_SOURCE", "/more")
    assert launched() == 1
    program.record("wish yes")
    assert launched() == 0, "this setting has a record, so the daemon has the setting's sources"
    dead = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(dead, 0)
    control.pid = dead
    assert launched() == 1


@pytest.mark.parametrize("text", ["", "autostart: true"])
def test_a_process_without_standard_input_keeps_descriptor_0_free(
    program: Program, text: str
) -> None:
    """A descriptor that the library opens for a moment may get the number 0. The outcome is the
    same as with any other number."""
    program.place.config.write_text(text)

    def found() -> tuple[bool, bool, int]:
        is_on = program.load()
        return is_on, bool(program.lib.autostart_is_planned()), program.opens() if is_on else 0

    for record in ((), ("wish yes",), ("wish no",)):
        program.record(*record)
        expected = found()
        with without_stdin():
            assert found() == expected
            assert not is_open(0), record


def test_the_starter_gets_the_environment_without_the_jobs_own(
    lib: Any, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starter does not get the variables that the job has set for preloaded libraries, Python
    and numbers of threads. It gets MONARCH_DISABLE=1, which switches the library off."""
    own = [
        "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHON", "OMP_X", "GOMP_X", "KMP_X",
        "MKL_X", "MONARCH_DISABLE",
    ]  # fmt: skip
    others = ["OLD_X", "PY_X", "MONARCH_DISABLED", "OMP", "XLD_X", "MONARCH_X"]
    for name in (*own, *others):
        if name not in ("LD_PRELOAD",):
            monkeypatch.setenv(name, "1" if name != "MONARCH_DISABLE" else "0")
    assert program.load()
    variables: list[str] = []
    while (at := lib.autostart_variable(len(variables))) != ffi.NULL:
        variables.append(os.fsdecode(ffi.string(at)))
    names = {one.partition("=")[0] for one in variables}
    jobs = ("LD_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_")
    assert not [name for name in names if name.startswith(jobs)]
    assert {name for name in os.environ if not name.startswith(jobs)} <= names
    assert {one for one in variables if one.startswith("MONARCH_DISABLE=")} == {"MONARCH_DISABLE=1"}
    for name in others:
        assert ffi.string(lib.autostart_value_of(name.encode())) == b"1"
    for name in ("LD_LIBRARY_PATH", "OLD", "OLD_", "OLD_XX"):
        assert lib.autostart_value_of(name.encode()) == ffi.NULL
