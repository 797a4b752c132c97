"""A process that has no descriptor left when a daemon appears: its changes are recorded all the
same, and what it has open stays as it was. A daemon that has none left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.files import Files, check_all
from support.segments import is_changed, segments
from support.session import Session, wait_until
from support.steps import Steps
from support.watch import settle

# All numbers that the process may have are in use when it changes what the test tells it to.
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
    """Its locks are still there, and nobody else keeps its files open."""
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
        assert process.wait() == [""]  # the pipe's end: nobody else has it


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
        for n in range(8):
            with segments(session, killed=n % 2 == 0) as daemon:
                process.go()
                process.wait()
                missed = [k for k in range(8) if not is_changed(daemon, files.path(f"f{k:05d}"))]
                assert not missed, f"with daemon {n + 1}"


def test_what_lies_below_a_renamed_directory_is_recorded_too(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """Only the catalog says what that is."""
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


def test_a_daemon_without_descriptors_fills_later(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """The limit is a passing error: neither the tier nor a file is given up for it."""
    session = session_factory(files.root, prefetch="auto").start()
    session.wait_scanned()
    assert session.daemon is not None
    daemon = psutil.Process(session.daemon.pid)
    before = daemon.rlimit(psutil.RLIMIT_NOFILE)
    daemon.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
    try:
        check_all(session, files)
        wait_until(lambda: "fills have to wait" in session.log.read_text(), what="its complaint")
    finally:
        daemon.rlimit(psutil.RLIMIT_NOFILE, before)
    wait_until(lambda: session.status()["sources"][0]["present"] == 10, what="the copies")
    assert session.status()["tiers"][0]["usable"]
    check_all(session, files)
