"""If a process is killed or a call fails at any step of a start, the program can still read, and a
later open starts a daemon."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from autostart.opening_program import Faulter, Opens
from autostart.started import Started, age, installed, written
from csrc.building import build_program
from support.draws import sized
from support.files import Files
from support.session import wait_until

HERE = Path(__file__).parent
# The system calls at which a process is killed before the start is recorded. At the first call, the
# child that makes the starter's process is killed. At the other calls, the starter's process itself
# is killed: at its first steps, while it takes the claim, or while it holds the claim.
UNCOUNTED = ["beside:clone", *sized([], ["beside:close_range", "beside:flock"]), "beside:pwrite64"]
# The system calls at which a process is killed after the start is recorded. The starter is killed
# before or after its exec. The daemon is killed when it has its lock, or when it is nearly ready.
COUNTED = ["beside:execve", "starter:openat", *sized([], ["daemon:fallocate"]), "daemon:listen"]
# At most AT_ONCE starts are allowed within ten minutes. A start no longer counts once it is
# WITHIN_S seconds old, which is just over ten minutes.
AT_ONCE = 3
WITHIN_S = 601


@pytest.fixture(scope="module")
def opens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("opens") / "opens", HERE / "opens.c")


@pytest.fixture(scope="module")
def faulter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("faulter")
    built = build_program(place / "faulter", HERE / "starter_faults.c")
    words = [str(built), str(place / "made"), "program:flock:1:kill", "--", "true"]
    if subprocess.run(words, check=False).returncode != 0:
        pytest.skip("no process may supervise another one's system calls: needs Linux 5.5")
    return built


@pytest.fixture
def site(short_lived: Started) -> Started:
    return short_lived


@pytest.fixture
def file(files: Files) -> Path:
    return files.path("f00001")


@pytest.fixture
def plain(site: Started, opens: Path, file: Path) -> str:
    """Returns what the program prints for an open without the library."""
    with Opens(site, opens, file, preload=False) as program:
        return program.open()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_end(site: Started, pid: int) -> None:
    """Waits until the killed process and all other processes of the start have ended."""
    wait_until(lambda: not is_alive(pid), what="the end of the killed process")
    site.wait_for_starter()
    wait_until(site.is_gone, what="the end of all that was started")


def left(site: Started) -> set[str]:
    path = site.session.paths.path
    return {each.name for each in path.iterdir()} if path.exists() else set()


def latest(site: Started) -> int:
    times: tuple[int, ...] = struct.unpack("3Q", site.session.paths.starts.read_bytes())
    return max(times)


def starts_as_ever(site: Started, program: Opens, plain: str) -> None:
    """Checks that an open starts a daemon. Then stops this daemon, and checks that only the usual
    files are left in the session directory, and none in the tier."""

    def serves() -> bool:
        assert program.open() == plain
        return site.session.connection.serves()

    wait_until(serves, timeout=60, what="a daemon after the faults", every=0.05)
    daemon = site.daemon()
    assert psutil.Process(program.process.pid).children() == []
    assert site.session.monarch("stop").returncode == 0
    wait_until(lambda: not is_alive(daemon.pid), what="the daemon's end")
    assert left(site) <= {"autostart", "log", "log.1", "starts", "stopped", "turn", "users"}
    assert not any(site.session.tiers[0].iterdir())


def test_a_kill_before_a_start_counts(
    site: Started, file: Path, opens: Path, faulter: Path, plain: str, tmp_path: Path
) -> None:
    site.learn()
    faults = Faulter(faulter, tmp_path / "made", [f"{step}:1:kill" for step in UNCOUNTED])
    with Opens(site, opens, file, prefix=faults.prefix) as program:
        for number in range(len(UNCOUNTED)):
            wait_for_end(site, faults.wait_for(number, program, plain))
            assert site.starts() == 0
            assert left(site) <= {"autostart", "starts"}
        starts_as_ever(site, program, plain)
    assert site.starts() == 0, "the start of a daemon that was stopped must not count"


def test_a_kill_of_what_counts(
    site: Started, file: Path, opens: Path, faulter: Path, plain: str, tmp_path: Path
) -> None:
    site.learn()
    faults = Faulter(faulter, tmp_path / "made", [f"{step}:1:kill" for step in COUNTED])
    with Opens(site, opens, file, prefix=faults.prefix) as program:
        for number, step in enumerate(COUNTED):
            killed = faults.wait_for(number, program, plain)
            wait_for_end(site, killed)
            assert site.starts() == min(number + 1, AT_ONCE)
            if step.startswith("daemon"):
                assert f"process {killed}\n" in site.session.paths.lock.read_text()
                assert "the daemon did not start: it ended with status -9" in site.said()
            age(site)
            if number + 1 == AT_ONCE:
                last, end = latest(site), time.monotonic() + 1.2
                while time.monotonic() < end:
                    assert program.open() == plain
                assert (latest(site), site.is_gone()) == (last, True), "a fourth start was made"
                age(site, WITHIN_S)
        starts_as_ever(site, program, plain)


def open_by(process: psutil.Process) -> set[str]:
    found = Path(f"/proc/{process.pid}/fd").iterdir()
    return {os.readlink(fd) for fd in found}


def test_descriptors_are_closed_without_close_range(
    site: Started, file: Path, opens: Path, faulter: Path, plain: str, tmp_path: Path
) -> None:
    """The starter and the daemon inherit no descriptors of the program, even without close_range
    (Linux before 5.9). The daemon is suspended while the test reads the lists of the open files of
    both processes."""
    site.learn()
    calls = ["any:close_range:0:ENOSYS", "daemon:listen:1:stop"]
    faults = Faulter(faulter, tmp_path / "made", calls)
    end, inherited = os.pipe()
    with file.open("rb") as of_source, (tmp_path / "made.here").open("wb") as other:
        given = (inherited, of_source.fileno(), other.fileno())
        with Opens(site, opens, file, prefix=faults.prefix, pass_fds=given) as program:
            os.close(inherited)
            daemon = psutil.Process(faults.wait_for(1, program, plain))
            (starter,) = site.starters()
            for process in (starter, daemon):
                names = open_by(process)
                assert not {str(file), str(tmp_path / "made.here")} & names
                assert not any(name.startswith("pipe:") for name in names)
            daemon.resume()
            site.daemon()
    assert os.read(end, 1) == b"", "a starter or daemon keeps the pipe open"
    os.close(end)
    assert site.daemons() == [daemon]
    assert set(faults.made()) == {0, 1}


# Errors in each system call that a start needs. "beside" stands for two processes, the program's
# child and grandchild. The grandchild becomes the starter when it calls exec.
WANTS = [
    "program:openat:1:EMFILE",
    *sized([], ["program:openat:2:ENFILE", "program:openat:3:ENOMEM"]),
    "program:clone:1:EAGAIN",
    *sized([], ["program:clone:1:ENOMEM"]),
    "beside:clone:1:EAGAIN",
    *sized([], ["beside:openat:1:ENFILE"]),
    "beside:openat:4:ENOMEM",
    "beside:mkdirat:1:ENOSPC",
    "beside:flock:1:ENOLCK",
    "beside:pwrite64:1:ENOSPC",
    "beside:fcntl:1:EMFILE",
    "beside:execve:1:ENOMEM",
]


def test_a_want_of_descriptors_memory_or_processes_is_the_starts_alone(
    site: Started, file: Path, opens: Path, faulter: Path, plain: str, tmp_path: Path
) -> None:
    site.learn()
    python = installed(site, tmp_path, "/gone/bin/python3.99", "python3.99")
    faults = Faulter(faulter, tmp_path / "made", WANTS)
    with Opens(site, opens, file, prefix=faults.prefix) as program:
        for number in range(len(WANTS)):
            faults.wait_for(number, program, plain)
            site.wait_for_starter()
            site.session.paths.forget_starts()
        assert "cannot execute" in site.said()
        (python.parent / "arguments").unlink(missing_ok=True)
        assert program.open("last") == plain

        def is_started() -> bool:
            assert program.open() == plain
            return bool(written(python.parent / "arguments"))

        wait_until(is_started, what="a start after all that", every=0.05)


def test_a_program_without_a_free_descriptor_starts_a_daemon_once_it_has_one(
    site: Started, file: Path, opens: Path, plain: str, tmp_path: Path
) -> None:
    site.learn()
    python = installed(site, tmp_path, "/gone/bin/python3.99", "python3.99")
    with Opens(site, opens, file) as program:
        end = time.monotonic() + 0.5  # long enough for two attempts
        while time.monotonic() < end:
            assert program.open("last") == plain
        assert site.starts() == 0

        def is_started() -> bool:
            assert program.open() == plain
            return bool(written(python.parent / "arguments"))

        wait_until(is_started, what="the start", every=0.05)
