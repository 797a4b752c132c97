"""The segments that clients attach to: control, clients and catalog of a session."""

import contextlib
import os
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.catalog import Catalog
from monarch_py.config import SYSTEM_SWITCH_FILE, Config
from monarch_py.native import SessionState, ffi, lib, pointer
from monarch_py.session import Segment, SessionDir
from monarch_py.tiers import Tier

__all__ = ["Shared", "close_old_session"]

# Bits of opened files that are taken in a turn of the daemon's loop.
OPENED = 65536


def close_old_session(session: SessionDir) -> None:
    """Tells whoever is still attached to a dead daemon's segments, and removes them.

    A client that keeps marking changes there would not be heard; the flag sends it to the new ones.
    """
    try:
        old = Segment.open(session.control, writable=True)
    except OSError:
        pass
    else:
        if len(old.memory) >= ffi.sizeof("struct monarch_control"):
            old.as_struct("struct monarch_control").state = SessionState.CLOSED
    segments = (session.control, session.clients, session.fills)
    for path in (*segments, *session.path.glob("catalog.*")):
        path.unlink(missing_ok=True)
    for path in session.path.glob(".*.*"):
        path.unlink(missing_ok=True)


class Shared:
    """Made in the state STARTING; `serve` lets clients in, `close` sends them away.

    OSError (ENOSPC) when shared memory has no room for the segments.
    """

    def __init__(self, session: SessionDir, config: Config) -> None:
        self.session = session
        close_old_session(session)
        self._control = Segment.create(session.control, ffi.sizeof("struct monarch_control"))
        self._clients = Segment.create(session.clients, ffi.sizeof("struct monarch_clients"))
        self._fills = Segment.create(session.fills, ffi.sizeof("struct monarch_fills"))
        self.control: Any = self._control.as_struct("struct monarch_control")
        self.clients: Any = self._clients.as_struct("struct monarch_clients")
        self.fills: Any = self._fills.as_struct("struct monarch_fills")
        self._opened = np.empty(OPENED, dtype=np.uint64)
        self._fill_control(config)
        self.clients.magic = self.fills.magic = lib.MONARCH_MAGIC
        self._fills.publish()
        self._clients.publish()
        self._control.publish()
        self.catalog = Catalog(session, self._publish_generation)
        self.catalog.c.stamped = len(config.tiers) + 1  # the staging area's number, and 1
        self.catalog.c.evicting = sum(1 << number for number in config.evicting)
        self.catalog.c.salt = secrets.randbits(64)

    def _publish_generation(self, generation: int) -> None:
        self.control.generation = generation

    def _fill_control(self, config: Config) -> None:
        control = self.control
        control.magic = lib.MONARCH_MAGIC
        control.version = lib.MONARCH_VERSION
        control.state = SessionState.STARTING
        control.pid = os.getpid()
        control.owner = os.geteuid()
        with contextlib.suppress(OSError):  # no /proc
            control.mounts = os.stat("/proc/self/ns/mnt").st_ino
        control.block_bytes = config.block_size_bytes
        control.fill_on_open = config.prefetch != "none"
        control.fill_after = round(config.fill_after * lib.MONARCH_SHARES)
        control.promote_mappings = config.promote_mappings
        control.metadata_cached = config.metadata == "cached"
        control.revalidate_ns = int(config.revalidate_s * 1e9)
        for slot, source in zip(control.source, config.sources, strict=False):
            found = source.real_path.stat()
            slot.dev, slot.ino = found.st_dev, found.st_ino
            path, alias = os.fsencode(source.real_path), os.fsencode(source.path)
            slot.path, slot.path_len = path, len(path)
            if alias != path:
                slot.alias, slot.alias_len = alias, len(alias)
        control.sources = len(config.sources)
        switches = [SYSTEM_SWITCH_FILE, config.switch_file]
        for slot, switch in zip(control.switch_file, switches, strict=True):
            raw = os.fsencode(switch) if switch else b""
            ffi.memmove(slot, raw, len(raw))

    def set_tiers(self, tiers: Sequence[Tier | None]) -> None:
        """tiers : one per configured tier, None for one that this daemon goes without."""
        for slot, tier in zip(self.control.tier, tiers, strict=False):
            if tier is None:
                continue
            found = os.fstat(tier.fd)
            slot.dev, slot.ino = found.st_dev, found.st_ino
            path = os.fsencode(tier.copies) + b"/"
            slot.path, slot.path_len = path, len(path)
            slot.usable = 1
        self.control.tiers = len(tiers)

    def serve(self) -> None:
        self.control.state = SessionState.SERVING

    def beat(self) -> None:
        self.control.heartbeat += 1

    def wait(self, rung: int, wait_ms: int) -> int:
        """Until somebody has rung since the doorbell said `rung`, at most so long; what it says."""
        return int(lib.monarch_wait_doorbell(self.clients, rung, wait_ms))

    def ring(self) -> None:
        """Ends a wait; from any thread."""
        lib.monarch_ring_doorbell(self.clients)

    def close(self) -> None:
        self.control.state = SessionState.CLOSED
        for path in (self.session.control, self.session.clients, self.session.fills):
            path.unlink(missing_ok=True)
        for path in self.session.path.glob("catalog.*"):
            path.unlink(missing_ok=True)

    def follow_opens(self) -> None:
        """From now on clients tell what they open, and do not ring for it."""
        self.control.follow_opens = 1

    def take_opened(self) -> npt.NDArray[np.uint64]:
        """(n,) entries that clients have opened for reading since the last call, by number: neither
        how often nor in which order."""
        if not self.control.follow_opens:
            return np.zeros(0, dtype=np.uint64)
        where = pointer(self._opened, "uint64_t *")
        count = lib.monarch_take_opened(self.clients, len(self.catalog), where, OPENED)
        opened: npt.NDArray[np.uint64] = self._opened[:count].copy()
        return opened

    def totals(self) -> dict[str, int]:
        """The clients' counters, summed over all their slots."""
        names = (
            "hits",
            "misses",
            "bytes_from_tier",
            "bytes_from_source",
            "bytes_while_filling",
            "waits",
            "wait_ns",
            "fallbacks",
            "promotions",
            "metadata_hits",
        )
        slots = [self.clients.stats[i] for i in range(lib.MONARCH_STAT_SLOTS)]
        totals = {name: sum(int(getattr(slot, name)) for slot in slots) for name in names}
        return {"opens": totals["hits"] + totals["misses"], **totals}

    def mail(self, stuck: dict[int, int]) -> list[tuple[int, str]]:
        """Paths that clients told of, as (source, relative path), each once.

        stuck : slot -> ticket seen in the middle of writing at the last call; updated. A slot whose
        writer does not get on between two calls is freed: its process is gone.
        """
        found: dict[tuple[int, str], None] = {}
        for i in range(lib.MONARCH_MAIL_SLOTS):
            slot = self.clients.mail[i]
            ticket = int(slot.ticket)
            if ticket & 3 == 2:
                path = ffi.buffer(slot.path, min(slot.path_len, lib.MONARCH_MAIL_PATH))[:]
                found[int(slot.source), os.fsdecode(path)] = None
                slot.ticket = ticket & ~3
            elif ticket & 3 == 1:
                if stuck.get(i) == ticket:
                    slot.ticket = ticket & ~3
                stuck[i] = ticket
        return list(found)
