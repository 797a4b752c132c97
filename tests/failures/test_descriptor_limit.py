"""A process has no free descriptor when a daemon starts. Even so, the process's changes are
recorded, and its open files stay as they are. In the tests of the second part, a daemon has no free
descriptor."""

from __future__ import annotations

import itertools
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.draws import sized
from support.files import Files, check_all
from support.manifests import wait_recorded
from support.segments import is_changed, segments
from support.session import Session, wait_until
from support.steps import Steps
from support.watch import settle

from monarch_py.arrays import Ids
from monarch_py.config.load import load_config
from monarch_py.daemon.fill import failures
from monarch_py.daemon.server import Daemon
from monarch_py.ipc import word
from monarch_py.native import JobKind, State

# Uses all descriptors that the process may have. The tests append code that then makes changes.
AT_THE_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
root = sys.argv[1]
locked = os.open(root + "/f00009", os.O_RDONLY)
fcntl.lockf(os.open(root + "/f00008", os.O_RDWR), fcntl.LOCK_EX)
r, w = os.pipe()
def fill():
    try:
        while True:
            os.open("/dev/null", os.O_RDONLY)
    except OSError as error:
        assert error.errno == 24, error
def open_now():
    found = {}
    for n in range(40):
        try:
            st = os.fstat(n)
            found[n] = (st.st_dev, st.st_ino)
        except OSError:
            pass
    return found
fill()
seen = open_now()
assert len(seen) == 40
"""

CHANGES = {
    "truncate": "os.truncate(root + '/f00000', 5)",
    "rename": "os.rename(root + '/f00000', root + '/new')",
    "utime": "os.utime(root + '/f00000')",
    "last number": """
os.close(39)
fd = os.open(root + '/f00000', os.O_WRONLY)
assert fd == 39, fd
os.write(fd, b"rewritten")
os.close(fd)
fill()
""",
}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(10, 3000)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_recorded_with_a_new_daemon(
    session_factory: Callable[..., Session], files: Files, change: str
) -> None:
    session = session_factory(files.root)
    script = f"{AT_THE_LIMIT}\nstep()\n{CHANGES[change]}\nstep()\nassert open_now() == seen\n"
    inode = files.path("f00000").stat().st_ino
    with Steps(session, script + "step()\n", files.root) as process:
        process.wait()
        with segments(session) as daemon:
            process.go()
            process.wait()
            now = {path.stat().st_ino: path for path in files.root.iterdir()}
            assert is_changed(daemon, now[inode])
        process.go()
        process.wait()


BESIDE = """
step()
os.truncate(root + "/f00000", 5)
step()
os.close(w)
step(os.read(r, 1).decode())
"""


def test_what_the_process_has_open_stays_its_own(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """In a process without free descriptors, the library drops none of the process's locks.
    Afterwards, no thread of the library remains, and no other process keeps files of this process
    open."""
    session = session_factory(files.root)
    with Steps(session, AT_THE_LIMIT + BESIDE, files.root) as process:
        process.wait()
        with segments(session):
            process.go()
            process.wait()
        tasks = list(Path(f"/proc/{process.process.pid}/task").iterdir())
        assert [int(task.name) for task in tasks] == [process.process.pid]
        inode = files.path("f00008").stat().st_ino
        assert f":{inode} " in Path("/proc/locks").read_text()
        process.go()
        # The program has read the end of the pipe. This shows that no process has the pipe open for
        # writing.
        assert process.wait() == [""]


THREADS = """
barrier = threading.Barrier(16)
def change(n):
    barrier.wait()
    os.utime(f"{root}/f{n % 8:05d}")
for _ in range(8):
    step()
    threads = [threading.Thread(target=change, args=(n,)) for n in range(16)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
step()
"""


def test_threads_that_meet_a_daemon_at_once(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    with Steps(session, AT_THE_LIMIT + THREADS, files.root) as process:
        process.wait()
        for n in range(sized(4, 8)):
            with segments(session, killed=n % 2 == 0) as daemon:
                process.go()
                process.wait()
                missed = [k for k in range(8) if not is_changed(daemon, files.path(f"f{k:05d}"))]
                assert not missed, f"with daemon {n + 1}"


def test_what_lies_below_a_renamed_directory_is_recorded_too(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """If a process without free descriptors renames a directory, the files below it are recorded as
    changed too. The library finds these files in the catalog."""
    files = Files(tmp_path / "source").add_many(10, 3000)
    (files.root / "d").mkdir()
    (files.root / "d" / "below").write_bytes(b"below")
    session = session_factory(files.root)
    script = "\nstep()\nos.rename(root + '/d', root + '/e')\nstep()\n"
    with Steps(session, AT_THE_LIMIT + script, files.root) as process:
        process.wait()
        session.start()
        settle(session)
        assert session.run(["cat", files.root / "d" / "below"]).stdout == "below"
        process.go()
        process.wait()
        assert session.run(["cat", files.root / "d" / "below"]).returncode == 1


# --- a daemon that has no free descriptor -------------------------------------------------------

COMPLAINT = "fills wait for a free file descriptor"


@contextmanager
def limited(session: Session, numbers: int) -> Iterator[None]:
    """Within the block, the daemon can open no descriptor whose number is `numbers` or higher."""
    assert session.daemon is not None
    daemon = psutil.Process(session.daemon.pid)
    before = daemon.rlimit(psutil.RLIMIT_NOFILE)
    daemon.rlimit(psutil.RLIMIT_NOFILE, (numbers, before[1]))
    try:
        yield
    finally:
        daemon.rlimit(psutil.RLIMIT_NOFILE, before)


def test_a_daemon_without_descriptors_fills_later(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """If a daemon lacks descriptors, it treats this as a temporary error: it gives up neither the
    tier nor a file, and makes the copies later."""
    session = session_factory(files.root, prefetch="auto").start()
    session.wait_scanned()
    with limited(session, 3):
        check_all(session, files)
        wait_until(lambda: COMPLAINT in session.log.read_text(), what="the daemon's complaint")
    wait_until(lambda: session.status()["sources"][0]["present"] == 10, what="the copies")
    assert session.status()["tiers"][0]["usable"]
    check_all(session, files)


def wanted(session: Session) -> int:
    return int(session.status()["sources"][0]["wanted"])


def test_a_command_waits_for_a_daemon_without_descriptors(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """`monarch warm` waits while the daemon has only one free descriptor. One descriptor suffices
    for the command's requests, but a fill needs two."""
    session = session_factory(files.root, prefetch="none").start()
    session.wait_scanned()
    assert session.daemon is not None
    taken = {int(fd.name) for fd in Path(f"/proc/{session.daemon.pid}/fd").iterdir()}
    free = next(number for number in itertools.count() if number not in taken)
    argv, environment = session.command("warm"), session.env(preload=False)
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            with limited(session, free + 1):
                wait_until(
                    lambda: COMPLAINT in session.log.read_text(), what="the daemon's complaint"
                )
                wait_until(lambda: wanted(session) == 10, what="the end of the fills")
                assert session.status()["pending"] == 10
                assert process.poll() is None
            out, _ = process.communicate(timeout=30)
        finally:
            if process.poll() is None:
                process.kill()
    assert process.returncode == 0, out
    assert session.status()["sources"][0]["present"] == 10


class Site:
    """A daemon in the test's process. The test runs the daemon's loop turn by turn.

    orders : the orders that the engine got, as (kind, entries, whether programs use the files)
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
        monkeypatch.setenv("MONARCH_SHM", str(session.shm))
        session.paths.make()
        self.daemon = Daemon(load_config(session.config), session.paths)
        self.filler = self.daemon.filler
        self.orders: list[tuple[JobKind, list[int], bool]] = []
        submit = self.filler.engine.submit

        def record(kind: JobKind, ids: Ids, *more: Any, **named: Any) -> None:
            self.orders.append((kind, ids.tolist(), named.get("in_use", False)))
            submit(kind, ids, *more, **named)

        monkeypatch.setattr(self.filler.engine, "submit", record)

    def turns_until(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(lambda: [self.daemon._turn()] and condition(), what=what)

    def states(self, ids: Ids) -> set[int]:
        return set(word.state(self.daemon.shared.catalog.words[ids]).tolist())

    def wait_present(self, ids: Ids) -> None:
        self.turns_until(lambda: self.states(ids) == {State.PRESENT}, "the copies")
        self.turns_until(lambda: not self.filler.pending, "the last result")

    def wait_put_off(self, files: int) -> None:
        """Runs turns until `files` files wait for another try and the engine is idle."""
        self.turns_until(
            lambda: self.filler.engine.idle and self.filler.pending == files and self.orders,
            "failures",
        )


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Within the block, this process can open no descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def site(
    monkeypatch: pytest.MonkeyPatch, session_factory: Callable[..., Session], files: Files
) -> Iterator[Site]:
    made = Site(monkeypatch, session_factory(files.root, prefetch="none"))
    try:
        made.turns_until(lambda: made.daemon.scanner.scanned, "the scan")
        yield made
    finally:
        made.daemon.close()


@pytest.fixture
def ids(site: Site, files: Files) -> Ids:
    """Returns the numbers of the catalog entries of all files."""
    catalog = site.daemon.shared.catalog
    return np.array([catalog.find(0, name) for name in files.digests], dtype=np.uint64)


def test_what_waits_for_descriptors_is_taken_back(site: Site, ids: Ids) -> None:
    assert site.filler.requests.warm(ids, "ticket") == len(ids)
    with no_descriptors():
        site.wait_put_off(len(ids))
    assert site.filler.take_back("ticket") == len(ids)
    assert site.states(ids) == {State.ABSENT}
    site.turns_until(lambda: not site.filler.pending, "the end of the wait")
    assert site.states(ids) == {State.ABSENT}
    assert site.filler.copies.fills == 0


def test_what_waits_for_descriptors_is_tried_again_as_what_it_was(site: Site, ids: Ids) -> None:
    """A fill that waits for descriptors is ordered again. The new order has the same purpose as the
    first one: a fill ahead, or a fill for programs that use the file."""
    ahead, used = ids[:5], ids[5:]
    site.filler.requests.warm(ahead, "ticket")
    site.filler.requests.want(used)
    with no_descriptors():
        site.wait_put_off(len(ids))
    assert site.states(ahead) == {State.WANTED}
    assert site.states(used) == {State.BYPASS}, "readers wait for what cannot be filled"
    site.wait_present(ids)
    uses = {in_use: {i for _, of, u in site.orders if u == in_use for i in of} for in_use in (0, 1)}
    assert uses == {0: set(ahead.tolist()), 1: set(used.tolist())}


def test_a_lack_of_descriptors_is_told_once_until_a_fill_goes_well(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, site: Site, ids: Ids
) -> None:
    monkeypatch.setattr(failures, "PASSING_S", 0.01)
    for told, files in enumerate((ids[:5], ids[5:]), 1):
        site.orders.clear()
        site.filler.requests.want(files)
        with no_descriptors():
            # Wait until no order is under way. An order that is still under way when descriptors
            # become free could fail after another fill has succeeded, and its failure would be
            # reported once more.
            site.turns_until(
                lambda: len(site.orders) > 3 and not site.filler.engine.pending(),
                "three more tries",
            )
        site.wait_present(files)
        assert caplog.text.count(COMPLAINT) == told


def test_checks_that_wait_for_descriptors_are_ordered_together(
    monkeypatch: pytest.MonkeyPatch,
    session_factory: Callable[..., Session],
    files: Files,
    tmp_path: Path,
) -> None:
    (tmp_path / "tier").mkdir()
    tier = {"mount_point": tmp_path / "tier", "max_storage_quota": 1 << 26, "persistent": True}
    session = session_factory(files.root, tiers=[tier]).start()
    session.wait_all_present()
    wait_recorded(session, 10)
    session.kill()
    site = Site(monkeypatch, session)
    try:
        with monkeypatch.context() as before:
            before.setattr(site.filler, "feed", lambda: False)
            site.turns_until(lambda: len(site.filler.checks) == 10, "copies to check")
        with no_descriptors():
            site.wait_put_off(10)
        (found,) = {tuple(sorted(entries)) for _, entries, _ in site.orders}
        site.wait_present(np.array(found, dtype=np.uint64))
        assert {kind for kind, _, _ in site.orders} == {JobKind.CHECK}
        assert {len(entries) for _, entries, _ in site.orders} == {10}
    finally:
        site.daemon.close()
