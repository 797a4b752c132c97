"""Tests how the library launches a program that runs independently of the launching process: what
the program inherits, and how long the process waits for the program's start."""

from __future__ import annotations

import os
import resource
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import open_descriptors
from support.session import wait_until

LIMIT_S = 60
# The launched shell writes to its descriptor 3 what it has inherited. It reads its `status` file in
# /proc without starting `cat`: a shell blocks signals while it starts a program, and `status` would
# show these signals as blocked.
SCRIPT = """
table=$(ls -l /proc/$$/fd)
exec >&3
echo "$table"
echo "directory $(pwd)"
echo "umask $(umask)"
echo "variables $(env | sort | grep -v -e ^PWD= -e ^SHLVL= -e ^_= | tr '\\n' ' ')"
echo "name $0"
read -r stat </proc/$$/stat
echo "stat $stat"
for file in status limits; do
    while read -r line; do echo "$line"; done </proc/$$/$file
done
echo error >&2
"""
HIGH = 1 << 50
# The limits that a launch raises: name in /proc/PID/limits -> (number, lower value for the test).
RAISED = {
    "Max cpu time": (resource.RLIMIT_CPU, 10**6), "Max file size": (resource.RLIMIT_FSIZE, HIGH),
    "Max data size": (resource.RLIMIT_DATA, HIGH), "Max processes": (resource.RLIMIT_NPROC, 10**5),
    "Max open files": (resource.RLIMIT_NOFILE, 900),
    "Max address space": (resource.RLIMIT_AS, HIGH),
}  # fmt: skip


class Launch:
    """Launches programs. The test reads from a FIFO what a program writes to its descriptor 3."""

    def __init__(self, lib: Any, directory: Path) -> None:
        self.lib, self.errors = lib, directory / "errors"
        self.fifo, self.gate = directory / "fifo", directory / "gate"
        os.mkfifo(self.fifo)
        os.mkfifo(self.gate)
        self.errors.touch()
        self.reader = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        self._words: list[Any] = []

    def _texts(self, texts: list[str]) -> Any:
        words = [ffi.new("char[]", os.fsencode(text)) for text in texts]
        array = ffi.new("const char *[]", [*words, ffi.NULL])
        self._words += [words, array]  # the launched process uses them after this call
        return array

    def run(
        self, *words: str, has_errors: bool = True, keeps: bool = True, waits: bool = False,
        is_old: bool = False,
    ) -> None:  # fmt: skip
        """Launches the program words[0] with the arguments `words`.

        has_errors : whether the program's descriptor 2 is the file `errors`; if not, it is
        /dev/null
        keeps : whether the program's descriptor 3 is the FIFO; if not, no program is started
        waits : whether the program starts only when the test opens `gate`
        is_old : whether the kernel seems to lack close_range
        """
        variables = ["PATH=/usr/bin:/bin", "ONE=1"]
        files = [(self.fifo, keeps), (self.errors, has_errors), (self.gate, waits)]
        for path, _ in files:
            self._words.append(ffi.new("char[]", bytes(path)))
        given = [one if is_given else ffi.NULL
                 for one, (_, is_given) in zip(self._words[-3:], files, strict=True)]  # fmt: skip
        before = open_descriptors()
        done = self.lib.launch_run(self._texts(list(words)), self._texts(variables), *given, is_old)
        assert done == 1 and open_descriptors() == before

    def shell(self, **how: bool) -> None:
        self.run("/bin/sh", "-c", SCRIPT, "a name", **how)

    def wait_until_over(self) -> None:
        wait_until(self.lib.launch_is_over, timeout=LIMIT_S)

    def output(self) -> dict[str, str]:
        """Waits until the program ends. Returns what SCRIPT has written: name -> value."""
        content = b""
        while True:
            assert select.select([self.reader], [], [], LIMIT_S)[0], content
            if not (more := os.read(self.reader, 65536)):
                break
            content += more
        found = {}
        for line in content.decode().splitlines():
            if " -> " in line:
                number, _, path = line.partition(" -> ")
                found["fd " + number.split()[-1]] = path
            elif line.startswith("Max "):
                found[line[:25].strip()] = line[25:].strip()
            else:
                name, _, value = line.partition(":" if ":\t" in line else " ")
                found[name] = value.strip()
        return found


@pytest.fixture
def launch(lib: Any, tmp_path: Path) -> Iterator[Launch]:
    one = Launch(lib, tmp_path)
    yield one
    one.wait_until_over()
    os.close(one.reader)


@contextmanager
def lowered_limits() -> Iterator[None]:
    """Lowers those limits of this process that are listed in RAISED, but leaves them high enough
    for this process."""
    before = {number: resource.getrlimit(number) for number, _ in RAISED.values()}
    try:
        for number, most in RAISED.values():
            hard = before[number][1]
            low = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (low, hard))
        yield
    finally:
        for number, limits in before.items():
            resource.setrlimit(number, limits)


def may_raise_priority() -> bool:
    """Returns whether a process with a lower priority may return to the default priority."""
    child = os.fork()
    if child == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 19)
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_the_program_inherits_what_it_needs_and_nothing_else(launch: Launch) -> None:
    """The program has a process group of its own in this process's session, blocks and ignores no
    signal, and is no child of this process. It does not keep this process's directory, limits,
    processors or priority."""
    inherited = os.dup2(launch.reader, 200, inheritable=True)
    processors = os.sched_getaffinity(0)
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        os.sched_setaffinity(0, {min(processors)})
        with lowered_limits():
            launch.shell()
    finally:
        os.sched_setaffinity(0, processors)
        signal.signal(signal.SIGUSR1, ignored)
        os.close(inherited)
    found = launch.output()
    table = {name: path for name, path in found.items() if name.startswith("fd ")}
    # The shell also has a pipe, through which it reads the list of its descriptors from `ls`.
    assert {name: path for name, path in table.items() if not path.startswith("pipe:")} == {
        "fd 0": "/dev/null", "fd 1": "/dev/null", "fd 2": str(launch.errors),
        "fd 3": str(launch.fifo)}  # fmt: skip
    assert launch.errors.read_text() == "error\n"
    assert found["directory"] == "/" and found["umask"].endswith("077")
    assert found["variables"].split() == ["ONE=1", "PATH=/usr/bin:/bin"]
    assert found["name"] == "a name"
    stat = found["stat"].rsplit(")", 1)[1].split()
    process, parent, group, session = [found["Pid"], *stat[1:4]]
    assert process == group and int(session) == os.getsid(0) and int(parent) != os.getpid()
    for name in ("SigBlk", "SigIgn"):
        assert int(found[name], 16) == 0, name
    for name in RAISED:
        soft, hard = found[name].split()[:2]
        assert soft == hard, name
    allowed = int(found["Cpus_allowed"].replace(",", ""), 16)
    assert {i for i in range(4096) if allowed >> i & 1} >= processors
    if may_raise_priority():
        assert stat[16] == "0"


@pytest.mark.parametrize("has_errors", [False, True])
def test_an_older_kernel_copies_the_table_of_descriptors(launch: Launch, has_errors: bool) -> None:
    """An older kernel gives the launched process a copy of this process's table of descriptors. The
    program still gets the right descriptors 0 to 3, and this process keeps its own."""
    launch.shell(is_old=True, has_errors=has_errors)
    found = launch.output()
    errors = str(launch.errors) if has_errors else "/dev/null"
    assert [found[f"fd {i}"] for i in range(4)] == ["/dev/null"] * 2 + [errors, str(launch.fifo)]


def test_a_program_that_cannot_be_executed_is_reported(launch: Launch) -> None:
    launch.run("/none/program")
    launch.wait_until_over()
    assert launch.errors.read_text() == (
        "monarch: no daemon was started: cannot execute /none/program\n"
    )


def test_without_a_descriptor_to_keep_nothing_is_executed(launch: Launch) -> None:
    launch.run("/none/program", keeps=False)
    launch.wait_until_over()
    assert launch.errors.read_text() == ""


def test_a_launch_that_hangs_is_not_waited_for(launch: Launch) -> None:
    """If a launch hangs, the call returns nevertheless. The launch is not over before the program
    starts: until then, the new process uses this process's memory."""
    launch.shell(waits=True)
    for _ in range(3):
        assert not launch.lib.launch_is_over()
    os.close(os.open(launch.gate, os.O_WRONLY))
    launch.wait_until_over()
    assert launch.output()["name"] == "a name"


def test_a_launch_leaves_no_child(launch: Launch) -> None:
    before = children()
    launch.run("/bin/sh", "-c", ":")
    launch.wait_until_over()
    assert children() <= before


def children() -> set[str]:
    """Returns the pids of this process's children, including those that have ended but were not
    reaped."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


def test_a_launch_is_over_when_all_processes_have_ended(lib: Any) -> None:
    """In a forked child, a launch by its parent counts as over, because no launched process uses
    the child's memory."""
    own = os.getpid()
    assert lib.launch_is_over_with(own, 0, 0, 0)
    assert not lib.launch_is_over_with(own, 1, 0, 0)
    assert not lib.launch_is_over_with(own, 0, 1, 0)
    assert lib.launch_is_over_with(os.getppid(), 1, 1, 0)
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(ends[0], 1)
        os._exit(0)
    assert not lib.launch_is_over_with(own, 0, 0, child)
    os.write(ends[1], b"x")
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert lib.launch_is_over_with(own, 0, 0, child)
    assert str(child) not in children()
    for fd in ends:
        os.close(fd)
