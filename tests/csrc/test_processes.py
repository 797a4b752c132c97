"""Tests processes that start others, share descriptors, change their root, mounts or user, lack a
resource, or are interrupted. With the library, copies and a daemon, each process must print the
same as without the library. Other tests check what must hold for every interposed call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from csrc.building import CSRC, HERE, build_program, cc
from csrc.places import NEEDS_ROOT, Done, Place, Stage, differences, finish
from support.segments import newest_generation
from support.session import Session, wait_until

from monarch_py.storage.tiers import tier_root

SOURCES = sorted(HERE.glob("processes*.c"))
# `now` binds symbols when the program starts. Otherwise, the dynamic linker would bind a function's
# symbol during the first call, and the linker's use of the stack would be counted as the call's.
FLAGS = ["-pthread", "-Wl,-z,now"]
# Cases that are not run on their own. Other cases or the tests below start them.
PARTS = {"show", "show_bytes", "receive", "use", "stack_use", "lowest_while_it_grows"}
CASES = [
    name
    for path in SOURCES
    for name in re.findall(r'^    \{"(\w+)", \w+\},', path.read_text(), re.M)
    if name not in PARTS
]
# Cases in which no read is served from a copy. Some cases read no file that has a copy, or open the
# path of such a file only while this path leads to a different file. In the other cases, the
# library has no room to map the session, or the process lacks the daemon's rights over files.
NO_HITS = {
    "bad_pointers",
    "chroot_with_the_source",
    "locked_without_room",
    "mount_and_exec",
    "mount_over_directory_and_exec",
    "no_address_space",
    "no_path",
    "stat_without_rights",
}
# The library may leave all reads of a process with its own mount namespace to the source. So these
# cases may read copies or none.
ANY_HITS = {"mount_after_a_look", "setns"}
ENDS = {"stopped": Session.stop, "killed": Session.kill}
# Cases that also run in two other states of the library: after its daemon has ended, and while the
# library is switched off.
FOR_EVERY_CALL = ["errno", "descriptors", "small_stacks"]


def need_root(case: str) -> None:
    if NEEDS_ROOT.search(case) and os.geteuid() != 0:
        pytest.skip("only root may change its root, mounts or user: run the tests as root")


@pytest.fixture(scope="module")
def open_place() -> Iterator[Path]:
    """Makes a directory that any user can reach. The directories of pytest's tmp_path are closed to
    other users."""
    place = Path(tempfile.mkdtemp(prefix="monarch-test-")).resolve()
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def program(open_place: Path) -> Path:
    return build_program(open_place / "processes", *SOURCES, flags=FLAGS)


@pytest.fixture(scope="module")
def stage(open_place: Path, program: Path) -> Iterator[Stage]:
    top = open_place / "serving"
    top.mkdir()
    with Stage(top, program, [*CASES, *sorted(PARTS)]).serving() as stage:
        yield stage


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_same_as_without_the_library(stage: Stage, case: str) -> None:
    need_root(case)
    hits = stage.hits()
    stage.compare(case, stage.run(case))
    assert case in ANY_HITS or (stage.hits() > hits) == (case not in NO_HITS)


# --- every call, in all states of the library ---


@pytest.mark.parametrize("case", FOR_EVERY_CALL)
def test_calls_while_it_is_switched_off(stage: Stage, case: str) -> None:
    stage.compare(case, stage.run(case, env={"MONARCH_DISABLE": "1"}))


@pytest.fixture(scope="module", params=ENDS)
def abandoned(
    request: pytest.FixtureRequest, open_place: Path, program: Path
) -> Iterator[tuple[Stage, dict[str, Done]]]:
    """Starts a program for each case, ends the daemon when every program has read a copy, and lets
    the programs go on. Yields the stage, and the result of each program."""
    top = open_place / str(request.param)
    top.mkdir()
    with Stage(top, program, FOR_EVERY_CALL).serving() as stage, ExitStack() as started:
        processes = {}
        for case in FOR_EVERY_CALL:
            process = stage.start(case, "wait")
            started.callback(process.kill)
            processes[case] = process
        said = {case: said_until_ready(process) for case, process in processes.items()}
        ENDS[request.param](stage.session)
        done = {case: finish(processes[case], said[case], "go\n") for case in processes}
        yield stage, done


def said_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = ""
    while not said.endswith("ready\n"):
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


@pytest.mark.parametrize("case", FOR_EVERY_CALL)
def test_calls_after_the_daemon_has_ended(
    abandoned: tuple[Stage, dict[str, Done]], case: str
) -> None:
    stage, done = abandoned
    plain = stage.start(case, "wait", preload=False)
    expected = finish(plain, line="go\n")
    assert (expected.returncode, expected.stderr) == (0, "")
    seen = stage.plain_names(done[case].stdout)
    assert differences(stage.plain_names(expected.stdout), seen) == []
    assert (done[case].returncode, done[case].stderr) == (0, "")


def test_every_call_is_tried() -> None:
    """Every call of calls.h is in the table of processes_calls.c, or has a case of its own because
    it needs more than a path."""
    listed = set(
        re.findall(r"^    X\((\w+),", (CSRC / "preload/process/calls.h").read_text(), re.M)
    )
    others = "\n".join(path.read_text() for path in SOURCES if path.name != "processes_calls.c")
    table = (HERE / "processes_calls.c").read_text()
    # Only programs that were built before glibc 2.33 call these.
    old = {"__xstat", "__lxstat", "__fxstat", "__fxstatat", "__xmknod", "__xmknodat"}
    elsewhere = {
        "posix_spawn",
        "posix_spawnp",
        "open_by_handle_at",
        *("openat2", "pidfd_spawn", "pidfd_spawnp"),
        "capset",
        *("setgroups", "initgroups", "setgid", "setegid", "setregid", "setresgid"),
    }  # test_unseen_changes.py and test_groups.py test these calls
    tried = set(re.findall(r"\b(\w+)\((?!\w+, call_)", table))
    tried |= {
        name
        for name in ("chroot", "clone", "setns", "fchdir", "fcloseall")
        if re.search(rf"\b{name}\(", others)
    }
    assert listed - old - elsewhere - tried == set()


def test_errno_is_untouched_by_calls_that_succeed(stage: Stage) -> None:
    lines = stage.run("errno").stdout.splitlines()
    # libc's remove tries unlink before rmdir, and so changes errno even without the library.
    changed = [line for line in lines if "errno changed" in line and "remove of a dir" not in line]
    assert changed == []
    assert sum("errno untouched" in line for line in lines) > 500


def test_the_lowest_descriptor_while_the_catalog_grows(stage: Stage) -> None:
    def has_grown() -> bool:
        stage.compare("lowest_while_it_grows", stage.run("lowest_while_it_grows"))
        return newest_generation(stage.session) > before

    before = newest_generation(stage.session)
    # Clients send the daemon only hints about unknown files. Some hints are lost if the daemon is
    # slow, so the case is repeated.
    wait_until(has_grown, what="a larger catalog")


# How much more stack a call may use with the library than without it [bytes]. PLAIN_STACK is for
# opens and stats of plain paths, which are common in signal handlers and on small stacks.
# ONE_PATH_STACK is for opens and lookups of paths in any form, which need room for one path.
# ANY_STACK is for any call. The stack of a signal handler may have only 8 KiB.
PLAIN_STACK, ONE_PATH_STACK, ANY_STACK = 1280, 5888, 8960


def stack_use(done: Done) -> dict[str, int]:
    return {k: int(v) for k, v in re.findall(r"^(.+): (\d+)$", done.stdout, re.M)}


def test_no_call_takes_much_of_a_stack(stage: Stage) -> None:
    with_library = stack_use(stage.run("stack_use"))
    without = stack_use(stage.run("stack_use", preload=False))
    more = {call: with_library[call] - without[call] for call in without}
    for call, added in sorted(more.items(), key=lambda item: -item[1]):
        print(f"{call}: {without[call]} B without the library, {added} B more with it")
    assert {call: n for call, n in more.items() if n > ANY_STACK} == {}
    simple = re.compile(r"(open|openat|fopen|stat|lstat|fstatat)( /proc)?, absolute")
    assert {call: n for call, n in more.items() if simple.match(call) and n > PLAIN_STACK} == {}
    looks = re.compile(
        r"(open|openat|fopen|stat|lstat|fstatat|statx|access|readlink|opendir)(64)?\b"
    )
    assert {call: n for call, n in more.items() if looks.match(call) and n > ONE_PATH_STACK} == {}


# Sizes of the address space [KiB]. With the smallest size, a small program can only just start.
# With the largest size, all segments can be mapped too.
@pytest.mark.parametrize("size", [4550, 5500, 6500, 7500, 10000])
def test_too_little_address_space_from_the_start(stage: Stage, size: int) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is missing: install util-linux")

    def run(preload: bool) -> Done:
        place = Place(stage.top if preload else stage.top / "plain", "use")
        names = ("LD_PRELOAD", "MONARCH_CONFIG") if preload else ()
        env = [f"{name}={stage.session.env()[name]}" for name in names]
        limited = ["prlimit", f"--as={size * 1024}", "env", *env]
        words = [*limited, str(stage.program), "use", str(place.here), str(place.outside)]
        return finish(stage.popen(words, preload=False))

    expected, seen = run(False), run(True)
    if expected.returncode != 0:
        pytest.skip(f"{size} KiB are too little for any program here: {expected.stderr.strip()}")
    assert (seen.returncode, seen.stdout) == (0, expected.stdout)
    assert re.fullmatch(r"(monarch: [^\n]*\n)?", seen.stderr), seen.stderr


# --- other preloaded libraries ---


def build_beside(place: Path, name: str) -> Path:
    out = place / f"{name}.so"
    flags = ["-O1", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    cc(*flags, "-o", out, HERE / f"{name}.c", "-ldl")
    return out


ORDERS = pytest.mark.parametrize("first", [True, False], ids=["before_ours", "after_ours"])


def both(stage: Stage, library: Path, first: bool) -> dict[str, str]:
    order = [library, stage.library] if first else [stage.library, library]
    return {"LD_PRELOAD": ":".join(map(str, order))}


@ORDERS
@pytest.mark.parametrize("case", ["use", "threads", "fork", "exec_inherits"])
def test_a_malloc_that_opens_a_file_before_we_are_ready(
    stage: Stage, case: str, first: bool, open_place: Path
) -> None:
    library = build_beside(open_place, "beside_malloc")
    expected = stage.run(case, preload=False, env={"LD_PRELOAD": str(library)})
    hits = stage.hits()
    seen = stage.run(case, env=both(stage, library, first))
    assert (seen.stdout, seen.returncode) == (expected.stdout, 0)
    assert seen.stderr == expected.stderr == "malloc opened its file\n"
    assert stage.hits() > hits


@ORDERS
def test_another_interposer_sees_the_calls_too(stage: Stage, first: bool, open_place: Path) -> None:
    library = build_beside(open_place, "beside_open")
    expected = stage.run("use", preload=False, env={"LD_PRELOAD": str(library)})
    hits = stage.hits()
    seen = stage.run("use", env=both(stage, library, first))
    assert (seen.stdout, seen.returncode) == (expected.stdout, 0)
    calls = stage.plain_names(expected.stderr).splitlines()
    assert len(calls) > 20
    assert stage.hits() == hits + len(calls)
    paths = stage.plain_names(seen.stderr)
    if first:
        assert paths.splitlines() == calls
    else:  # Monarch's library opens the copies through beside_open.
        copies = stage.plain_names(str(tier_root(stage.session.tiers[0]) / "c"))
        assert re.fullmatch(rf"(open(64)? {re.escape(copies)}/[0-9a-f]{{13}}\n)+", paths)
        assert len(paths.splitlines()) == len(calls)


# --- programs that are unrelated to the library ---

COMMANDS = {
    "sh": 'sh -c "read -r line < f; echo $line; exit 3"',
    "uname": "uname -srm",
    "env": "env | grep -v -e ^LD_PRELOAD= -e ^MONARCH_CONFIG= -e ^PWD=",
    "env_i": "env -i /bin/cat f",
    "pipe": "cat f | head -c 5000 | tail -c 3 && ls d && wc -c < g",
    "killed": 'sh -c "kill -9 $$"',
    "missing": "cat no; no-such-command; true",
    "cp": "cp f /dev/null && stat -c '%n %s %a %h %Y' f && cmp f to_f",
    "background": "sleep 0.05 & wait; echo done",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_silent_and_the_same(stage: Stage, name: str) -> None:
    here = Place(stage.top, "use").here
    words = ["sh", "-c", f"cd {here} || exit 9\n{COMMANDS[name]}"]
    expected = finish(stage.popen(words, preload=False))
    seen = finish(stage.popen(words, preload=True))
    assert (seen.returncode, seen.stdout, seen.stderr) == (
        expected.returncode, expected.stdout, expected.stderr,
    )  # fmt: skip


def test_a_statically_linked_program(stage: Stage, open_place: Path) -> None:
    try:
        static = build_program(open_place / "static", *SOURCES, flags=["-pthread", "-static"])
    except AssertionError as error:
        pytest.skip(f"no static libc to link with (package libc6-dev): {error}")
    hits = stage.hits()
    for case in ("use", "fork"):
        stage.compare(case, stage.run(case, program=static))
    assert stage.hits() == hits


def test_nothing_is_left_mounted(stage: Stage) -> None:
    """No case leaves a mount behind, because each case that mounts something does so in a mount
    namespace of its own."""
    assert str(stage.top) not in Path("/proc/self/mountinfo").read_text()
