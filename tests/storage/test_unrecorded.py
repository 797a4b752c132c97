"""The thread that writes a tier's manifest continues after any error, and the tier reports that
copies were not recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import wait_until

from monarch_py.config.schema import TierConfig
from monarch_py.storage import durability
from monarch_py.storage.durability import Keeper
from monarch_py.storage.manifest import Manifest, Row
from monarch_py.storage.tiers import Tier
from monarch_py.util import threads


def row(copy: int) -> Row:
    return Row(copy, "/data", b"%d" % copy, 9, 7, 5, 6, 3, 4096, bytes(8))


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keeper:
    monkeypatch.setattr(durability, "BATCH_S", 0.01)
    monkeypatch.setattr(threads, "_failures", {})
    return Keeper(Tier(TierConfig(tmp_path, 1 << 20, persistent=True)), 4096)


def failing_once(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> tuple[threading.Event, Callable[[], list[int]]]:
    """Makes the first change of the manifest fail with `error`. Returns an event that is set when
    the change fails, and a function that returns the numbers of the copies that were recorded."""
    change, failed, recorded = Manifest.change, threading.Event(), list[int]()

    def changed(self: Manifest, add: list[Row], remove: list[int]) -> None:
        if not failed.is_set():
            failed.set()
            raise error
        change(self, add, remove)
        recorded.extend(each.copy for each in add)

    monkeypatch.setattr(Manifest, "change", changed)
    return failed, lambda: recorded


@pytest.mark.parametrize(
    ("error", "why"), [(MemoryError(), "MemoryError"), (OSError(5, "bad disk"), "bad disk")]
)
def test_rows_are_recorded_after_an_error(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, error: BaseException, why: str
) -> None:
    failed, recorded = failing_once(monkeypatch, error)
    keeper.add([row(1)])
    wait_until(failed.is_set, what="the error")
    wait_until(lambda: keeper.broken, what="the report of the error")
    keeper.add([row(2)])
    wait_until(lambda: recorded() == [2], what="the second row")
    assert why in keeper.tier.unrecorded
    assert keeper.tier.unrecorded.endswith("then run `monarch stop` and `monarch start`")
    expected = ["keeper (MemoryError)"] if isinstance(error, MemoryError) else []
    assert threads.failures() == expected
    path = keeper.tier.root / "manifest.sqlite"
    keeper.end()
    keeper.tier.close()
    manifest = Manifest(path)
    assert manifest.begin_use()  # True: the next daemon must check all copies
    assert [copy for copy, *_ in manifest.all_copies()] == [2]
    manifest.close()
