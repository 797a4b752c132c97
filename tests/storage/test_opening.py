"""Starts that fail because a tier cannot be opened. The tests check whether the next daemon can
trust the copies in the tiers, and whether any threads keep running."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.storage import durability, opening
from monarch_py.storage.manifest import Manifest
from monarch_py.storage.opening import OpenTiers
from monarch_py.storage.tiers import tier_root

NO_THREAD = "can't start new thread"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A configuration with two persistent tiers, which a daemon has used and left clean."""
    tiers = [tmp_path / "first", tmp_path / "second"]
    for path in (tmp_path / "source", *tiers):
        path.mkdir()
    quota = {"max_storage_quota": 1 << 26, "persistent": True}
    document = {
        "sources": [str(tmp_path / "source")],
        "hierarchy": [{"mount_point": str(path), **quota} for path in tiers],
    }
    (tmp_path / "tiers.yaml").write_text(yaml.safe_dump(document))
    config = load_config(tmp_path / "tiers.yaml")
    OpenTiers(config).close(are_used=False)
    return config


def are_clean(config: Config) -> list[bool]:
    """Returns, for each tier, whether the next daemon may trust the tier's copies without a
    check."""
    found = []
    for tier in config.tiers:
        with closing(Manifest(tier_root(tier.mount_point) / "manifest.sqlite")) as manifest:
            found.append(not manifest.begin_use())
    return found


def test_tiers_are_clean_after_a_start_without_memory(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    """A start runs out of memory while it opens the second tier, when the first tier is already
    open. The next daemon must trust the copies of both tiers without a check."""

    def reconcile(keeper: durability.Keeper) -> None:
        if keeper.tier.config is config.tiers[1]:
            raise MemoryError("no memory for the listing")

    monkeypatch.setattr(durability.Keeper, "reconcile", reconcile)
    with pytest.raises(MemoryError, match="no memory for the listing"):
        OpenTiers(config)
    assert are_clean(config) == [True, True]


def test_tiers_are_clean_after_a_start_whose_keeper_fails(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    class Failing(durability.Keeper):
        def __init__(self, tier: Any, block_size_bytes: int) -> None:
            if tier.config is config.tiers[1]:
                raise RuntimeError(NO_THREAD)
            super().__init__(tier, block_size_bytes)

    monkeypatch.setattr(opening, "Keeper", Failing)
    with pytest.raises(RuntimeError, match=NO_THREAD):
        OpenTiers(config)
    assert are_clean(config) == [True, True]


def test_tiers_are_clean_after_a_start_without_threads(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    """If the keeper of the second tier cannot start its thread, both tiers stay clean. The keeper
    starts its thread before it begins to use the tier's manifest."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError(NO_THREAD)
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match=NO_THREAD):
        OpenTiers(config)
    assert not started[0].is_alive()
    assert are_clean(config) == [True, True]


def test_a_keeper_without_a_manifest_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    def refuse(manifest: Manifest) -> None:
        raise MemoryError("no memory for the rows")

    monkeypatch.setattr(Manifest, "load", refuse)
    before = threading.enumerate()
    with pytest.raises(MemoryError, match="no memory for the rows"):
        OpenTiers(config)
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in left if thread.name == "keeper"]
