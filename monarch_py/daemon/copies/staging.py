"""The staging area: a small tier for copies that are used once and dropped.

A node may read files that are not assigned to its tiers. The copy of such a file is stored here
from its fetch to its use. (Section 2 of the NoPFS paper calls this the staging buffer.) The area
has the highest tier number. It has no manifest, and no policy assigns files to it permanently.
"""

import logging

import numpy as np

from monarch_py.arrays import Bools, Ids, Uints
from monarch_py.config.schema import Config
from monarch_py.daemon.copies.copies import Copies
from monarch_py.errors import TierError
from monarch_py.ipc import word
from monarch_py.ipc.session import SessionDir
from monarch_py.native import Reason, State
from monarch_py.policies.node import NodePolicy
from monarch_py.policies.placement import take
from monarch_py.storage.memory import MemoryRoom
from monarch_py.storage.staging_area import default_area
from monarch_py.storage.tiers import Tier, refuse_replaceable

log = logging.getLogger("monarch.staging")

# At least 1/AT_ONCE of the quota is freed at a time. The reason is that a search for copies to drop
# takes equally long for one file and for many.
AT_ONCE = 16


def open_staging(
    config: Config, session: SessionDir, memory_room: MemoryRoom, *, needed: bool
) -> Tier | None:
    """Opens the staging area of the configuration. If none is configured but one is `needed`,
    creates one in shared memory. Returns None if there is no area, or if it cannot be opened. The
    source then serves the files that this node does not keep."""
    if config.staging is None and not needed:
        return None
    try:
        found = config.staging or default_area(len(config.tiers))
        refuse_replaceable(found.mount_point)
        tier = Tier(found, session.staging, config.file, memory_room)
        try:
            # A daemon that was killed may have left copies here.
            tier.remove_all(tier.listing()["number"])
        except OSError as error:
            tier.close()
            raise tier.broken(error) from error
        return tier
    except TierError as error:
        log.warning("there is no staging area: %s", error)
        return None


class Staging:
    """Lists the files in the staging area, sorted by the time at which each file arrived or was
    last opened. Drops copies to make room for others. Runs in the daemon's loop and never blocks.

    number : the area's number among the tiers
    tier : the area; if it is None, nothing is staged
    """

    def __init__(self, number: int, tier: Tier | None, copies: Copies, policy: NodePolicy) -> None:
        self.number, self.tier, self.copies, self._policy = number, tier, copies, policy
        # The entries of the staged files, sorted by the time of arrival or of the last open. If
        # another part of the daemon drops a copy, the file's entry stays here until the next
        # `_drop`.
        self._entries: dict[int, None] = {}
        self.refused: list[Ids] = []  # files that the source serves until `let_in` is called
        self.staged = self.dropped = 0

    # --- contents -------------------------------------------------------------------------------

    def arrived(self, ids: Ids) -> None:
        """Records that the copies of these files have arrived in the staging area."""
        for entry in ids.tolist():
            self._entries.pop(entry, None)
            self._entries[entry] = None
        self.staged += len(ids)
        self.let_in()

    def opened(self, ids: Ids) -> None:
        """Records that programs have opened these files."""
        for entry in ids.tolist() if self._entries else ():
            if entry in self._entries:
                del self._entries[entry]
                self._entries[entry] = None

    # --- room -----------------------------------------------------------------------------------

    def can_hold(self, sizes: Uints) -> Bools:
        """Returns an array (n,): for each size [bytes], whether a file of this size would fit into
        the empty staging area."""
        if self.tier is None or not self.tier.usable:
            return np.zeros(len(sizes), dtype=bool)
        return np.asarray(self.tier.rounded_all(sizes) <= self.capacity_bytes())

    def capacity_bytes(self) -> int:
        """Returns the limit on the total size of the copies in the area [bytes]."""
        if self.tier is None or not self.tier.usable:
            return 0
        try:
            return max(0, self.tier.quota_for_copies())
        except OSError:
            return 0

    def admits(self, sizes: Uints) -> Bools:
        """Returns an array (n,): for each file, whether there is room for it now, in addition to
        the files before it in `sizes`.

        sizes : (n,) the sizes of the files [bytes]
        """
        if self.tier is None:
            return np.zeros(len(sizes), dtype=bool)
        room = self.tier.room()
        return take(room.rounded(sizes), room.free_bytes, room.free_inodes)

    def make_room(self, sizes: Uints, least_use: int = -1) -> bool:
        """Drops copies to make room for files of these sizes [bytes]. The room of dropped copies
        counts as free. Keeps copies whose distance to the next use (`NodePolicy.next_use`) is less
        than `least_use`. Returns whether any dropped copies still occupy room, because their files
        are not removed yet."""
        if self.tier is None:
            return False
        leaving, room = self.copies.leaving[self.number], self.tier.room()
        missing = int(room.rounded(sizes).sum(dtype=np.float64)) - room.free_bytes - leaving
        if missing > 0:
            self._drop(max(missing, self.tier.config.quota_bytes // AT_ONCE), least_use)
        return self.copies.leaving[self.number] > 0

    def _drop(self, bytes_: int, least_use: int) -> None:
        """Drops copies to free `bytes_` bytes. `NodePolicy.victims` chooses them. Among copies with
        the same next use, or without a known one, the copy that arrived or was opened longest ago
        goes first."""
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

    # --- files for which there is no room -------------------------------------------------------

    def refuse(self, ids: Ids) -> None:
        """Makes readers of these files read from the source. Call this if readers wait for the
        files, and no copy can be dropped now to make room for them. Later, `let_in` makes the files
        ABSENT, so that the next open of a file requests its fill again."""
        self.copies.shared.catalog.set_state(ids, State.BYPASS, Reason.NO_ROOM)
        self.refused.append(ids)

    def let_in(self) -> None:
        """Makes the files that `refuse` has left to the source ABSENT again, so that their fills
        can be requested. Call this when copies have arrived, or when dropped copies were
        removed."""
        if not self.refused:
            return
        ids, self.refused = np.concatenate(self.refused), []
        catalog = self.copies.shared.catalog
        still = catalog.words[ids] == word.make(State.BYPASS, Reason.NO_ROOM)
        catalog.set_state(ids[still], State.ABSENT)
