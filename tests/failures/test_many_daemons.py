"""A process runs longer than many daemons. The library records each change of a file in the
segments of the daemon that serves at the time, and unmaps the segments of the earlier daemons."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.draws import sized
from support.files import Files
from support.segments import is_changed, segments
from support.session import Session
from support.steps import Steps
from support.watch import settle

HERE = Path(__file__).parent
MANY = 40  # more daemons than the library has numbers for sessions
# At each step, rewrites the first bytes of the file that the test names, and calls stat on another
# file.
REWRITE = """
root, word = sys.argv[1], step()
while word:
    fd = os.open(root + "/" + word, os.O_WRONLY)
    os.write(fd, b"rewritten")
    os.close(fd)
    os.stat(root + "/f00000")
    word = step()
"""
FIRST = "import sys; print(open(sys.argv[1], 'rb').read(9))"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(MANY + 2, 3000)


def segments_of(process: Steps, session: Session) -> set[str]:
    """Returns the address ranges at which the process has mapped segments of any session."""
    maps = Path(f"/proc/{process.process.pid}/maps").read_text().splitlines()
    return {line.split()[0] for line in maps if str(session.shm) in line}


def maps_null(process: Steps) -> bool:
    """Returns whether the process has mapped memory at address 0, which only root may do."""
    maps = Path(f"/proc/{process.process.pid}/maps").read_text()
    return int(maps.partition("-")[0], 16) == 0


def size_bytes(process: Steps, what: str) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))


def rewrite(process: Steps, name: str) -> None:
    process.go(name)
    process.wait()


def test_changes_are_recorded_with_the_daemon_that_serves_now(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    with Steps(session, REWRITE, files.root) as process:
        process.wait()
        sizes = []
        for n in range(MANY):
            name = f"f{n + 1:05d}"
            with segments(session, killed=n % 2 == 0) as daemon:
                rewrite(process, name)
                assert is_changed(daemon, files.path(name)), f"with daemon {n + 1}"
            sizes.append((size_bytes(process, "VmSize"), size_bytes(process, "VmRSS")))
        # The process has mapped at most three segments (control, clients and catalog) of the newest
        # daemon, and three of the daemon before it.
        assert len(segments_of(process, session)) <= 6
        # The process began without a daemon. So it had no segment to unmap when the first daemon
        # started. It must not have taken address 0 for the address of a segment.
        assert not maps_null(process)
        for now, early in zip(sizes[-1], sizes[4], strict=True):
            # The segments of a daemon that has ended must not stay mapped. So for each daemon, the
            # process must grow by less than the size of a catalog, which is about 2.5 MB.
            assert now - early < 2.5e6 * (MANY - 5)
        assert sizes[-1][1] - sizes[4][1] < 16_384 * (MANY - 5)
        session.start()
        settle(session)
        name = f"f{MANY + 1:05d}"
        assert session.python(FIRST, files.path(name)) != "b'rewritten'\n"
        rewrite(process, name)
        assert session.python(FIRST, files.path(name)) == "b'rewritten'\n"


@pytest.mark.long
def test_three_hundred_real_daemons(session_factory: Callable[..., Session], files: Files) -> None:
    session = session_factory(files.root)
    names = sorted(files.digests)
    with Steps(session, REWRITE, files.root) as process:
        process.wait()
        for n in range(300):
            session.start()
            name = names[n % len(names)]
            files.add(name, 3000)
            settle(session)
            assert session.python(FIRST, files.path(name)) != "b'rewritten'\n"
            rewrite(process, name)
            assert session.python(FIRST, files.path(name)) == "b'rewritten'\n", n
            session.kill() if n % 2 else session.stop()
        assert len(segments_of(process, session)) <= 8
        assert size_bytes(process, "VmRSS") < 64e6


THREADS = 64


@pytest.fixture(scope="session")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("writers") / "writers"
    return build_program(place, HERE / "writers.c", flags=["-pthread"])


def test_threads_that_meet_a_new_daemon_at_once_all_record_their_changes(
    session_factory: Callable[..., Session], tmp_path: Path, writers: Path
) -> None:
    root = tmp_path / "source"
    root.mkdir()
    paths = [root / str(n) for n in range(THREADS)]
    for path in paths:
        path.write_bytes(b"-")
    session = session_factory(root)
    with subprocess.Popen(
        [writers, root, str(THREADS)],
        env=session.env(MONARCH_WARNED="1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        for n in range(sized(12, MANY)):
            with segments(session, killed=n % 2 == 0) as daemon:
                process.stdin.write("go\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                missed = [path.name for path in paths if not is_changed(daemon, path)]
                assert not missed, f"with daemon {n + 1}"
        process.stdin.close()
    assert process.returncode == 0


# The program opens a file, which is read from its copy, and a listing of the dataset's root. Then
# several daemons serve, one after the other. Under each daemon, the program opens another file for
# writing. Afterwards it uses the copy and the listing once more, and closes them. It then opens the
# other file under further daemons.
KEEP = """
root = sys.argv[1]
step()
fd = os.open(root + "/f00003", os.O_RDONLY)
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.c_void_p
d = ctypes.c_void_p(libc.opendir(root.encode()))
def next_name():
    entry = libc.readdir(d)
    return entry and ctypes.string_at(entry + 19).decode()
names = [next_name() for _ in range(5)]
step(os.readlink(f"/proc/self/fd/{fd}"))
for _ in range(int(sys.argv[2])):
    os.close(os.open(root + "/f00000", os.O_WRONLY))
    step()
st = os.fstat(fd)
while name := next_name():
    names.append(name)
step(st.st_ino, st.st_mode, sorted(names))
libc.closedir(d)
os.close(fd)
for _ in range(3):
    os.close(os.open(root + "/f00000", os.O_WRONLY))
    step()
"""


def test_what_is_open_of_an_old_session_goes_on_until_it_is_closed(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    settle(session)
    with Steps(session, KEEP, files.root, 6) as process:
        process.wait()
        process.go()
        assert str(session.tiers[0]) in process.wait()[0]
        first = segments_of(process, session)
        session.kill()
        for _ in range(6):
            with segments(session, killed=True):
                process.go()
                process.wait()
        assert first & segments_of(process, session)
        process.go()
        inode, mode, names = process.wait()
        found = files.path("f00003").stat()
        assert (inode, mode) == (found.st_ino, found.st_mode)
        assert names == sorted([".", "..", *files.digests])
        for _ in range(3):
            with segments(session, killed=True):
                process.go()
                process.wait()
        assert not first & segments_of(process, session)
        process.go()
        process.end()


# The first thread has a copy open. A second thread has its own table of descriptors, in which it
# has closed the copy. Each time a new daemon serves, the second thread opens a file for writing.
APART = """
root, CLONE_FILES = sys.argv[1], 0x400
fd = os.open(root + "/f00003", os.O_RDONLY)
met, go = threading.Semaphore(0), threading.Semaphore(0)
def meet():
    assert libc.unshare(CLONE_FILES) == 0
    os.close(fd)
    while True:
        met.release()
        go.acquire()
        os.close(os.open(root + "/f00000", os.O_WRONLY))
threading.Thread(target=meet, daemon=True).start()
met.acquire()
while step():
    go.release()
    met.acquire()
st = os.fstat(fd)
step(st.st_ino, st.st_mode)
"""


def test_what_is_open_in_another_table_of_descriptors_goes_on(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    settle(session)
    session.wait_all_present()
    with Steps(session, APART, files.root) as process:
        process.wait()
        session.kill()
        for _ in range(4):
            with segments(session, killed=True):
                process.go()
                process.wait()
        process.go("")
        inode, mode = process.wait()
        found = files.path("f00003").stat()
        assert (inode, mode) == (found.st_ino, found.st_mode)
        process.go()
        process.end()
