"""`verify` and `clear`: looking after the copies, with and without a daemon."""

import os
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from monarch_py.catalog import CatalogReader
from monarch_py.client import Client
from monarch_py.config import Config
from monarch_py.errors import SessionError
from monarch_py.manifest import Manifest
from monarch_py.native import State, copy_of, ffi, lib, state_of, tier_of
from monarch_py.session import SessionDir
from monarch_py.tiers import Tier, copy_name, tier_root

__all__ = ["Verdict", "clear_tiers", "verify_copies"]


@dataclass(slots=True)
class Verdict:
    """damaged : source paths of copies whose bytes are not what their checksum says; outdated : of
    copies that are not what the source has now."""

    checked: int = 0
    damaged: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _sum(path: str, block_bytes: int) -> tuple[int, int] | None:
    """(XXH3-64 of the block sums, size) of a file; None when it cannot be read."""
    total, size = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    if lib.monarch_sum_file(os.fsencode(path), block_bytes, total, size) != 0:
        return None
    return int(total[0]), int(size[0])


def verify_copies(config: Config, *, against_source: bool) -> Verdict:
    """Reads every copy through its checksum, and the source files too if asked.

    With a daemon: all its copies; it drops the bad ones. Without: those of the persistent tiers.
    TierError when such a tier is held by another daemon.
    """
    session = SessionDir.of(config.file)
    client = Client(session)
    try:
        generation = int(client.ask("where")["generation"])
    except SessionError:
        return _verify_manifests(config, against_source)
    return _verify_catalog(config, client, CatalogReader.open(session, generation), against_source)


def _verify_catalog(
    config: Config, client: Client, catalog: CatalogReader, against_source: bool
) -> Verdict:
    verdict, bad = Verdict(), []
    for entry in np.flatnonzero(state_of(catalog.words) == State.PRESENT):
        row = catalog.entries[entry].copy()
        if state_of(row["word"]) != State.PRESENT:
            continue
        tier = config.tiers[int(tier_of(row["word"]))]
        name = copy_name(int(copy_of(row["word"])))
        copy = str(tier_root(tier.mount_point) / "c" / name)
        path = str(config.sources[int(row["source"])].real_path / catalog.path(int(entry)))
        if not _check(config, verdict, copy, path, int(row["sum"]), int(row["size"]), against_source):
            bad.append(int(entry))
    if bad:
        client.ask("drop", entries=bad)
    return verdict


def _check(
    config: Config,
    verdict: Verdict,
    copy: str,
    path: str,
    expected: int,
    size: int,
    against_source: bool,
) -> bool:
    verdict.checked += 1
    if _sum(copy, config.block_size_bytes) != (expected, size):
        verdict.damaged.append(path)
        return False
    if against_source and _sum(path, config.block_size_bytes) != (expected, size):
        verdict.outdated.append(path)
        return False
    return True


def _verify_manifests(config: Config, against_source: bool) -> Verdict:
    verdict = Verdict()
    for tier_config in config.tiers:
        if not tier_config.persistent or not tier_root(tier_config.mount_point).exists():
            continue
        tier = Tier(tier_config)
        try:
            manifest = Manifest(tier.root / "manifest.sqlite")
            bad = []
            for copy, source, raw, size, expected, _ in manifest.all_copies():
                path = os.path.join(source, os.fsdecode(raw))
                name = str(tier.copies / copy_name(copy))
                if not _check(config, verdict, name, path, expected, size, against_source):
                    bad.append(copy)
                    tier.remove(copy)
            manifest.change([], bad)
            manifest.close()
        finally:
            tier.close()
    return verdict


def clear_tiers(config: Config) -> int:
    """Removes everything of ours from the tiers, without a daemon; returns how many copies went.

    TierError when a daemon holds one of them.
    """
    removed = 0
    for tier_config in config.tiers:
        if not tier_root(tier_config.mount_point).exists():
            continue
        tier = Tier(tier_config)
        removed += len(tier.names())
        tier.discard()
    return removed


