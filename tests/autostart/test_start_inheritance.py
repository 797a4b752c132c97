"""A daemon that a program starts inherits little from this program, and ends on its own."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from autostart.started import CAT, READER, Started, age, needs
from support.draws import cases
from support.files import Files
from support.session import wait_until
from support.steps import Steps

from monarch_py.daemon.orphan import IdleWatch
from monarch_py.daemon.server import Daemon

# --- what the daemon does not inherit ------------------------------------------------------------

# Changes signals, umask, limits and descriptors, and then reads the file. A launcher or a careless
# script may make such changes for the first rank.
ROUGH = """
trap '' TERM INT HUP USR1 PIPE; umask 777
ulimit -S -v 4000000; ulimit -S -t 100; ulimit -S -f 99999; ulimit -S -n 64
exec 9<"$1"; "$0" "$1" | wc -c
"""


def bound() -> list[str]:
    """Returns a command that runs a program on one processor and one memory node, with a low
    priority."""
    needs("numactl", "taskset", "nice", "setsid")
    node = Path("/proc/self/status").read_text().partition("Mems_allowed_list:\t")[2][0]
    first = str(min(os.sched_getaffinity(0)))
    return ["taskset", "-c", first, "numactl", f"--membind={node}", "nice", "-n", "7", "setsid"]


def test_a_daemon_is_not_what_the_first_rank_is(site: Started, files: Files) -> None:
    file = files.path("f00001")
    odd = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/nowhere", "LD_LIBRARY_PATH": "/nowhere"}
    # The pipeline in ROUGH ends although the daemon still runs, because the daemon does not inherit
    # the pipe.
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
    # The daemon stays in the program's session, which setsid (see `bound`) has made.
    assert os.getsid(daemon.pid) not in {os.getsid(0), daemon.pid}
    assert os.getpgid(daemon.pid) == daemon.pid
    streams = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in (0, 1)]
    assert streams == ["/dev/null"] * 2


# --- when the daemon ends, and which process becomes its parent ----------------------------------


@pytest.mark.long  # test_an_ordinary_user_is_served_with_the_tiers_of_the_site does the same
def test_programs_are_served_and_the_daemon_ends_when_none_is_left(
    short_lived: Started, files: Files
) -> None:
    site = short_lived
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
        assert site.daemons(), "the daemon ended while a program used it"
    wait_until(site.is_gone, what="the end of the idle daemon")
    assert "no process has used it for 2 s" in site.said()
    left = {path.name for path in site.session.paths.path.iterdir()}
    assert left == {"autostart", "log", "starts", "stopped", "turn", "users"}
    assert site.starts() == 0, "the start of a daemon that was not killed must not count"
    assert not any(site.session.tiers[0].iterdir())


def test_a_daemon_that_makes_copies_is_used(site: Started) -> None:
    """A daemon that makes copies counts as used, even if no program is attached. This is the case
    after `monarch warm`, for example."""
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


# Name -> a command that runs the program. In the case `namespace`, the PID namespace ends when the
# program ends, and then the kernel kills the daemon.
FIRSTS = {
    "tini": ["tini", "-s", "--", "bash", "-c", '"$@" & wait $!', "bash"],
    "namespace": ["unshare", "--pid", "--fork", "--kill-child", "bash", "-c", '"$@"; true', "bash"],
    "torchrun": ["torchrun", "--no-python", "--nproc-per-node", "2"],
}


@pytest.mark.parametrize("first", cases(FIRSTS, ["tini", "namespace"]))
def test_the_first_process_ends_as_without_us(site: Started, files: Files, first: str) -> None:
    prefix = FIRSTS[first]
    needs(prefix[0])
    if first == "namespace" and os.geteuid() != 0:
        pytest.skip("only root may make a pid namespace: run the tests as root")
    site.learn()

    def reads(name: str, *words: str) -> None:
        # `words` is a command that runs CAT. This command and CAT are both under the library.
        done = site.run(*words, CAT, files.path(name), timeout=60)
        assert done.returncode == 0, done.stderr

    def is_started(count: int, name: str, *words: str) -> bool:
        reads(name, *words)
        site.wait_for_starter()
        return site.starts() == count

    if first == "namespace":
        # When the namespace ends, all processes in it are killed. This may kill the starter too,
        # even before the start is recorded.
        wait_until(lambda: is_started(1, "f00001", *prefix), what="the first start", every=0.2)
        wait_until(site.is_gone, what="the end of the namespace")
        age(site)
        wait_until(lambda: is_started(2, "f00002"), what="the second start", every=0.2)
    else:
        reads("f00001", *prefix)
        site.wait_for_starts(1)
    daemon = site.daemon()
    adopting = {1, os.getpid()} | {parent.pid for parent in psutil.Process().parents()}
    # The kernel releases a starter's lock a moment before the starter's child gets a new parent.
    wait_until(lambda: daemon.ppid() in adopting, what="the daemon's adoption")
    for process in psutil.process_iter(["status", "ppid"]):
        assert process.info["status"] != psutil.STATUS_ZOMBIE or process.info["ppid"] != os.getpid()
