"""Real programs read exactly the same under the preload library as without it.

Every reader of readers.py and of the C program runs three times: without the library, with the
library while nothing is cached, and with the library when every file has a copy. The three
transcripts must be equal, and the last run must not open or read any file of the source.

Without --long, a process runs several readers one after the other, and waits between two of them
until the session has dropped its copies. A process that imports packages runs its readers twice:
first without copies, then with them. With --long, each reader has its own processes, except readers
whose packages take seconds to import.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise, zip_longest
from pathlib import Path
from select import select
from typing import Any

import pytest
from support import draws

HERE = Path(__file__).resolve().parent
COMPILER = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
# The time limit for each reader. The first reader's time includes the start of its process.
RUN_LIMIT_S = 120.0
# Between two readers, a program writes NEXT, and waits until it has read GO_ON.
NEXT, GO_ON = b"next\n", b"\n"


@dataclass(frozen=True)
class Program:
    """A program that runs one or more readers in one process.

    readers : the registered names of the readers
    needs : the modules that the readers import
    is_long : whether the test runs only with --long
    """

    readers: tuple[str, ...]
    in_c: bool = False
    needs: tuple[str, ...] = ()
    is_long: bool = False

    @property
    def name(self) -> str:
        """The program's name, which is part of its test's name."""
        return ("c_" if self.in_c else "") + "+".join(self.readers)

    def alone(self) -> list[Program]:
        """Returns the programs that run with --long: one for each reader. Readers of a
        module that is slow to import stay in one program, which imports it once."""
        if SLOW & set(self.needs):
            return [self]
        return [Program((name,), self.in_c, self.needs) for name in self.readers]


@dataclass(frozen=True)
class Run:
    """How a process ended, and the standard output and error of each of its readers."""

    parts: list[tuple[str, str]]
    returncode: int


# The readers of readers.py, by the modules that they need beyond the standard library. Readers that
# are joined by commas run in one process.
PYTHON_READERS: dict[tuple[str, ...], str] = {
    (): "open_read,open_lines,os_readv,os_preadv,os_pread_threads,read_seek,dup_shared_offset,"
    "proc_fd_paths "
    "py_mmap,mmap_offset,odirect,odirect_open,sendfile_copy,copy_file_range,shutil_copyfile,"
    "shutil_copytree "
    "relative_paths,fchdir_paths,dirfd_paths,fwalk_dirfd,symlink_paths,symlinks_from_outside,"
    "listings,stat_all,same_file,extended,errors,opened_with_flags,opened_with_sync "
    "inherited_fd,standard_input,forked_fd,forked_open,passed_fd,exec_child,"
    "exec_without_environment,subprocess_tools "
    "pool_fork,pool_spawn,pool_forkserver,zip_members,tar_members",
    ("PIL",): "pil",
    ("numpy",): "np_load,np_fromfile,np_load_many,np_load_mmap,np_memmap",
    ("h5py",): "h5py_sec2,h5py_core,h5py_stdio,h5py_swmr",
    ("pyarrow",): "pyarrow_parquet,pyarrow_files",
    ("torch", "PIL"): "torch_load,torch_load_mmap,torch_from_file,torch_dataloader_0,"
    "torch_dataloader_fork_2,torch_training "
    "torch_dataloader_spawn_2,torch_dataloader_forkserver_2",
    ("tensorflow", "PIL"): "tf_training,tf_tfrecord,tf_lines,tf_read_file,tf_gfile,tf_cache",
    ("nvidia.dali", "PIL"): "dali_tfrecord_mapped,dali_tfrecord_read,dali_files",
}
# close_range must be the last reader of its process, because it closes the library's descriptors.
C_READERS = (
    "fopen,fopen64,freopen,fdopen,getline "
    "open,open_2,openat,pread,vectors "
    "mmap_private,mmap_shared,fadvise,sendfile,copy_file_range,splice "
    "stat,xstat,fstatat,statx,locks,listings "
    "vfork_exec,fork_inherit,exec_inherit,threads,close_range"
)
SLOW = {"torch", "tensorflow", "nvidia.dali"}
# A program with one of these readers runs only with --long, because each worker process that the
# reader starts imports torch, which takes long. The readers pool_spawn and pool_forkserver start
# workers without torch, so they always run.
LONG = {"torch_dataloader_spawn_2"}
TOGETHER = [
    Program(
        tuple(names.split(",")),
        needs=needs,
        is_long=bool(LONG & set(names.split(","))),
    )
    for needs, readers in PYTHON_READERS.items()
    for names in readers.split()
] + [Program(tuple(names.split(",")), in_c=True) for names in C_READERS.split()]
PROGRAMS = draws.sized(TOGETHER, [alone for program in TOGETHER for alone in program.alone()])

# The readers that may access the source although every file has a copy, each with the reason.
MAY_REACH_THE_SOURCE = {
    "symlinks_from_outside": (
        "the library may not recognize a path through a link outside the sources, and the open then"
        " goes to the source"
    ),
    "odirect": "a tmpfs of an older kernel refuses O_DIRECT, so such opens go to the source",
    "odirect_open": "as odirect",
    "opened_with_sync": (
        "the library marks its own opens of copies with O_DSYNC, so a program's open with O_DSYNC"
        " goes to the source"
    ),
    "exec_without_environment": (
        "without the environment variables, a program's children do not load the library"
    ),
}

# These readers take locks. For a lock, the library opens the source's file, but does not read it.
LOCKS = {"h5py_sec2", "h5py_stdio", "h5py_core", "locks"}

TRAININGS = {"torch_training", "tf_training"}

each_program = pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=[pytest.mark.long] * program.is_long)
        for program in PROGRAMS
    ],
)


def is_installed(module: str) -> bool:
    """Returns whether a module is installed. If the package that contains the module is missing,
    find_spec raises an error instead of returning None."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the C readers, and returns the path of the program."""
    if shutil.which(COMPILER[0]) is None:
        pytest.skip(f"{COMPILER[0]} is missing, and the C readers cannot be compiled without it")
    binary = tmp_path_factory.mktemp("readers") / "readers"
    sources = sorted(str(path) for path in HERE.glob("readers*.c"))
    command = [*COMPILER, f"-DONE_IN={draws.sized(8, 3)}", "-o", str(binary), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stderr}"
    return binary


def _parts(
    process: subprocess.Popen[bytes], errors: int, readers: int, between: Callable[[int], None]
) -> Iterator[tuple[str, str]]:
    """Yields the standard output and error of each reader. Before each reader but the first, calls
    `between` with that reader's number while the process waits. Raises TimeoutExpired if a reader
    takes longer than RUN_LIMIT_S.

    errors : the file to which the process writes its standard error
    """
    assert process.stdin is not None
    assert process.stdout is not None
    complained = 0
    for number in range(1, readers + 1):
        limit, seen, is_over = time.monotonic() + RUN_LIMIT_S, b"", False
        while not is_over:
            if not select([process.stdout], [], [], max(0, limit - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(process.args, RUN_LIMIT_S, seen)
            data = os.read(process.stdout.fileno(), 1 << 20)
            seen += data
            is_over = not data or (number < readers and seen.endswith(b"\n" + NEXT))
        complaints = os.pread(errors, os.fstat(errors).st_size - complained, complained)
        complained += len(complaints)
        yield seen.removesuffix(NEXT).decode(), complaints.decode()
        if not data:
            return
        between(number)
        process.stdin.write(GO_ON)
        process.stdin.flush()


@pytest.fixture(scope="module")
def run(shared_session: Any, request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Returns a function that runs a program's readers on the source, with the library or without
    it."""

    def run_program(
        program: Program,
        preload: bool,
        between: Callable[[int], None] = lambda number: None,
        readers: Sequence[str] = (),
    ) -> Run:
        for module in program.needs:
            if not is_installed(module):
                pytest.skip(f"{module} is not installed")
        readers = readers or program.readers
        if program.in_c:
            command = [str(request.getfixturevalue("c_program"))]
        else:
            command = [sys.executable, str(HERE / "readers.py")]
        command += [",".join(readers), str(shared_session.source)]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command,
                env=shared_session.env(preload),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as process,
        ):
            try:
                parts = list(_parts(process, errors.fileno(), len(readers), between))
                return Run(parts, process.wait(RUN_LIMIT_S))
            finally:
                process.kill()

    return run_program


@pytest.fixture(scope="module")
def plain(shared_session: Any, run: Callable[..., Run]) -> Callable[[Program], Run]:
    """Returns a function that runs a program without the library. Each program runs only once."""
    known: dict[str, Run] = {}

    def plain_run(program: Program) -> Run:
        if program.name not in known:
            with shared_session.fast_source():
                done = run(program, False)
            assert done.returncode == 0, f"fails without the library:\n{done.parts[-1][1]}"
            assert len(done.parts) == len(program.readers)
            assert all(seen for seen, _ in done.parts), "sees nothing without the library"
            known[program.name] = done
        return known[program.name]

    return plain_run


def difference(expected: str, seen: str) -> str:
    """Returns the first lines in which two transcripts differ; an empty text if they are equal."""
    pairs = zip_longest(expected.splitlines(), seen.splitlines(), fillvalue="(nothing)")
    found = [
        f"line {number}\n  without: {one}\n  with:    {two}"
        for number, (one, two) in enumerate(pairs, start=1)
        if one != two
    ]
    return "\n".join([*found[:5], f"{len(found)} lines differ"]) if found else ""


def without_numbers(stderr: str) -> str:
    """Returns standard error without the process numbers in Python's warning about fork."""
    return re.sub(r"\bpid=\d+", "pid=N", stderr)


def assert_same(expected: Run, seen: Run, is_later: bool = False) -> None:
    """Fails unless two runs have the same exit status, and each reader has the same standard output
    and error in both.

    is_later : whether the process of `seen` had run the readers before. Its standard error may then
        be empty, because Python does not repeat a warning
    """
    for (said, complained), (says, complains) in zip(expected.parts, seen.parts, strict=False):
        differs = difference(without_numbers(complained), without_numbers(complains))
        if differs and (complains or not is_later):
            pytest.fail(f"standard error differs, exit status {seen.returncode}\n{differs}")
        if differs := difference(said, says):
            pytest.fail(f"the transcripts differ\n{differs}")
    assert seen.returncode == expected.returncode
    assert len(seen.parts) == len(expected.parts)


def test_every_reader_is_run(c_program: Path) -> None:
    listed = {
        False: [sys.executable, str(HERE / "readers.py"), "--list"],
        True: [str(c_program), "--list"],
    }
    for in_c, command in listed.items():
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        run_here = [name for p in PROGRAMS if p.in_c == in_c for name in p.readers]
        assert sorted(names) == sorted(run_here)


def test_the_excused_readers_exist() -> None:
    assert set(MAY_REACH_THE_SOURCE) <= {name for p in PROGRAMS for name in p.readers}


def test_a_cold_run_reads_the_source_and_a_warm_one_does_not(
    shared_session: Any, run: Callable[..., Run]
) -> None:
    """The source counts opens and reads, and the other tests rely on these counters. A run without
    copies must increase the counters, and a run with copies must not change them."""
    everything = Program(("open_read",))
    size = sum(
        path.stat().st_size
        for path in shared_session.source.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    shared_session.forget()
    before = shared_session.source_counts()
    assert run(everything, True).returncode == 0
    shared_session.wait_all_present()
    cold = shared_session.source_counts()
    # edge/twin_a and edge/twin_b are hard links of one file, which may have been copied only once.
    assert cold["bytes_read"] - before["bytes_read"] >= 0.99 * size
    assert run(everything, True).returncode == 0
    warm = shared_session.source_counts()
    assert (warm["open"], warm["read"]) == (cold["open"], cold["read"])


@each_program
def test_it_sees_the_same_cold_and_warm(
    program: Program,
    shared_session: Any,
    run: Callable[..., Run],
    plain: Callable[[Program], Run],
) -> None:
    """Each reader writes the same as without the library, in two cases. In the first case, nothing
    is cached when the reader begins, and the daemon makes copies while the reader runs. In the
    second case, everything is cached, and the reader neither opens nor reads the source."""
    expected = plain(program)
    number = len(program.readers)
    counts = []

    def before(turn: int) -> None:
        if turn < number:
            # forget() drops no copy whose fill is under way. So wait until all fills have ended.
            shared_session.wait_idle()
            shared_session.forget()
            return
        if turn == number:
            with shared_session.fast_source():
                shared_session.wait_all_present()
        counts.append(shared_session.source_counts())

    before(0)
    if program.needs and not draws.is_long:
        both = run(program, True, before, program.readers * 2)
        cold = Run(both.parts[:number], both.returncode)
        warm = Run(both.parts[number:], both.returncode)
        assert_same(expected, cold)
        assert_same(expected, warm, is_later=True)
    else:
        assert_same(expected, run(program, True, before))
        before(number)
        assert_same(expected, run(program, True, lambda turn: before(number + turn)))
    counts.append(shared_session.source_counts())
    for name, (first, last) in zip(program.readers, pairwise(counts), strict=True):
        if name not in MAY_REACH_THE_SOURCE:
            kinds = ("read",) if name in LOCKS else ("open", "read")
            reached = {kind: last[kind] - first[kind] for kind in kinds}
            assert reached == dict.fromkeys(kinds, 0), f"{name} reaches the source"
    for name, (transcript, _) in zip(program.readers, expected.parts, strict=True):
        if name in TRAININGS:
            assert_it_learnt(transcript)


def assert_it_learnt(transcript: str) -> None:
    """Fails unless the weights changed and the loss fell. If they did not, equal weights in two
    runs would not prove that both runs read the same bytes."""
    lines = [json.loads(line) for line in transcript.splitlines()]
    weights = {line["weights"] for line in lines if "weights" in line}
    losses = [float.fromhex(line["mean"]) for line in lines if "mean" in line]
    assert len(weights) == 2
    assert len(losses) == 2
    assert losses[1] < losses[0]


def test_odirect_is_refused_or_taken_as_without_the_library(
    shared_session: Any, run: Callable[..., Run], plain: Callable[[Program], Run]
) -> None:
    """If the source accepts O_DIRECT, an open with O_DIRECT succeeds, even if the file's copy lies
    on a tier that refuses O_DIRECT with EINVAL."""
    program = Program(("odirect_open",))
    expected = plain(program)
    if '"errno"' in expected.parts[0][0]:
        pytest.skip("the file system below the source refuses O_DIRECT itself")
    shared_session.wait_all_present()
    assert_same(expected, run(program, True))
