"""Tests how the library launches a program that has no connection with the process: what the
program inherits, and how long the process waits for it."""

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
# The program shows what it has inherited. Its descriptor 3 gets all of this. The shell itself reads
# its signals, because it blocks signals while it starts another program.
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
RAISED = {
    "Max cpu time": (resource.RLIMIT_CPU, 10**6), "Max file size": (resource.RLIMIT_FSIZE, HIGH),
    "Max data size": (resource.RLIMIT_DATA, HIGH), "Max processes": (resource.RLIMIT_NPROC, 10**5),
    "Max open files": (resource.RLIMIT_NOFILE, 900),
    "Max address space": (resource.RLIMIT_AS, HIGH),
}  # fmt: skip


class Launch:
    """Launches a shell. Its descriptor 3 is a FIFO from which the test reads."""

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
        self._words += [words, array]  # the launched process uses them even later
        return array

    def run(
        self, *words: str, has_errors: bool = True, keeps: bool = True, waits: bool = False,
        is_old: bool = False,
    ) -> None:  # fmt: skip
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
        """Waits for the program's end. Returns what it has shown: name -> value."""
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
    """Lowers the limits of this process. No limit is so low that the process reaches it."""
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
    """Whether a process with another priority may get the usual one."""
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
    """It has its own session and its own signals, and is no child of this process. It leaves the
    directory of this process, and its limits, processors and priority."""
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
    # The shell has a pipe to the program that lists its descriptors.
    assert {name: path for name, path in table.items() if not path.startswith("pipe:")} == {
        "fd 0": "/dev/null", "fd 1": "/dev/null", "fd 2": str(launch.errors),
        "fd 3": str(launch.fifo)}  # fmt: skip
    assert launch.errors.read_text() == "error\n"
    assert found["directory"] == "/" and found["umask"].endswith("077")
    assert found["variables"].split() == ["ONE=1", "PATH=/usr/bin:/bin"]
    assert found["name"] == "a name"
    stat = found["stat"].rsplit(")", 1)[1].split()
    process, parent, group, session, terminal = [found["Pid"], *stat[1:5]]
    assert process == group == session and terminal == "0" and int(parent) != os.getpid()
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
    """The program gets its descriptors all the same, and this process keeps its own."""
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
    """Until the program starts, the launch is not over, because the new process uses the memory of
    this one."""
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
    """Returns this process's children, also those that have ended but were not reaped."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


def test_a_launch_is_over_when_all_processes_have_ended(lib: Any) -> None:
    """In a forked child, a launch of the parent is over: nobody uses the child's memory."""
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
