"""How much of a stack the library takes: it runs in signal handlers and on the stacks of
coroutines, which have 16 KiB and less."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from csrc.building import CSRC, INCLUDES, PRELOAD, PRELOAD_FLAGS, cc

# One path and what belongs to it [bytes].
FRAME = 4700
# Of these calls and all that they call, as long as nothing is said or logged: SIGSTKSZ, which
# two paths alone would fill [bytes].
CHAIN = 8192
CALLS = (
    *("linkat", "name_to_handle_at", "posix_spawn", "statx"),
    *("monarch_autostart_opened_slow", "monarch_autostart_watch_slow"),
)
SAYS = {"monarch_warn", "monarch_log_slow"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Frames of all functions [bytes], and whom each calls."""
    place = tmp_path_factory.mktemp("stacks")
    flags = [flag for flag in PRELOAD_FLAGS if not flag.startswith(("-Wl,", "-nostart"))]

    def compile_one(name: str) -> str:
        out = place / f"{Path(name).stem}.o"
        try:
            flag = "-fcallgraph-info=su"
            cc("-O2", "-fPIC", "-c", flag, *INCLUDES, *flags, "-o", out, CSRC / name)
        except AssertionError as error:
            pytest.skip(f"the compiler writes no call graph: {error}; GCC has it since 10")
        return out.with_suffix(".ci").read_text()

    with ThreadPoolExecutor(2) as pool:
        text = "\n".join(pool.map(compile_one, PRELOAD))
    nodes = re.findall(r'node: \{ title: "([^"]+)" label: "[^"]*?(\d+) bytes \(', text)
    calls: dict[str, set[str]] = {}
    for caller, called in re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', text):
        calls.setdefault(caller, set()).add(called)
    return {name: int(size) for name, size in nodes}, calls


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
    assert deepest(name, frames, calls, frozenset()) < CHAIN
