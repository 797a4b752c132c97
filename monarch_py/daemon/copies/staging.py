"""The staging area: a small tier whose copies come and go.

Files that a node reads and does not keep lie in this area from their fetch to their use (the
staging buffer of NoPFS, 2). The area has the last tier number. No policy places files in it, and it
has no manifest.
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

# Without a configured area, one is opened in shared memory. Its size is the least of DEFAULT_BYTES
# [bytes], 1/SHARE_OF_DISK of what the file system has free, and 1/SHARE_OF_MEMORY of the memory
# that is left.
DEFAULT_BYTES = GIB
SHARE_OF_DISK, SHARE_OF_MEMORY = 4, 8
# At least 1/AT_ONCE of the quota is freed at a time, because looking for copies to drop costs as
# much for one file as for many.
AT_ONCE = 16


def open_staging(config: Config, session: SessionDir, *, needed: bool) -> Tier | None:
    """Opens the area that the configuration describes. If it describes none and one is `needed`,
    opens one in shared memory. Returns the area; None if there is none or it cannot be opened. The
    source then serves the files that this node does not keep."""
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
        log.warning(
            "there is no staging area: the configuration already has %d tiers, the maximum", tiers
        )
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
    """Keeps track of the staged files, in the order in which they came or were opened, and drops
    copies to make room for others. Runs in turns of the daemon's loop and never waits.

    number : the area's number among the tiers;  tier : None without an area; then nothing is staged
    """

    def __init__(self, number: int, tier: Tier | None, copies: Copies, policy: NodePolicy) -> None:
        self.number, self.tier, self.copies, self._policy = number, tier, copies, policy
        # The staged files, in the order in which they came or were last opened. A copy that was
        # dropped for another reason stays here until `_drop` comes to it.
        self._entries: dict[int, None] = {}
        self.refused: list[Ids] = []  # left to the source until something changes here
        self.staged = self.dropped = 0

    # --- what is there --------------------------------------------------------------------------

    def arrived(self, ids: Ids) -> None:
        """Notes (n,) files whose copies have arrived here."""
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
        """Returns (n,) whether a file of each of these sizes [bytes] fits into the empty area."""
        if self.tier is None or not self.tier.usable:
            return np.zeros(len(sizes), dtype=bool)
        return np.asarray(self.tier.rounded_all(sizes) <= self.capacity_bytes())

    def capacity_bytes(self) -> int:
        """Returns how much room all copies together can take here [bytes]."""
        if self.tier is None or not self.tier.usable:
            return 0
        try:
            return max(0, self.tier.quota_for_copies())
        except OSError:
            return 0

    def admits(self, sizes: Uints) -> Bools:
        """Returns (n,) whether there is room now for each of the files, whose sizes [bytes] are
        given and which are taken in order."""
        if self.tier is None:
            return np.zeros(len(sizes), dtype=bool)
        room = self.tier.room()
        return take(room.rounded(sizes), room.free_bytes, room.free_inodes)

    def make_room(self, need_bytes: int, least_use: int = -1) -> bool:
        """Drops copies until need_bytes of room are free or being freed. Copies that are used
        before `least_use`, a distance as in `NodePolicy.next_use`, stay. Returns whether any room
        is being freed."""
        if self.tier is None:
            return False
        leaving = self.copies.leaving[self.number]
        missing = need_bytes - self.tier.room().free_bytes - leaving
        if missing > 0:
            self._drop(max(missing, self.tier.config.quota_bytes // AT_ONCE), least_use)
        return self.copies.leaving[self.number] > 0

    def _drop(self, bytes_: int, least_use: int) -> None:
        """Drops copies of `bytes_` bytes together, chosen by `NodePolicy.victims`. Of copies with
        the same next use, or without a known one, the copy that came or was opened the longest ago
        is dropped first."""
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
        """Leaves (n,) files to the source because no copy can be dropped for them now. It does so
        at once, because readers wait. When anything changes here, the files become ABSENT, so that
        their next open wants them again."""
        self.copies.shared.catalog.set_state(ids, State.BYPASS, Reason.NO_ROOM)
        self.refused.append(ids)

    def let_in(self) -> None:
        """Makes refused files ABSENT, so that they can be wanted again. It is called when copies
        have arrived, or when dropped copies have been removed."""
        if not self.refused:
            return
        ids, self.refused = np.concatenate(self.refused), []
        catalog = self.copies.shared.catalog
        still = catalog.words[ids] == word.make(State.BYPASS, Reason.NO_ROOM)
        catalog.set_state(ids[still], State.ABSENT)
