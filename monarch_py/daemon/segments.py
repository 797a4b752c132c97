"""The segments of shared memory through which a session's clients and its daemon communicate."""

import contextlib
import errno
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import NO_IDS, Bools, Ids, Uints, pointer
from monarch_py.config.schema import SYSTEM_SWITCH_FILE, Config, SourceConfig
from monarch_py.ipc.catalog import Catalog
from monarch_py.ipc.session import Segment, SessionDir, open_private
from monarch_py.native import SessionState, ffi, lib
from monarch_py.storage.tiers import Tier

# The bits of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH in a capability set (capabilities(7)).
READ_EVERYTHING = 1 << 1 | 1 << 2
# The names of a client's counters, in the order of the fields of struct monarch_stats.
COUNTERS = [name for name, _ in ffi.typeof("struct monarch_stats").fields if name != "unused"]
# In three bitmaps, clients mark files: files that they have opened, files to be filled, and files
# that they have read to their end. One iteration of the loop takes at most this many files from
# each bitmap.
TAKEN = 65536


def close_old_session(session: SessionDir) -> None:
    """Marks a dead daemon's segments as closed, and removes them.

    The mark makes attached clients switch to the new segments. Otherwise they would keep recording
    changes in the old segments, which no daemon reads.
    """
    with contextlib.suppress(OSError):
        old = Segment.open(session.control, writable=True)
        old.as_struct("struct monarch_control").state = SessionState.CLOSED
    segments = (session.control, session.clients, session.fills, session.changes)
    for path in (*segments, *session.handovers, *session.path.glob("catalog.*")):
        path.unlink(missing_ok=True)
    for path in session.path.glob(".*.*"):
        path.unlink(missing_ok=True)


def _put(room: Any, text: bytes) -> int:
    """Writes a path with its NUL into an array of a segment. Returns the path's length. If the path
    does not fit, raises OSError and writes nothing. (The paths of a validated configuration always
    fit.)"""
    if len(text) >= len(room):
        raise OSError(errno.ENAMETOOLONG, f"longer than {len(room) - 1} bytes", os.fsdecode(text))
    room[0 : len(text) + 1] = text + b"\0"
    return len(text)


def _reads_everything() -> bool:
    """Whether this process may read files regardless of their modes. If so, clients without that
    privilege get no copies: a copy's mode does not show who may read the source file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next((int(line[7:], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(effective & READ_EVERYTHING)


class Shared:
    """The segments of a session. The session's state is STARTING until `serve` lets clients attach.
    `close` makes the clients detach.

    Raises OSError (ENOSPC) if shared memory has no room for the segments.
    """

    def __init__(self, session: SessionDir, config: Config) -> None:
        self.session, self.was_asked_to_stop = session, False
        close_old_session(session)
        session.stopped.unlink(missing_ok=True)
        self._changes = Segment.create(session.changes, ffi.sizeof("struct monarch_change"))
        self._changes_taken = ffi.new("uint64_t *", ffi.sizeof("struct monarch_change"))
        self._control = Segment.create(session.control, ffi.sizeof("struct monarch_control"))
        self._clients = Segment.create(session.clients, ffi.sizeof("struct monarch_clients"))
        self._fills = Segment.create(session.fills, ffi.sizeof("struct monarch_fills"))
        self.control: Any = self._control.as_struct("struct monarch_control")
        self.clients: Any = self._clients.as_struct("struct monarch_clients")
        self.fills: Any = self._fills.as_struct("struct monarch_fills")
        self._taken = np.empty(TAKEN, dtype=np.uint64)
        hints = np.frombuffer(ffi.buffer(ffi.addressof(self.clients, "scan_hint")), dtype=np.uint64)
        self._tickets = hints.reshape(lib.MONARCH_SCAN_HINTS, -1)[:, 0]
        stats = np.frombuffer(ffi.buffer(self.clients.stats), dtype=np.uint64)
        self._stats = stats.reshape(lib.MONARCH_STAT_SLOTS, -1)
        self._fill_control(config)
        self.clients.magic = self.fills.magic = lib.MONARCH_MAGIC
        self._changes.publish()
        self._changes_fd = os.open(session.changes, os.O_RDONLY | os.O_CLOEXEC)
        self._fills.publish()
        self._clients.publish()
        self._control.publish()
        self.catalog = Catalog(session, ffi.addressof(self.control, "generation"))
        # In the staging area, the modification time of a copy contains a stamp and the number of
        # the file's entry (monarch_stamp). `stamped` is the area's tier number plus 1, because 0
        # means no tier.
        self.catalog.c.stamped = len(config.tiers) + 1
        self.catalog.c.evicting = sum(1 << number for number in config.evicting)
        self.catalog.c.salt = secrets.randbits(64)

    def _fill_control(self, config: Config) -> None:
        control = self.control
        control.magic = lib.MONARCH_MAGIC
        control.version = lib.MONARCH_VERSION
        control.state = SessionState.STARTING
        control.pid = os.getpid()
        control.owner = os.geteuid()
        control.mounts = os.stat("/proc/self/ns/mnt").st_ino
        control.reads_everything = _reads_everything()
        with contextlib.suppress(OSError):  # a kernel without user namespaces lacks this file
            control.users = os.stat("/proc/self/ns/user").st_ino
        with contextlib.suppress(OSError):
            control.pids = os.stat("/proc/self/ns/pid").st_ino
        groups = sorted({os.getegid(), *os.getgroups()})
        control.groups = len(groups)
        control.group[0 : len(groups)] = groups
        control.block_bytes = config.block_size_bytes
        control.fill_on_open = config.prefetch != "none"
        control.fill_after = round(config.fill_after * lib.MONARCH_SHARES)
        control.promote_mappings = config.promote_mappings
        control.metadata_cached = config.metadata == "cached"
        control.revalidate_ns = int(config.revalidate_s * 1e9)
        for number, source in enumerate(config.sources):
            self.put_source(number, source)
        control.sources = len(config.sources)
        switches = [SYSTEM_SWITCH_FILE, config.switch_file]
        for slot, switch in zip(control.switch_file, switches, strict=True):
            _put(slot, os.fsencode(switch) if switch else b"")

    def put_source(self, number: int, source: SourceConfig) -> None:
        """Writes a source's description into shared memory. Clients ignore it until
        `control.sources` is greater than the source's number. Raises OSError if the source cannot
        be examined."""
        slot, found = self.control.source[number], source.real_path.stat()
        slot.dev, slot.ino = found.st_dev, found.st_ino
        path, alias = os.fsencode(source.real_path), os.fsencode(source.path)
        slot.path_len = _put(slot.path, path)
        slot.alias_len = 0 if alias == path else _put(slot.alias, alias)

    def count_source(self, number: int, fd: int) -> None:
        """Publishes a source to running clients. Call `put_source` first. The number of sources is
        increased last, so that clients see no source without a description. Before the increase,
        `ring` acts as a memory barrier.

        fd : a descriptor of the source's root
        """
        slot = self.control.source[number]
        lib.monarch_read_filesystem(fd, ffi.addressof(slot, "filesystem"))
        self.ring()
        self.control.sources = number + 1

    def set_tiers(self, tiers: Sequence[Tier | None]) -> None:
        """Publishes the directories that contain the tiers' copies.

        tiers : the configured tiers and the staging area; None for a tier that this daemon does not
            use
        """
        for slot, tier in zip(self.control.tier, tiers, strict=False):
            if tier is None:
                continue
            found = os.fstat(tier.fd)
            slot.dev, slot.ino = found.st_dev, found.st_ino
            path = os.fsencode(tier.copies) + b"/"
            slot.path_len = _put(slot.path, path)
            slot.usable = 1
        self.control.tiers = len(tiers)

    def hide_tier(self, number: int) -> None:
        """Clears this tier's path. Clients then open nothing in the tier any more, even if the
        catalog still lists copies there. They still recognize the tier's open copies as copies."""
        self.control.tier[number].path = b""

    def serve(self) -> None:
        self.control.state = SessionState.SERVING

    def beat(self) -> None:
        self.control.heartbeat += 1

    def wait(self, rung: int, wait_ms: int) -> int:
        """Sleeps until the doorbell has rung more often than `rung` times, but for at most wait_ms
        [ms]. Returns how often the doorbell has rung by now."""
        return int(lib.monarch_wait_doorbell(self.clients, rung, wait_ms))

    def ring(self) -> None:
        """Wakes the loop. May be called from any thread."""
        lib.monarch_ring_doorbell(self.clients)

    def close(self) -> None:
        self.control.state = SessionState.CLOSED
        for segment in self._segments():
            segment.unlink()
        for socket in self.session.handovers:
            socket.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._changes_fd)
        # The file `stopped` shows clients that the daemon has ended properly. Without it, clients
        # would warn that no daemon runs. If the file contains "asked", a user has stopped the
        # daemon, and attached clients start no new one.
        with contextlib.suppress(OSError):
            stopped = open_private(self.session.stopped, os.O_WRONLY)
            if self.was_asked_to_stop:
                os.write(stopped, b"asked\n")
            os.close(stopped)

    def _segments(self) -> tuple[Segment, ...]:
        own = (self._control, self._clients, self._fills, self._changes)
        return *own, self.catalog.segment

    def lost(self) -> Path | None:
        """Returns the path of a segment that has been unlinked; None if no segment has. Without
        that path, no further client can attach, and attached clients do not notice a new daemon."""
        return next((s.path for s in self._segments() if not s.is_linked()), None)

    def take_changes(self) -> None:
        """Marks files as changed that processes without access to the segments have changed. These
        processes report their changes in the session's file `changes`."""
        if self.clients.told:
            lib.monarch_take_changes(
                self.clients, self.control, self.catalog.c, self._changes_fd, self._changes_taken
            )

    def changed(self, ids: Ids) -> Bools:
        """Returns an array (n,): for each of the files `ids`, whether a client has changed it.
        Clients record changed files in a Bloom filter, so the result is also True for a few
        unchanged files."""
        flags, given = np.zeros(len(ids), dtype=np.uint8), (self.clients, self.control)
        lib.monarch_find_changed(*given, self.catalog.c, len(ids), pointer(ids), pointer(flags))
        return flags.astype(bool)

    def follow_opens(self) -> None:
        """Makes clients report the files that they open, from now on. Clients do not ring the
        doorbell after such a report."""
        self.control.follow_opens = 1

    def take_opened(self) -> Uints:
        """Returns the entries of the files that clients have opened for reading since the last
        call. The array (n,) shows neither how often nor in which order they were opened."""
        if not self.control.follow_opens:
            return NO_IDS
        return self._take(self.clients.opened)

    def take_wanted(self) -> Uints:
        """Returns an array (n,): the entries of files that had no copy when programs opened them.
        Only opens since the last call are considered."""
        return self._take(self.clients.wanted)

    def take_read(self) -> Uints:
        """Returns an array (n,): the entries of files that programs have read to their end since
        the last call. Files that had a copy when they were opened are left out."""
        return self._take(self.clients.read)

    def _take(self, bits: Any) -> Uints:
        where = pointer(self._taken)
        count = lib.monarch_take_bits(ffi.addressof(bits), len(self.catalog), where, TAKEN)
        return np.array(self._taken[:count])

    def totals(self) -> dict[str, int]:
        """Returns the clients' counters, summed over all slots."""
        sums = self._stats[:, : len(COUNTERS)].sum(axis=0).tolist()
        totals = dict(zip(COUNTERS, sums, strict=True))
        return {"opens": totals["hits"] + totals["misses"], **totals}

    def opens_by_slot(self) -> Uints:
        """Returns how many files programs have opened, as an array (MONARCH_STAT_SLOTS,). Each
        thread counts in one slot. Several threads may share a slot."""
        hits, misses = COUNTERS.index("hits"), COUNTERS.index("misses")
        return np.asarray(self._stats[:, hits] + self._stats[:, misses])

    def source_opens(self) -> tuple[int, float]:
        """Returns how many files programs themselves have opened at the sources, and the total
        duration of these opens [s]."""
        totals = self.totals()
        return totals["source_opens"], totals["source_open_ns"] / 1e9

    def scan_hints(self, stuck: dict[int, int]) -> dict[tuple[int, str], bool]:
        """Returns the files that were not in the catalog when clients opened them. A key of the
        result is (source, relative path). The value is True if a program has read enough of the
        file to make a copy worthwhile.

        Clients write the paths of these files into slots in shared memory. Each use of a slot has a
        ticket, a number of its own.

        stuck : the slots that clients were writing at the last call, each with its ticket. This
            call updates the dict. If a slot is still being written under the same ticket, its
            client is regarded as dead, and the slot is freed
        """
        found: dict[tuple[int, str], bool] = {}
        for i in np.flatnonzero(self._tickets & np.uint64(3)).tolist():
            slot = self.clients.scan_hint[i]
            ticket = int(slot.ticket)
            if ticket & 3 == 2:
                path = ffi.buffer(slot.path, min(slot.path_len, lib.MONARCH_SCAN_HINT_PATH))[:]
                place = int(slot.source), os.fsdecode(path)
                found[place] = found.get(place, False) or not slot.is_part
                slot.ticket = ticket & ~3
            elif ticket & 3 == 1:
                if stuck.get(i) == ticket:
                    slot.ticket = ticket & ~3
                stuck[i] = ticket
        return found
