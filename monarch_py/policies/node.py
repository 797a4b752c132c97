"""The policy of one node: what it keeps and where, what it drops first, and which nodes it asks.

The daemon has one `NodePolicy`, for its own node. The simulator has one for each node of a job.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from monarch_py.plan.access import NEVER
from monarch_py.policies.placement import NOWHERE, TierRoom, first_fit
from monarch_py.policies.view import PFS, Bools, Int32s, Ints, Uints

# Used instead of a node's number if no node holds the file.
NOBODY = PFS
# A fill asks at most this many nodes for the file. The number equals MONARCH_ASKED in C.
ASKED = 2
# Used instead of a tier's number if no plan has chosen a tier for the file.
UNPLANNED = -2

# An array of the nodes that keep each file, (files, ASKED) int32. A row begins with the file's
# owner. If fewer than ASKED nodes keep the file, the rest of the row is NOBODY.
Holders = npt.NDArray[np.int32]
Number = TypeVar("Number", bound=np.generic)


def planned_tiers(
    frequency: npt.NDArray[Any], first_use: Ints, sizes: Ints, rooms: Sequence[TierRoom]
) -> Int32s:
    """Returns the tier of each file that a node keeps under a plan, (n,). Files are placed in the
    order of their frequency, the most used first, each into the fastest tier with room. Among files
    that are used equally often, the file with the earliest first use is placed first (NoPFS 5.1).
    The result is NOWHERE for a file that fits into no tier, even if the free parts of several tiers
    together are large enough.

    frequency, first_use : (n,) how often this node uses each file, and when it first uses the file
    sizes : (n,) [bytes]
    rooms : the room of the tiers, fastest first
    """
    by_use = np.lexsort((first_use, -frequency.astype(np.float64)))
    tier = np.full(len(sizes), NOWHERE, np.int32)
    tier[by_use] = first_fit(sizes[by_use], rooms)
    return tier


class NodePolicy:
    """Decides which files a node keeps and in which tier, which staged files it drops, and which
    nodes it asks for a file. Three methods set what these decisions depend on: `share` sets which
    node owns each file, `follow` sets what a plan has chosen for the files, and `foresee` sets
    which files are used next.

    Files are numbered from 0 on. In the daemon, the number of a file is the number of its entry in
    the catalog. In the simulator, it is the number of the file in the job. Every argument `ids` is
    an array of such numbers, (n,).

    node : the number of the node
    shares : whether the nodes keep files for each other. If not, this node keeps every file
    kept : (files,) whether this node keeps each file, for the files that `share` has divided among
        the nodes. `planned` takes precedence over `kept`
    follows_plan : whether a plan determines what this node keeps
    planned : (files,) int32, the tier that the plan has chosen for each file. NOWHERE for a file
        that this node is not to keep, UNPLANNED for a file that is in no plan
    """

    def __init__(self, node: int = 0, *, shares: bool = False) -> None:
        self.node, self.shares, self.follows_plan = node, shares, False
        self.planned = np.zeros(0, np.int32)
        self._holders: Holders = np.zeros((0, ASKED), np.int32)
        self.kept = np.zeros(0, np.bool_)
        self._upcoming: Ints = np.zeros(0, np.uint64)
        self._distance = np.zeros(0, np.int64)

    # --- decisions ------------------------------------------------------------------------------

    def owners(self, ids: Ints) -> Int32s:
        """Returns the owner of each file, (n,). The owner keeps the file, and no other node reads
        the file from the source. The owner is NOBODY if each node reads the file for itself."""
        return self.holders(ids)[:, 0]

    def holders(self, ids: Ints) -> Holders:
        """Returns, for each file, at most ASKED nodes that keep it, the owner first, (n, ASKED)."""
        return _found(self._holders, ids, NOBODY)

    def owns(self, ids: Ints) -> Bools:
        """Returns whether this node owns each file, (n,)."""
        return np.asarray(self.owners(ids) == self.node)

    def keeps(self, ids: Ints) -> Bools:
        """Returns whether this node keeps each file in its tiers, (n,). A file that it does not
        keep is copied to the staging area when it is needed, and dropped afterwards."""
        tier = self._tiers(ids)
        kept = _found(self.kept, ids, not self.shares)
        return np.where(tier == UNPLANNED, kept, tier != NOWHERE)

    def tier_of(self, ids: Ints, sizes: Ints, rooms: list[TierRoom]) -> Int32s:
        """Returns the tier into which each file goes, (n,). If the plan has chosen a tier, and this
        tier has room, the file goes there. Otherwise it goes into the fastest tier with room, as in
        section 4.1.2 of Dantas 2022. The result is NOWHERE if no tier has room.

        sizes : (n,) [bytes], in the order of filling;  rooms : the room of the tiers, fastest first
        """
        return first_fit(sizes, rooms, self._tiers(ids) if self.follows_plan else None)

    def next_use(self, ids: Ints) -> npt.NDArray[np.int64]:
        """Returns how many files are used before the next use of each file, (n,). The result is
        NEVER if the last call of `foresee` did not name the file, or if `used` was called for the
        file after that call."""
        distance = np.full(len(ids), NEVER, np.int64)
        if len(self._upcoming):
            at = np.minimum(np.searchsorted(self._upcoming, ids), len(self._upcoming) - 1)
            found = self._upcoming[at] == ids
            distance[found] = self._distance[at[found]]
        return distance

    def victims(
        self, ids: Ints, sizes: Ints, needed_bytes: int, least_use: int = -1
    ) -> npt.NDArray[np.int64]:
        """Returns which of the staged files `ids` are dropped to free `needed_bytes`, as indices
        into `ids`. The file with the farthest next use is dropped first. Among files with the same
        next use, the file that comes first in `ids` is dropped first.

        sizes : (n,) [bytes];  least_use : files with a smaller `next_use` are kept
        """
        uses = self.next_use(ids)
        order = np.argsort(-uses, kind="stable")
        order = order[uses[order] >= least_use]
        before = np.cumsum(sizes[order]) - sizes[order]
        return np.asarray(order[before < needed_bytes])

    def route(self, ids: Ints, queues: Ints) -> Int32s:
        """Returns, for each file, the nodes that this node asks when it copies the file, (n,
        ASKED). A row of NOBODY means that this node reads the file from the source: it owns the
        file, or no node keeps the file.

        If two other nodes keep the file, the node with the shorter queue is asked first. If that
        node does not send the file, the second node is asked. A node that has no copy yet makes a
        copy on request only if it owns the file.

        queues : (nodes,) how many files this node is waiting to get from each node
        """
        asked = self.others(ids)
        two = np.flatnonzero((asked >= 0).all(axis=1))
        owner, other = asked[two].T
        # Ask the node with the shorter queue first. If both queues have the same length, ask the
        # owner first for files with even numbers, and the other node first for files with odd
        # numbers.
        is_turned = (queues[other] < queues[owner]) | (
            (queues[other] == queues[owner]) & (ids[two] % np.asarray(2, ids.dtype) == 1)
        )
        asked[two[is_turned]] = asked[two[is_turned]][:, ::-1]
        return asked

    def others(self, ids: Ints) -> Int32s:
        """Returns the nodes other than this one that keep each file, the owner first, (n, ASKED).
        All elements are NOBODY for a file that this node owns."""
        others = self.holders(ids).astype(np.int32)
        others[others[:, 0] == self.node] = NOBODY
        others[others[:, 1] == self.node, 1] = NOBODY
        return others

    def second_copies(self) -> Uints:
        """Returns the files that this node keeps although other nodes own them."""
        owners = self._holders[:, 0]
        is_foreign = (owners != NOBODY) & (owners != self.node)
        return np.flatnonzero(self.kept & is_foreign).astype(np.uint64)

    def _tiers(self, ids: Ints) -> Int32s:
        return _found(self.planned, ids, UNPLANNED)

    # --- input ----------------------------------------------------------------------------------

    @property
    def shared(self) -> int:
        """The number of files that were divided among the nodes."""
        return len(self._holders)

    @property
    def own_files(self) -> int:
        """The number of files that this node owns."""
        return int((self._holders[:, 0] == self.node).sum())

    def share(self, owner: Ints, kept: Bools) -> None:
        """Adds files to those that are divided among the nodes. The numbers of the new files follow
        the numbers of the files that earlier calls have added.

        owner : (n,) the owner of each file, NOBODY for none
        kept : (n,) whether this node keeps the file
        """
        holders = np.full((len(owner), ASKED), NOBODY, np.int32)
        holders[:, 0] = owner
        self._holders = np.concatenate([self._holders, holders])
        self.kept = np.concatenate([self.kept, kept])

    def follow(self, ids: Ints, tier: Int32s, files: int, holders: Holders | None = None) -> None:
        """Adopts what a plan has decided about its files, `ids`, and forgets the tiers that an
        earlier plan has chosen.

        tier : (n,) the tier in which this node keeps each file, NOWHERE for none
        files : how many files there are, including files that are not in the plan
        holders : (n, ASKED) the nodes that keep each file; every node passes the same holders. The
            holders remain when the plan is dropped, because the copies remain where the plan has
            put them
        """
        self.follows_plan = True
        self.planned = np.full(files, UNPLANNED, np.int32)
        self.planned[ids] = tier
        if holders is not None:
            self._holders[ids], self.kept[ids] = holders, tier != NOWHERE

    def forget_plan(self) -> None:
        """Forgets the tiers that the plan has chosen, and the next uses of its files. The plan's
        holders remain (see `follow`)."""
        self.follows_plan = False
        self.planned = np.zeros(0, np.int32)
        self.foresee(np.zeros(0, np.uint64))

    def foresee(self, ids: Ints) -> None:
        """Sets which files are used next: `ids`, in the order of use, each file once."""
        order = np.argsort(ids, kind="stable")
        self._upcoming, self._distance = ids[order], order.astype(np.int64)

    def used(self, ids: Ints) -> None:
        """Tells the policy that these files were used. Their next uses are then unknown."""
        left = ~np.isin(self._upcoming, ids)
        self._upcoming, self._distance = self._upcoming[left], self._distance[left]

    def lose(self, ids: Ints) -> None:
        """Tells the policy that the tiers have no room for these files. Has no effect on files for
        which no plan has chosen a tier."""
        self.planned[ids[self._tiers(ids) >= 0]] = NOWHERE

    def give_up(self, ids: Ints) -> None:
        """Tells the policy that this node no longer keeps these files."""
        self.kept[ids] = False

    def move(self, ids: Ints, nodes: Ints) -> None:
        """Makes `nodes`, (n,), the owners of these files, and removes their other holders."""
        self._holders[ids] = NOBODY
        self._holders[ids, 0] = nodes

    def adopt(self, ids: Ints) -> None:
        """Makes this node the owner of these files, and forgets which tiers a plan has chosen for
        them."""
        self.planned[ids[ids < len(self.planned)]] = UNPLANNED
        ids = ids[~self.owns(ids)]
        self.kept[ids] = True
        self.move(ids, np.full(len(ids), self.node))


def _found(table: npt.NDArray[Number], ids: Ints, default: Any) -> npt.NDArray[Number]:
    """Returns the rows of `table` for these files. A file beyond the table's end gets `default`."""
    found = np.full((len(ids), *table.shape[1:]), default, table.dtype)
    inside = ids < len(table)
    found[inside] = table[ids[inside]]
    return found
