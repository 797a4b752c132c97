"""Programs under the library change files by every kind of call: by names, by descriptors and
through mappings. Each call has exactly the effect at the source that it has without the library.
Once the call has returned, no program gets a copy with the old content, even if the fill of that
copy ends later. The copies themselves never change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from csrc.building import compiler
from csrc.stages import FEW, SOME, Stage, build_change, normalised, operations, stages
from support import draws


def _operations() -> list[str]:
    """Returns the operations in the tables of change.c. Each operation becomes a test. Without a
    compiler, returns one name, so that one test says what is missing."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        try:
            return operations(build_change(Path(directory)))
        except (AssertionError, OSError, pytest.skip.Exception):
            return ["all"]


OPERATIONS = _operations()
# Operations that change attributes through a copy's descriptor after the file was renamed or
# replaced. They fail with ESTALE under the library, and succeed without it. For each operation,
# this table names the file whose attributes differ for this reason. No other file may differ.
LOST = {"fchmod_moved": "h", "futimens_replaced": "hard"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler()
    return build_change(tmp_path_factory.mktemp("program"))


def make(request: pytest.FixtureRequest, state: str) -> Iterator[Stage]:
    slow = request.getfixturevalue("slowsource_binary") if state == "filling" else Path()
    top = request.getfixturevalue("tmp_path_factory").mktemp(state)
    yield from stages(top, state, request.getfixturevalue("program"), slow)


@pytest.fixture(scope="module")
def present(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from make(request, "present")


@pytest.fixture(scope="module")
def unscanned(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from make(request, "unscanned")


@pytest.fixture(scope="module")
def filling(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from make(request, "filling")


def check_at_once(stage: Stage, operation: str) -> None:
    outcome = stage.do(operation)
    expected = stage.expected[operation]
    assert outcome.with_library == outcome.without_library
    seen, there = normalised(outcome.without_library), normalised(expected.without_library)
    if stage.state == "present" and operation in LOST:
        assert seen["source"].pop(LOST[operation]) != there["source"].pop(LOST[operation])
    else:
        assert outcome.printed == expected.printed
    assert seen == there


def check_later(stage: Stage, operation: str) -> None:
    stage.thaw()
    assert stage.later[operation] == stage.truth[operation]
    assert stage.later[operation] == stage.do(operation).without_library


def check_copies_left(stage: Stage) -> None:
    """Checks that each copy has exactly the bytes of some file that exists now."""
    stage.thaw()
    left = stage.read_copies()
    assert all(mode == 0o100400 and links == 1 for _, mode, links, _ in left.values())
    digests = {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in stage.root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert {digest for digest, *_ in left.values()} <= digests


@pytest.mark.parametrize("operation", OPERATIONS)
def test_at_once(present: Stage, operation: str) -> None:
    check_at_once(present, operation)


def test_copies_are_what_they_were(present: Stage) -> None:
    assert present.copies_after_operations == present.copies


@pytest.mark.parametrize("operation", OPERATIONS)
def test_later(present: Stage, operation: str) -> None:
    check_later(present, operation)


def test_copies_that_are_left(present: Stage) -> None:
    check_copies_left(present)
    left = present.read_copies()
    old = [name for name in left if name in present.copies]
    assert [left[name] for name in old] == [present.copies[name] for name in old]


KINDS = draws.cases(OPERATIONS, short=[name for name in OPERATIONS if name in FEW])
WHILE_FILLED = draws.cases(SOME, short=FEW)


@pytest.mark.parametrize("operation", KINDS)
def test_at_once_before_the_scan(unscanned: Stage, operation: str) -> None:
    check_at_once(unscanned, operation)


def test_no_change_makes_a_copy_before_the_scan(unscanned: Stage) -> None:
    assert unscanned.copies_after_operations == {}


@pytest.mark.parametrize("operation", KINDS)
def test_later_when_the_scan_has_come(unscanned: Stage, operation: str) -> None:
    check_later(unscanned, operation)


def test_copies_that_are_left_when_the_scan_has_come(unscanned: Stage) -> None:
    check_copies_left(unscanned)


@pytest.mark.parametrize("operation", WHILE_FILLED)
def test_at_once_while_it_is_filled(filling: Stage, operation: str) -> None:
    check_at_once(filling, operation)


@pytest.mark.parametrize("operation", WHILE_FILLED)
def test_later_when_the_fill_has_ended(filling: Stage, operation: str) -> None:
    check_later(filling, operation)


def test_copies_that_are_left_of_fills(filling: Stage) -> None:
    check_copies_left(filling)
