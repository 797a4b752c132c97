"""`monarch verify` and `monarch clear`: check or remove copies, with or without a daemon."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import xxhash

from monarch_py.config.schema import Config, TierConfig
from monarch_py.errors import SessionError
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.native import State
from monarch_py.storage.manifest import Manifest
from monarch_py.storage.tiers import Tier, copy_name, tier_root, why_gone
from monarch_py.util.units import MIB

# The largest number of bytes that are read at a time.
PIECE_BYTES = 1 * MIB


@dataclass(slots=True)
class Verdict:
    """The result of `monarch verify`.

    checked : number of copies that were read
    damaged : source paths of copies whose bytes do not match their checksum
    outdated : source paths of copies that differ from their source files; None if the copies were
        not compared with the source files
    out_of_use : one sentence for each tier that could not be checked
    """

    block_size_bytes: int
    outdated: list[str] | None
    checked: int = 0
    damaged: list[str] = field(default_factory=list)
    out_of_use: list[str] = field(default_factory=list)

    def is_good(self, copy: str, path: str, expected: tuple[int, int]) -> bool:
        """Checks a copy. If the copy is damaged or outdated, records its path and returns False;
        otherwise returns True.

        copy : the path of the copy
        path : the path of the copy's source file
        expected : the recorded checksum and size [bytes]
        """
        self.checked += 1
        if _sum(copy, self.block_size_bytes) != expected:
            self.damaged.append(path)
            return False
        if self.outdated is not None and _sum(path, self.block_size_bytes) != expected:
            self.outdated.append(path)
            return False
        return True


def _open_nonblocking(path: str, flags: int) -> int:
    """Opens a file for `_sum`. Refuses a symbolic link. If the path is a named pipe, returns at
    once, without waiting for a process that writes to the pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _sum(path: str, block_bytes: int) -> tuple[int, int] | None:
    """Returns the checksum and the size [bytes] of a file; None if the file cannot be read. Each
    block of the file has an XXH3-64 hash. The checksum is the XXH3-64 hash of all these hashes.

    Monarch's C code has computed the recorded checksums. This function computes the checksum with
    the package xxhash, so that `monarch verify` also finds errors of the C code.
    """
    whole, block, size = xxhash.xxh3_64(), xxhash.xxh3_64(), 0
    buffer = memoryview(bytearray(PIECE_BYTES))
    try:
        with open(path, "rb", buffering=0, opener=_open_nonblocking) as file:
            while n := file.readinto(buffer[: block_bytes - size % block_bytes]):
                block.update(buffer[:n])
                size += n
                if size % block_bytes == 0:
                    whole.update(block.intdigest().to_bytes(8, sys.byteorder))
                    block.reset()
    except OSError:
        return None
    if size % block_bytes:
        whole.update(block.intdigest().to_bytes(8, sys.byteorder))
    return whole.intdigest(), size


def verify_copies(config: Config, *, against_source: bool) -> Verdict:
    """Reads every copy, and compares its checksum with the recorded checksum. With
    `against_source`, also compares each copy with its source file. Removes the copies that differ.

    If a daemon runs, this function checks the daemon's copies, and the daemon removes those that
    differ. If no daemon answers, this function checks the copies on persistent tiers. In this case,
    it raises TierError if another process holds the lock of a persistent tier: the daemon of
    another configuration, or a daemon that does not answer.
    """
    session = SessionDir.of(config.file)
    connection = DaemonConnection(session)
    verdict = Verdict(config.block_size_bytes, [] if against_source else None)
    try:
        where = connection.ask("where")
    except SessionError:
        _verify_manifests(config, verdict)
    else:
        catalog = CatalogReader.open(session, int(where["generation"]))
        _verify_catalog(config, connection, catalog, where["sources"], verdict)
    return verdict


def _is_gone(tier: TierConfig) -> bool:
    return not os.path.lexists(tier_root(tier.mount_point) / "c")


def tiers_out_of_use(config: Config, connection: DaemonConnection) -> Iterator[tuple[int, str]]:
    """Yields the index of each tier that is out of use, and a sentence that gives the reason. A
    tier is out of use if the daemon reports so, or if the tier's directory no longer exists. This
    function looks for the directory itself, because the daemon notices a missing directory
    later."""
    told = connection.ask("status")["tiers"]
    for number, (tier, said) in enumerate(zip(config.tiers, told, strict=False)):
        if said["why"]:
            yield number, said["why"]
        elif _is_gone(tier):
            yield number, why_gone(tier.mount_point)


def _verify_catalog(
    config: Config,
    connection: DaemonConnection,
    catalog: CatalogReader,
    sources: list[str],
    verdict: Verdict,
) -> None:
    """Checks the copies of a running daemon, and asks the daemon to drop the damaged and outdated
    copies.

    sources : the paths of all sources of the daemon. `config` may lack some of them, because other
        jobs can add sources to the daemon
    """
    bad = []
    gone = {number for number, tier in enumerate(config.tiers) if _is_gone(tier)}
    for entry in np.flatnonzero(word.state(catalog.words) == State.PRESENT):
        row = catalog.entries[entry].copy()
        number = int(word.tier(row["word"]))
        # The daemon may have dropped the copy since the loop began, for example a copy in the
        # staging area. So read the file's state again.
        is_present = word.state(row["word"]) == State.PRESENT
        if not is_present or number in gone or number >= len(config.tiers):
            continue
        tier = config.tiers[number]
        name = copy_name(int(word.copy(row["word"])))
        copy = str(tier_root(tier.mount_point) / "c" / name)
        path = os.path.join(sources[int(row["source"])], catalog.path(int(entry)))
        if not verdict.is_good(copy, path, (int(row["sum"]), int(row["size"]))):
            bad.append(int(entry))
    if bad:
        connection.ask("drop", entries=bad)
        connection.wait_until_dropped()
    # After an error in a tier, the daemon makes no new copies in the tier, but it may continue to
    # serve the tier's old copies. The loop above has checked these copies. So this function does
    # not report such a tier as out of use.
    present = catalog.words[word.state(catalog.words) == State.PRESENT]
    serving = set(word.tier(present).tolist()) - gone
    verdict.out_of_use = [
        why for number, why in tiers_out_of_use(config, connection) if number not in serving
    ]


def _verify_manifests(config: Config, verdict: Verdict) -> None:
    for tier_config in config.tiers:
        if not tier_config.persistent or not tier_root(tier_config.mount_point).exists():
            continue
        tier = Tier(tier_config)
        try:
            manifest = Manifest(tier.root / "manifest.sqlite")
            manifest.check()
            manifest.load()  # raises TierError if a column is malformed
            bad = []
            for copy, source, raw, size, expected, _ in manifest.all_copies():
                path = os.path.join(source, os.fsdecode(raw))
                name = str(tier.copies / copy_name(copy))
                if not verdict.is_good(name, path, (expected, size)):
                    bad.append(copy)
                    tier.remove(copy)
            manifest.change([], bad)
            manifest.close()
        finally:
            tier.close()


def clear_tiers(config: Config) -> int:
    """Removes all of Monarch's files from the tiers. Returns the number of removed copies. Raises
    TierError if a daemon holds one of the tiers."""
    removed = 0
    for tier_config in config.tiers:
        if not tier_root(tier_config.mount_point).exists():
            continue
        tier = Tier(tier_config)
        removed += len(tier.listing())
        tier.discard()
    return removed
