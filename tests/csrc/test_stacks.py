"""Tests how much stack the library uses. The library must use little, because it also runs in
signal handlers and on the stacks of coroutines, which have 16 KiB or less."""

from __future__ import annotations

import re
import subprocess

import pytest
from csrc.building import CSRC, PRELOAD, PRELOAD_COMPILED, compile_all

# PATH: the size of a path [bytes]. FRAME: the limit on the stack frame of one function [bytes],
# which leaves room for one path and some other variables.
PATH, FRAME = 4096, 4700
# The limit on the stack that each call in CALLS uses [bytes], including the functions that it
# calls. Functions in SAYS, which print or log, do not count. The limit is SIGSTKSZ, the usual size
# of a signal handler's stack. Two buffers for paths would already fill it.
CHAIN = 8192
CALLS = (
    *("linkat", "name_to_handle_at", "posix_spawn", "statx"),
    *("monarch_autostart_opened_slow", "monarch_autostart_watch_slow"),
)
SAYS = {"monarch_warn", "monarch_log_slow"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Returns the frame sizes of all functions [bytes], and for each function the functions that it
    calls or passes on as pointers."""
    place = tmp_path_factory.mktemp("stacks")
    objects = compile_all(place, [CSRC / name for name in PRELOAD], PRELOAD_COMPILED)
    frames: dict[str, int] = {}
    calls: dict[str, set[str]] = {}
    for compiled in objects:
        listed = subprocess.run(
            ["readelf", "-rsW", compiled], capture_output=True, text=True, check=True
        ).stdout
        shared = set(re.findall(r" GLOBAL +\w+ +\S+ (\S+)$", listed, re.M))

        def name_of(function: str, known: set[str] = shared, file: str = compiled.stem) -> str:
            """Returns a unique name for the function. For a static function, the name contains the
            file, because several files may have static functions of the same name."""
            return function if function in known else f"{file}:{function}"

        caller = ""
        for line in listed.splitlines():
            if section := re.match(r"Relocation section '\.rela?(\S*)'", line):
                caller = function_of(section[1])
            elif caller and (used := re.match(r"[0-9a-f]{8,} +\S+ +R_\S+ +[0-9a-f]+ +(\S+)", line)):
                called = function_of(used[1]) or used[1]
                if called != caller:
                    calls.setdefault(name_of(caller), set()).add(name_of(called))
        for line in compiled.with_suffix(".su").read_text().splitlines():
            where, size, _ = line.split("\t")
            function = name_of(where.rpartition(":")[2])
            frames[function] = max(int(size), frames.get(function, 0))
    return frames, calls


def function_of(section: str) -> str:
    """Returns the function whose code is in the section. Each function has a section of its own,
    and possibly a second section for code that hardly ever runs."""
    found = re.match(r"\.text\.(?:unlikely\.|startup\.)?(.+)", section)
    return re.sub(r"(\.cold|\.\d+)+$", "", found[1]) if found else ""


def deepest(
    name: str, frames: dict[str, int], calls: dict[str, set[str]], on: frozenset[str]
) -> int:
    below = [
        deepest(called, frames, calls, on | {name})
        for called in calls.get(name, ())
        if called in frames and called not in on and called not in SAYS
    ]
    return frames[name] + 8 + max(below, default=0)


def test_no_function_has_room_for_two_paths(
    graph: tuple[dict[str, int], dict[str, set[str]]],
) -> None:
    frames, _ = graph
    assert len(frames) > 300
    assert {name: size for name, size in frames.items() if size > FRAME} == {}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_needs_room_for_one_path_at_a_time(
    graph: tuple[dict[str, int], dict[str, set[str]]], name: str
) -> None:
    frames, calls = graph
    assert PATH < deepest(name, frames, calls, frozenset()) < CHAIN
