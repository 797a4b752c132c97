"""A program under the library starts the daemon, and notices nothing of it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from autostart.started import CAT, Started, started, stop
from csrc.building import build_program
from support.files import Files
from support.session import Session, wait_until
from support.steps import Steps

from monarch_py.daemon.orphan import IdleWatch
from monarch_py.daemon.server import Daemon
from monarch_py.native import LIBRARY

HERE = Path(__file__).parent
# The library waits a few milliseconds for what it starts; this leaves time for others [us].
HELD_UP_US = 1_000_000
# One reads the file at each step.
READER = """
open(sys.argv[1], "rb").read()
while step() != "end":
    open(sys.argv[1], "rb").read()
"""
# One waits first.
IDLE_READER = """
while step() != "end":
    open(sys.argv[1], "rb").read()
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(5, 3000)


@pytest.fixture
def site(session_factory: Callable[..., Session], files: Files) -> Iterator[Started]:
    yield from started(lambda: session_factory(files.root, autostart=True, idle_exit="2s"))


@pytest.fixture
def unwished(session_factory: Callable[..., Session], files: Files) -> Iterator[Started]:
    yield from started(lambda: session_factory(files.root, autostart=False))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("places") / "places", HERE / "places.c")


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: install {program}")


# --- what the daemon does not inherit ------------------------------------------------------------

# What a launcher and a careless script do to the first rank.
ROUGH = """
trap '' TERM INT HUP USR1 PIPE; umask 777
ulimit -S -v 4000000; ulimit -S -t 100; ulimit -S -f 99999; ulimit -S -n 64
exec 9<"$1"; "$0" "$1" | wc -c
"""


def bound() -> list[str]:
    """A prefix that gives a program one processor, one memory node and a low priority."""
    needs("numactl", "taskset", "nice", "setsid")
    node = Path("/proc/self/status").read_text().partition("Mems_allowed_list:\t")[2][0]
    first = str(min(os.sched_getaffinity(0)))
    return ["taskset", "-c", first, "numactl", f"--membind={node}", "nice", "-n", "7", "setsid"]


def test_a_daemon_is_not_what_the_first_rank_is(site: Started, files: Files) -> None:
    file = files.path("f00001")
    odd = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/nowhere", "LD_LIBRARY_PATH": "/nowhere"}
    # The pipeline ends although the daemon lives.
    done = site.run("sh", "-c", ROUGH, CAT, file, prefix=bound(), env=odd)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3000\n", "")
    daemon = site.daemon()
    session = site.session.paths
    modes = [path.stat().st_mode & 0o777 for path in (session.path.parent, session.path)]
    assert (modes, session.starts.stat().st_mode & 0o777) == ([0o700] * 2, 0o600)
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    ignored = int(status["SigIgn"], 16)
    assert not any(ignored >> n - 1 & 1 for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    assert (int(status["SigBlk"], 16), status["Umask"]) == (0, "0077")
    assert daemon.cwd() == "/"
    assert daemon.nice() == psutil.Process().nice()
    assert set(daemon.cpu_affinity() or ()) >= os.sched_getaffinity(0)
    assert "bind" not in Path(f"/proc/{daemon.pid}/numa_maps").read_text()
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
        soft, hard = resource.prlimit(daemon.pid, limit)
        assert soft == hard
    assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[0] > 64
    assert not {*odd, "LD_PRELOAD"} & set(daemon.environ())
    assert str(file) not in {each.path for each in daemon.open_files()}
    assert os.getsid(daemon.pid) not in {os.getsid(0), 0}
    streams = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in (0, 1)]
    assert streams == ["/dev/null"] * 2


# --- who inherits it -----------------------------------------------------------------------------


def test_programs_are_served_and_the_daemon_ends_when_none_is_left(
    site: Started, files: Files
) -> None:
    file = files.path("f00001")
    with Steps(site.session, READER, file) as reader:
        reader.wait()

        def is_up() -> bool:
            reader.go()
            reader.wait()
            return site.session.connection.serves()

        wait_until(is_up, timeout=60, what="the daemon", every=0.1)
        site.daemon()
        assert psutil.Process(reader.process.pid).children(recursive=True) == []

        def is_served() -> bool:
            reader.go()
            reader.wait()
            return bool(site.session.totals()["hits"])

        wait_until(is_served, what="a read from the copy", every=0.3)
        assert site.starts() == 1
        assert site.daemons(), "it ended while a program used it"
    wait_until(site.is_gone, what="the end of the idle daemon")
    assert "no process has used it for 2 s" in site.said()
    left = {path.name for path in site.session.paths.path.iterdir()}
    assert left == {"autostart", "log", "starts", "stopped", "turn", "users"}
    assert site.starts() == 0, "a daemon that was not killed does not count"
    assert not any(site.session.tiers[0].iterdir())


def test_a_daemon_that_makes_copies_is_used(site: Started) -> None:
    """Nobody is attached while `monarch warm` has left it to work."""
    engine = SimpleNamespace(bytes_from_source=0, bytes_from_peers=0)
    daemon = SimpleNamespace(
        shared=SimpleNamespace(totals=lambda: {"opens": 0}), filler=SimpleNamespace(engine=engine)
    )
    site.session.paths.make()
    watch = IdleWatch(site.session.paths, cast(Daemon, daemon), 300)
    assert not watch._is_used()
    engine.bytes_from_source = 1
    assert watch._is_used()
    assert not watch._is_used()


# How the program is started; in some the daemon is killed with the program.
FIRSTS = {
    "tini": ["tini", "-s", "--", "bash", "-c", '"$@" & wait $!', "bash"],
    "namespace": ["unshare", "--pid", "--fork", "--kill-child", "bash", "-c", '"$@"; true', "bash"],
    "torchrun": ["torchrun", "--no-python", "--nproc-per-node", "2"],
}


@pytest.mark.parametrize("first", FIRSTS)
def test_the_first_process_ends_as_without_us(site: Started, files: Files, first: str) -> None:
    prefix = FIRSTS[first]
    needs(prefix[0])
    if first == "namespace" and os.geteuid() != 0:
        pytest.skip("only root may make a pid namespace: run the tests as root")
    site.learn()
    # Those that are ours to end with are under the library as well.
    done = site.run(*prefix, CAT, files.path("f00001"), timeout=60)
    assert done.returncode == 0, done.stderr
    site.wait_for_starts(1)
    if first == "namespace":  # its end kills all that is in it
        wait_until(site.is_gone, what="the end of the namespace")

        def is_started() -> bool:
            assert site.run(CAT, files.path("f00002")).returncode == 0
            return site.starts() == 2

        wait_until(is_started, what="the second start", every=0.2)
    assert site.daemon().ppid() in {1, os.getpid()} | {p.pid for p in psutil.Process().parents()}
    for process in psutil.process_iter(["status", "ppid"]):
        assert process.info["status"] != psutil.STATUS_ZOMBIE or process.info["ppid"] != os.getpid()


# --- what is killed ------------------------------------------------------------------------------


def test_a_kill_at_any_step_costs_nothing_but_the_daemon(site: Started, files: Files) -> None:
    site.learn()
    with Steps(site.session, READER, files.path("f00001")) as reader:

        def read() -> None:
            reader.go()
            reader.wait()

        def reading(found: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
            read()
            return found()

        def kill(found: Callable[[], list[psutil.Process]], what: str) -> None:
            for process in wait_until(lambda: reading(found), what=what, every=0.02):
                process.kill()
                psutil.wait_procs([process], timeout=20)

        reader.wait()
        kill(site.starters, "the first starter")
        assert not site.daemons()
        kill(site.daemons, "the second start's daemon, before it serves")
        site.wait_for_starter()
        kill(lambda: site.daemons() if site.session.connection.serves() else [], "the third")
        # The program goes on, and makes no fourth attempt in these ten minutes.
        for _ in range(20):
            read()
        assert (site.starts(), site.starters()) == (3, [])
        site.session.paths.forget_starts()
        kill(site.daemons, "another start once the others are long ago")


def test_a_step_that_ends_may_start_it_again_and_a_user_who_stops_it_not(
    site: Started, files: Files
) -> None:
    site.learn()
    with Steps(site.session, READER, files.path("f00001")) as reader:
        reader.wait()
        stop(site.daemon())

        def is_started() -> bool:
            reader.go()
            reader.wait()
            return bool(site.daemons())

        wait_until(is_started, what="a second daemon", every=0.1)
        site.daemon()
        assert site.starts() == 2
        assert site.session.monarch("start").stdout.startswith("a daemon serves")
        wait_until(lambda: bool(reader_is_attached(site, reader)), what="the second session")
        assert site.session.monarch("stop").returncode == 0
        for _ in range(20):
            reader.go()
            reader.wait()
        assert (site.starts(), site.daemons()) == (0, [])


def reader_is_attached(site: Started, reader: Steps) -> bool:
    reader.go()
    reader.wait()
    maps = Path(f"/proc/{reader.process.pid}/maps").read_text()
    control = site.session.paths.control
    return any(
        line.endswith(str(control)) and line.split()[4] == str(control.stat().st_ino)
        for line in maps.splitlines()
    )


def killed_and_started_again_by_short_programs(site: Started, file: Path) -> None:
    (daemon,) = site.daemons()
    daemon.kill()
    psutil.wait_procs([daemon], timeout=20)

    def is_started() -> bool:
        assert site.run(CAT, file).returncode == 0
        return bool(site.daemons())

    wait_until(is_started, what="another daemon", every=0.2)
    site.daemon()


def test_short_programs_start_a_killed_daemon_again(site: Started, files: Files) -> None:
    """None of them lives until a heart that stands still is seen."""
    assert site.run(CAT, files.path("f00001")).returncode == 0
    site.daemon()
    killed_and_started_again_by_short_programs(site, files.path("f00001"))


def test_a_daemon_of_monarch_start_is_started_again(site: Started, files: Files) -> None:
    assert site.session.monarch("start").returncode == 0
    assert "wish yes" in site.session.paths.autostart.read_text().splitlines()
    killed_and_started_again_by_short_programs(site, files.path("f00001"))


def test_a_killed_daemon_that_is_not_wished_stays_away(unwished: Started, files: Files) -> None:
    """The configuration has the word, but says no: one starter finds that out for a program that
    began before there was a record, and no other follows."""
    record = unwished.session.paths.autostart
    with Steps(unwished.session, IDLE_READER, files.path("f00001")) as reader:
        reader.wait()
        unwished.session.start()
        wait_until(lambda: reader_is_attached(unwished, reader), what="the session")
        unwished.session.kill()

        def is_recorded() -> bool:
            reader.go()
            reader.wait()
            return record.exists()

        wait_until(is_recorded, what="the record", every=0.1)
        assert "wish no" in record.read_text().splitlines()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            reader.go()
            reader.wait()
        unwished.wait_for_starter()
        assert (counted(unwished), unwished.daemons()) == (1, [])


# --- where nothing is started --------------------------------------------------------------------


# A root of its own, in which the file, the configuration and /proc have their names.
JAIL = """
mkdir -p "$0/proc" "$0$1"
mount --rbind /proc "$0/proc"; mount --rbind "$1" "$0$1"
shift; exec "$@"
"""


# Those where any user may go, and those of root.
ANYWHERE = ["handler", "vfork", "subreaper", "privileges"]
PLACES = [*ANYWHERE, "first process", "mounts", "root", "group", "pids", "net"]


@pytest.mark.parametrize("place", PLACES)
def test_no_start_where_it_could_do_harm(
    site: Started,
    files: Files,
    places: Path,
    place: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if place not in ANYWHERE and os.geteuid() != 0:
        pytest.skip("only root may change namespaces, its root or its group: run the tests as root")
    site.learn()
    prefix = []
    if place == "root":
        jail = tmp_path_factory.mktemp("jail")
        prefix = ["unshare", "--mount", "sh", "-c", JAIL, str(jail), str(files.root.parent)]
        place = str(jail)
    if place == "first process":  # of a pid namespace
        prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    done = site.run(places, place, files.path("f00001"), prefix=prefix)
    assert done.returncode == 0, done.stderr
    assert site.starts() == 0


def test_where_starts_are_used_up_an_open_costs_nothing(site: Started, tmp_path: Path) -> None:
    needs("strace")
    site.learn()
    (tmp_path / "other").write_text("x")
    recent = [time.monotonic_ns() - ago * 10**9 & ~1 for ago in (20, 30, 40)]
    site.session.paths.starts.write_bytes(struct.pack("3Q", *recent))
    site.session.paths.starts.chmod(0o600)
    many = "import os, sys; [os.close(os.open(sys.argv[1], 0)) for _ in range(500)]"
    trace = ["strace", "-o", str(tmp_path / "trace"), "-e", "trace=readlinkat"]
    done = site.run(sys.executable, "-c", many, tmp_path / "other", prefix=trace)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace").read_text().count("/proc/self/fd/") < 100


def test_only_a_file_of_a_source_starts_it(site: Started, files: Files, tmp_path: Path) -> None:
    other = tmp_path / "source2"
    other.mkdir()
    (other / "f").write_text("x")
    site.learn()
    assert site.run(CAT, other / "f", "/etc/passwd").returncode == 0
    assert site.run("ls", files.root).returncode == 0
    assert site.run(CAT, files.path("f00001"), env={"MONARCH_AUTOSTART": "0"}).returncode == 0
    assert site.starts() == 0


def test_a_record_is_of_one_configuration(site: Started, files: Files, tmp_path: Path) -> None:
    """With another file or other variables the library asks the starter again."""
    (tmp_path / "elsewhere").write_text("x")
    site.learn()
    assert site.run(CAT, tmp_path / "elsewhere").returncode == 0
    assert site.starts() == 0
    assert (
        site.run(CAT, tmp_path / "elsewhere", env={"MONARCH_SOURCE": str(files.root)}).returncode
        == 0
    )
    site.wait_for_starter()
    assert (
        f"value MONARCH_SOURCE={files.root}"
        in site.session.paths.autostart.read_text().splitlines()
    )
    assert (site.starts(), site.daemons()) == (0, []), "taken back, as it was not needed"


def test_a_running_daemon_is_told_of_a_new_source_once(
    site: Started, files: Files, tmp_path: Path
) -> None:
    (tmp_path / "more").mkdir()
    site.learn()
    with site.session.start():
        known, new = (
            {"MONARCH_SOURCE": each}
            for each in (str(files.root), f"{files.root}:{tmp_path / 'more'}")
        )
        for given, is_told in ((known, False), (new, True), (new, False)):
            before = times(site)
            assert site.run("/bin/true", env=given).returncode == 0
            if is_told:
                wait_until(partial(differs, site, before), what="a start")
            site.wait_for_starter()
            assert (times(site) != before) == is_told
        said = site.session.paths.autostart.read_text()
        assert f"value MONARCH_SOURCE={new['MONARCH_SOURCE']}" in said.splitlines()
        assert str(tmp_path / "more") in site.session.connection.ask("where")["sources"]


def differs(site: Started, before: bytes) -> bool:
    return times(site) != before


def counted(site: Started) -> int:
    """How many starts the library has counted, those that were not needed as well."""
    data = times(site)
    return sum(any(data[at : at + 8]) for at in range(0, len(data), 8))


def times(site: Started) -> bytes:
    return site.session.paths.starts.read_bytes() if site.session.paths.starts.exists() else b""


# A Python that writes down its arguments, and says something.
FAKE = '#!/bin/sh\nprintf "%s\\n" "$@" >"$(dirname "$0")/arguments"\necho it is broken >&2\n'


def installed(site: Started, directory: Path, line: str, python: str) -> Path:
    """An installation of the library alone, whose bin/monarch has this first line. Returns the
    interpreter, a fake."""
    packages, programs = directory / "p/lib/python3.99/site-packages", directory / "p/bin"
    (packages / "monarch_py").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(LIBRARY, packages / "monarch_py")
    (programs / python).write_text(FAKE)
    (programs / python).chmod(0o755)
    (programs / "monarch").write_text(f"#!{line}\nimport monarch_py\n")
    site.session.preload = packages / "monarch_py" / LIBRARY.name
    return programs / python


LINES = {
    "named": ("{}/p/bin/python", "python"),
    "moved": ("/gone/bin/python3.99", "python3.99"),
    "too long for a first line": ("/bin/sh", "python3.99"),
}


@pytest.mark.parametrize("line", LINES)
def test_the_interpreter_is_the_one_that_has_installed_the_library(
    site: Started, files: Files, tmp_path: Path, line: str
) -> None:
    """pip writes its path into bin/monarch; in a tree that was moved it lies in bin."""
    first, name = LINES[line]
    site.learn()
    python = installed(site, tmp_path, first.format(tmp_path), name)
    assert site.run(CAT, files.path("f00001")).returncode == 0
    wait_until(lambda: "it is broken" in site.said(), what="its words in the log")
    arguments = written(python.with_name("arguments"))
    assert arguments[:2] == ["-I", "-c"]
    packages = site.session.preload.parents[1]
    assert arguments[3:] == [str(packages), str(site.session.config), str(files.path("f00001"))]


def test_an_open_does_not_wait_for_an_interpreter_that_hangs(
    site: Started, files: Files, tmp_path: Path, places: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may hold up an exec: run the tests as root")
    site.learn()
    python = installed(site, tmp_path, "/gone/bin/python3.99", "python3.99")
    done = site.run(places, "hang", python, files.path("f00001"), timeout=20)
    if done.returncode == 4:
        pytest.skip("the kernel has no FAN_OPEN_EXEC_PERM: it has it since Linux 5.0")
    assert done.returncode == 0
    assert int(done.stdout.split()[0]) < HELD_UP_US
    wait_until(lambda: "it is broken" in site.said(), what="the start, after the program's end")


def test_a_handler_may_jump_out_of_an_open(site: Started, files: Files, places: Path) -> None:
    site.learn()
    assert site.run(places, "jump", files.path("f00001")).returncode == 0
    site.daemon()


def written(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_configuration_without_the_word_is_as_before(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    done = session.run(["cksum", files.path("f00001")])
    assert "no daemon serves" in done.stderr
    assert not session.paths.path.exists()


def test_a_configuration_that_is_a_pipe_holds_up_no_program(site: Started, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    given = {"MONARCH_SITE_CONFIG": str(tmp_path / "pipe")}
    site.session.config.write_text("sources: []\n")
    assert site.run("/bin/true", env=given, timeout=20).returncode == 0


def test_what_is_wrong_stands_in_the_log(site: Started, files: Files) -> None:
    text = site.session.config.read_text()
    site.session.config.write_text(text.replace("tier0", "tier-of-nobody"))
    for _ in range(3):
        done = site.run(CAT, files.path("f00001"))
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: "tier-of-nobody" in site.said(), what="its message")
        site.wait_for_starter()
    assert site.starts() == 1, "it counts, and the next does not come at once"


# --- what it costs -------------------------------------------------------------------------------


# An open and all of its processor time may take so long, in one of so many attempts [us]: others
# use the processors as well.
OPEN_US, CPU_US, ATTEMPTS = 2000, 1000, 20


@pytest.mark.usefixtures("alone")
def test_the_first_open_waits_for_no_daemon(site: Started, files: Files, places: Path) -> None:
    """Nor is it slower in a program with much memory."""
    site.learn()
    found: list[tuple[int, int]] = []
    while not any(wall <= OPEN_US and cpu <= CPU_US for wall, cpu in found):
        assert len(found) < ATTEMPTS, found
        done = site.run(places, "large", files.path("f00001"))
        wall, cpu, *rest = map(int, done.stdout.split())
        assert rest == [77, errno.ECHILD], "errno is as it was, and wait has no child"
        site.wait_for_starts(1)
        site.end()
        site.session.paths.forget_starts()
        found.append((wall, cpu))


# --- many at once --------------------------------------------------------------------------------

GATE = 'read -r _; exec "$0" "$1"'


def crowd(site: Started, file: Path, count: int) -> None:
    """Processes that open the file at once, none of which waits."""
    inside, gate = os.pipe()
    waiting = [
        subprocess.Popen(
            ["sh", "-c", GATE, CAT, file],
            env=site.session.env(),
            stdin=inside,
            stdout=subprocess.DEVNULL,
        )
        for _ in range(count)
    ]
    os.close(inside)
    os.close(gate)
    assert {process.wait(timeout=60) for process in waiting} == {0}
    site.daemon()
    assert site.starts() == 1


def test_of_many_that_start_at_once_one_starts_it(site: Started, files: Files) -> None:
    crowd(site, files.path("f00001"), 16)


@pytest.mark.long
def test_64_that_start_at_once_100_times(site: Started, files: Files) -> None:
    site.learn()
    for _ in range(100):
        crowd(site, files.path("f00001"), 64)
        assert site.session.monarch("stop").returncode == 0
        assert site.is_gone()


@pytest.mark.long
def test_under_ray(site: Started, files: Files) -> None:
    pytest.importorskip("ray", reason="ray is missing: pip install ray")
    script = """
import ray, sys
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
read = ray.remote(lambda path: len(open(path, "rb").read()))
print(sum(ray.get([read.remote(sys.argv[1]) for _ in range(4)])))
"""
    site.learn()
    done = site.run(sys.executable, "-c", script, files.path("f00001"), timeout=200)
    assert done.stdout.split()[-1:] == ["12000"], done.stderr
    assert site.starts() == 1
