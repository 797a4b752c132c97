"""Tests how the files of csrc depend on each other: there is no cycle, and a folder depends only on
itself and on folders that LAYERS lists below it.

A component is a C file and the header of the same name. Component A depends on component B if A
includes a file of B, or uses a symbol that B defines (according to nm).
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from csrc.building import CSRC, NATIVE, PRELOAD, PRELOAD_COMPILED, WARNINGS, compile_all

# Each folder uses only itself and folders in lines below its own.
LAYERS = [
    ["testing", "handover", "simulator"],
    ["engine"],
    ["copy"],
    ["scan", "serving"],
    ["peers", "publish"],
    ["clients"],
    ["preload/calls"],
    ["preload/mappings"],
    ["preload/promotion", "preload/changes"],
    ["preload/fill"],
    ["preload/lookup"],
    ["preload/attach"],
    ["preload/autostart"],
    ["preload/descriptors"],
    ["preload/session"],
    ["preload/process", "plan", "loaders"],
    ["native.h"],
    ["shared"],
]
Graph = dict[str, set[str]]


def component(path: str) -> str:
    return str(Path(path).with_suffix(""))


def folder(name: str) -> str:
    return str(Path(name).parent) if "/" in name else f"{name}.h"


def included(path: Path) -> set[str]:
    """Returns the files of csrc that the file includes. The paths in #include lines are relative to
    csrc."""
    names = set(re.findall(r'^#include "([^"]+)"', path.read_text(), re.M))
    assert all((CSRC / name).exists() for name in names), (
        f"{path} includes a file that is not in csrc"
    )
    return names


@pytest.fixture(scope="module")
def includes() -> Graph:
    graph: Graph = {}
    for path in [*CSRC.rglob("*.c"), *CSRC.rglob("*.h")]:
        own = component(str(path.relative_to(CSRC)))
        others = {component(name) for name in included(path)} - {own}
        graph.setdefault(own, set()).update(others)
    return graph


def symbols_of(compiled: Path) -> tuple[set[str], set[str]]:
    """Returns the symbols that an object defines, and those that it needs."""
    listed = subprocess.run(["nm", compiled], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in listed.splitlines()]
    defined = {line[-1] for line in words if line[-2] in "TDBRVC"}
    return defined, {line[-1] for line in words if line[-2] == "U"}


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Returns, for each component, the components that define the symbols it needs. The library and
    the Python module are linked separately, so a component's symbols are looked up only among the
    files that are linked with it. No file may compile with a warning."""
    only_native = sorted({*NATIVE} - {*PRELOAD})
    symbols: dict[str, tuple[set[str], set[str]]] = {}
    for names, flags in ((PRELOAD, PRELOAD_COMPILED), (only_native, ["-O0", "-fPIC", *WARNINGS])):
        place = tmp_path_factory.mktemp("objects")
        objects = compile_all(place, [CSRC / name for name in names], flags, silent=True)
        symbols |= dict(zip(names, map(symbols_of, objects), strict=True))
    graph: Graph = {}
    for linked in (PRELOAD, NATIVE):
        for one in linked:
            for other in linked:
                if one != other and symbols[one][1] & symbols[other][0]:
                    graph.setdefault(component(one), set()).add(component(other))
    return graph


def circle(graph: Graph) -> list[str]:
    """Returns the components of a cycle, or an empty list if there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := walk(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b", "d"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_no_circle_of_includes(includes: Graph) -> None:
    assert circle(includes) == []


def test_no_circle_of_symbols(uses: Graph) -> None:
    assert circle(uses) == []


def test_folders_point_downwards(includes: Graph, uses: Graph) -> None:
    level = {name: number for number, line in enumerate(LAYERS) for name in line}
    assert {folder(name) for name in includes} == set(level), "a folder of csrc has no line"
    upwards = [
        f"{one} uses {other}"
        for graph in (includes, uses)
        for one, others in graph.items()
        for other in others
        if folder(one) != folder(other) and level[folder(other)] <= level[folder(one)]
    ]
    assert upwards == []


def test_no_folder_holds_more_than_twenty_files() -> None:
    folders = [CSRC, *(path for path in CSRC.rglob("*") if path.is_dir())]
    files = {place: [p for p in place.iterdir() if p.suffix in {".c", ".h"}] for place in folders}
    assert {str(place): len(names) for place, names in files.items() if len(names) > 20} == {}
