"""The staging area: a small tier whose copies come and go.

What a node reads and does not keep lies there from its fetch to its use (NoPFS, 2: the staging
buffer). It is the last of the tiers by number, no policy chooses it, and no manifest knows it.
"""

import logging
import os

import numpy as np

from monarch_py import word
from monarch_py.config.schema import MAX_TIERS, Config, TierConfig
from monarch_py.daemon.copies.copies import Copies
from monarch_py.errors import TierError
from monarch_py.ipc.session import SessionDir, shm_root
from monarch_py.native import Bools, Ids, Reason, State, Uints
from monarch_py.policies.node import NodePolicy
from monarch_py.policies.placement import take
from monarch_py.storage import memory
from monarch_py.storage.tiers import Tier, refuse_replaceable
from monarch_py.util.units import GIB

log = logging.getLogger("monarch.staging")

# An area that nobody has configured takes at most DEFAULT_BYTES [bytes], 1/SHARE_OF_DISK of what
# the file system has free, and 1/SHARE_OF_MEMORY of the memory that is left.
DEFAULT_BYTES = GIB
SHARE_OF_DISK, SHARE_OF_MEMORY = 4, 8
# Room is made for 1/AT_ONCE of the quota at least: looking for what can go costs as much for one
# file as for many.
AT_ONCE = 16


def open_staging(config: Config, session: SessionDir, *, needed: bool) -> Tier | None:
    """Opens the area that the configuration describes. Where it describes none and one is `needed`,
    opens one in shared memory. Returns None otherwise, and where the area cannot be had: the source
    serves instead."""
    found = config.staging or (_default(len(config.tiers)) if needed else None)
    if found is None:
        return None
    try:
        refuse_replaceable(found.mount_point)
        tier = Tier(found, f"staging-{session.path.name}", config.file)
        try:
            tier.remove_all(tier.listing()["number"])  # debris of a daemon that was killed
        except OSError as error:
            tier.close()
            raise tier.broken(error) from error
        return tier
    except TierError as error:
        log.warning("there is no staging area: %s", error)
        return None


def _default(tiers: int) -> TierConfig | None:
    place = shm_root()
    if tiers >= MAX_TIERS:
        log.warning("there is no staging area: %d tiers are as many as there can be", tiers)
        return None
    try:
        room = os.statvfs(place)
    except OSError as error:
        log.warning("there is no staging area: %s: %s", place, error.strerror)
        return None
    free = room.f_bavail * room.f_frsize // SHARE_OF_DISK
    quota = min(DEFAULT_BYTES, free, memory.available_bytes() // SHARE_OF_MEMORY)
    return TierConfig(place, quota, "ram")


class Staging:
    """Which files are staged, in which order they came and were opened, and what goes for others.
    Runs in turns of the daemon's loop and never waits.

    number : of the tier;  tier : None when there is none, then nothing is staged
    """

    def __init__(self, number: int, tier: Tier | None, copies: Copies, policy: NodePolicy) -> None:
        self.number, self.tier, self.copies, self._policy = number, tier, copies, policy
        # Files in the order in which they came or were opened last. A copy that was dropped for
        # another reason is noticed when its turn has come.
        self._entries: dict[int, None] = {}
        self.refused: list[Ids] = []  # left to the source until something changes here
        self.staged = self.dropped = 0

    # --- what is there --------------------------------------------------------------------------

    def arrived(self, ids: Ids) -> None:
        """Notes (n,) files whose copies lie here from now on."""
        for entry in ids.tolist():
            self._entries.pop(entry, None)
            self._entries[entry] = None
        self.staged += len(ids)
        self.let_in()

    def opened(self, ids: Ids) -> None:
        """Notes (n,) files that programs have opened."""
        for entry in ids.tolist() if self._entries else ():
            if entry in self._entries:
                del self._entries[entry]
                self._entries[entry] = None

    # --- room -----------------------------------------------------------------------------------

    def can_hold(self, sizes: Uints) -> Bools:
        """Which files of these sizes (n,) [bytes] fit at all, each by itself."""
        if self.tier is None or not self.tier.usable:
            return np.zeros(len(sizes), dtype=bool)
        return np.asarray(self.tier.rounded_all(sizes) <= self.capacity_bytes())

    def capacity_bytes(self) -> int:
        """How much room all copies together can take here [bytes]."""
        if self.tier is None or not self.tier.usable:
            return 0
        try:
            return max(0, self.tier.quota_for_copies())
        except OSError:
            return 0

    def admits(self, sizes: Uints) -> Bools:
        """For which files of these sizes (n,) [bytes] there is room now, taken in order."""
        if self.tier is None:
            return np.zeros(len(sizes), dtype=bool)
        room = self.tier.room()
        return take(room.rounded(sizes), room.free_bytes, room.free_inodes)

    def make_room(self, need_bytes: int, least_use: int = -1) -> bool:
        """Drops copies until need_bytes of room are there, or on their way. Only copies go that are
        not used before `least_use`, a distance as in `NodePolicy.next_use`. Returns whether any
        room is on its way."""
        if self.tier is None:
            return False
        leaving = self.copies.leaving[self.number]
        missing = need_bytes - self.tier.room().free_bytes - leaving
        if missing > 0:
            self._drop(max(missing, self.tier.config.quota_bytes // AT_ONCE), least_use)
        return self.copies.leaving[self.number] > 0

    def _drop(self, bytes_: int, least_use: int) -> None:
        """Drops copies that take so many bytes together, see `NodePolicy.victims`: of copies with
        the same next use, or with none known, the one that came or was opened the longest ago goes
        first."""
        assert self.tier is not None
        ids = np.fromiter(self._entries, dtype=np.uint64, count=len(self._entries))
        words = self.copies.shared.catalog.words[ids]
        here = (word.state(words) == State.PRESENT) & (word.tier(words) == self.number)
        for entry in ids[~here].tolist():
            del self._entries[entry]
        ids = ids[here]
        sizes = self.tier.rounded_all(self.copies.shared.catalog.entries["size"][ids])
        ids = ids[self._policy.victims(ids, sizes, bytes_, least_use)]
        for entry in ids.tolist():
            del self._entries[entry]
        self.dropped += len(ids)
        self.copies.forget(ids, State.ABSENT)

    # --- no room --------------------------------------------------------------------------------

    def refuse(self, ids: Ids) -> None:
        """Leaves (n,) files to the source for which nothing can go now: at once, because readers
        wait. As soon as anything changes here, an open wants them again."""
        self.copies.shared.catalog.set_state(ids, State.BYPASS, Reason.NO_ROOM)
        self.refused.append(ids)

    def let_in(self) -> None:
        """Lets refused files be wanted again: copies have arrived, or dropped ones are gone."""
        if not self.refused:
            return
        ids, self.refused = np.concatenate(self.refused), []
        catalog = self.copies.shared.catalog
        still = catalog.words[ids] == word.make(State.BYPASS, Reason.NO_ROOM)
        catalog.set_state(ids[still], State.ABSENT)
