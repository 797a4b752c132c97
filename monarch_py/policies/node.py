"""The policy of one node: what it keeps and where, what goes first, and whom it asks for the rest.

The daemon has one such object, that of its own node. The simulator has one for each node of a job.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from monarch_py.plan.access import NEVER
from monarch_py.policies.placement import NOWHERE, TierRoom, first_fit
from monarch_py.policies.view import PFS, Ints

# The holder of a file that only the source has.
NOBODY = PFS
# How many nodes a fill asks for a file at most: MONARCH_ASKED.
ASKED = 2
# The tier of a file for which no plan has chosen one.
UNPLANNED = -2

# (files, ASKED) int32, the nodes that keep each file, the owner first, NOBODY after the last one.
Holders = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)


class NodePolicy:
    """Decides by what it was told last: by `share` which nodes keep which files, by `follow` what a
    plan says of them, by `foresee` which files are used next.

    Files are numbers from 0 on: entries of the catalog in the daemon, the job's files in the
    simulator. `ids` are always (n,) of them.

    node : the number of the node
    shares : whether nodes keep files for each other. A node for itself alone keeps every file
    kept : (shared files,) whether this node keeps each file, where no plan says otherwise
    follows_plan : whether a plan says what is kept here
    planned : (planned files,) int32, the tier that the plan has chosen for each file, NOWHERE for a
        file that is not to be kept, UNPLANNED for a file of no plan
    """

    def __init__(self, node: int = 0, *, shares: bool = False) -> None:
        self.node, self.shares, self.follows_plan = node, shares, False
        self.planned = np.zeros(0, np.int32)
        self._holders: Holders = np.zeros((0, ASKED), np.int32)
        self.kept = np.zeros(0, np.bool_)
        self._upcoming: Ints = np.zeros(0, np.uint64)
        self._distance = np.zeros(0, np.int64)

    # --- what it decides ------------------------------------------------------------------------

    def owners(self, ids: Ints) -> npt.NDArray[np.int32]:
        """(n,) the nodes that alone read the files from the source and keep them; NOBODY where each
        node reads for itself."""
        return self.holders(ids)[:, 0]

    def holders(self, ids: Ints) -> Holders:
        """(n, ASKED) the nodes that keep the files, the owner first."""
        return _found(self._holders, ids, NOBODY)

    def owns(self, ids: Ints) -> Bools:
        """(n,) whether this node is the owner."""
        return np.asarray(self.owners(ids) == self.node)

    def keeps(self, ids: Ints) -> Bools:
        """(n,) whether the files have a place in the tiers of this node. Other files are staged
        when they are needed, and dropped afterwards."""
        tier = self._tiers(ids)
        kept = _found(self.kept, ids, not self.shares)
        return np.where(tier == UNPLANNED, kept, tier != NOWHERE)

    def tier_of(self, ids: Ints, sizes: Ints, rooms: list[TierRoom]) -> npt.NDArray[np.int32]:
        """(n,) the tier into which each file goes, NOWHERE where none has room: the one that the
        plan has chosen, else the fastest with room (Dantas 2022, 4.1.2).

        sizes : (n,) [bytes], in the order of filling;  rooms : of the tiers, fastest first
        """
        return first_fit(sizes, rooms, self._tiers(ids) if self.follows_plan else None)

    def next_use(self, ids: Ints) -> npt.NDArray[np.int64]:
        """(n,) how many files are used before each of these is used next; NEVER for a use that
        nobody foresees."""
        distance = np.full(len(ids), NEVER, np.int64)
        if len(self._upcoming):
            at = np.minimum(np.searchsorted(self._upcoming, ids), len(self._upcoming) - 1)
            found = self._upcoming[at] == ids
            distance[found] = self._distance[at[found]]
        return distance

    def victims(
        self, ids: Ints, sizes: Ints, needed_bytes: int, least_use: int = -1
    ) -> npt.NDArray[np.int64]:
        """Which of the staged files are dropped for `needed_bytes` of room, as places in `ids`. The
        file that is used farthest in the future goes first; of files with the same next use the
        first of `ids`.

        sizes : (n,) [bytes];  least_use : files that are used sooner stay
        """
        uses = self.next_use(ids)
        order = np.argsort(-uses, kind="stable")
        order = order[uses[order] >= least_use]
        before = np.cumsum(sizes[order]) - sizes[order]
        return np.asarray(order[before < needed_bytes])

    def route(self, ids: Ints, queues: Ints) -> npt.NDArray[np.int32]:
        """(n, ASKED) the nodes that a fill asks for each file, one after the other; NOBODY for the
        source. This node reads its own files and those that nobody keeps from the source. Of two
        holders the one with the shorter queue comes first: the owner fills what it has not, and the
        other one may have no copy yet.

        queues : (nodes,) this node's orders that wait for each node
        """
        asked = self.others(ids)
        two = np.flatnonzero((asked >= 0).all(axis=1))
        owner, other = asked[two].T
        # Queues of the same length mean nothing: the owner comes first for half of the files.
        is_turned = (queues[other] < queues[owner]) | (
            (queues[other] == queues[owner]) & (ids[two] % np.asarray(2, ids.dtype) == 1)
        )
        asked[two[is_turned]] = asked[two[is_turned]][:, ::-1]
        return asked

    def others(self, ids: Ints) -> npt.NDArray[np.int32]:
        """(n, ASKED) the other nodes that keep the files, the owner first; NOBODY for this node's
        own."""
        others = self.holders(ids).astype(np.int32)
        others[others[:, 0] == self.node] = NOBODY
        others[others[:, 1] == self.node, 1] = NOBODY
        return others

    def second_copies(self) -> npt.NDArray[np.uint64]:
        """The files of other nodes that this node keeps as well, in room that is left over."""
        owners = self._holders[:, 0]
        is_foreign = (owners != NOBODY) & (owners != self.node)
        return np.flatnonzero(self.kept & is_foreign).astype(np.uint64)

    def _tiers(self, ids: Ints) -> npt.NDArray[np.int32]:
        return _found(self.planned, ids, UNPLANNED)

    # --- what it is told ------------------------------------------------------------------------

    @property
    def shared(self) -> int:
        """How many files were shared out among the nodes."""
        return len(self._holders)

    @property
    def own_files(self) -> int:
        """How many files this node keeps for all nodes."""
        return int((self._holders[:, 0] == self.node).sum())

    def share(self, owner: Ints, kept: Bools) -> None:
        """Shares out the (n,) files that follow those shared out before.

        owner : (n,) the node that keeps each for all, NOBODY for none;  kept : (n,) whether this
        node has a copy
        """
        holders = np.full((len(owner), ASKED), NOBODY, np.int32)
        holders[:, 0] = owner
        self._holders = np.concatenate([self._holders, holders])
        self.kept = np.concatenate([self.kept, kept])

    def follow(
        self,
        ids: Ints,
        tier: npt.NDArray[np.int32],
        files: int,
        holders: Holders | None = None,
    ) -> None:
        """Takes over what a plan says of its files, and forgets an earlier plan.

        tier : (n,) in which this node keeps each file, NOWHERE for none;  files : how many there
        are, of the plan or not;  holders : (n, ASKED), the same on every node. They stay so when
        the plan is followed no more, because the copies are where it has put them
        """
        self.follows_plan = True
        self.planned = np.full(files, UNPLANNED, np.int32)
        self.planned[ids] = tier
        if holders is not None:
            self._holders[ids], self.kept[ids] = holders, tier != NOWHERE

    def forget_plan(self) -> None:
        """From here on files are kept as without a plan, and no use is foreseen."""
        self.follows_plan = False
        self.planned = np.zeros(0, np.int32)
        self.foresee(np.zeros(0, np.uint64))

    def foresee(self, ids: Ints) -> None:
        """Notes which files are used next, in this order, each once."""
        order = np.argsort(ids, kind="stable")
        self._upcoming, self._distance = ids[order], order.astype(np.int64)

    def used(self, ids: Ints) -> None:
        """Notes that these files were used: their next uses are not known any more."""
        left = ~np.isin(self._upcoming, ids)
        self._upcoming, self._distance = self._upcoming[left], self._distance[left]

    def lose(self, ids: Ints) -> None:
        """Notes files with a planned tier that there is no room for them after all."""
        self.planned[ids[self._tiers(ids) >= 0]] = NOWHERE

    def give_up(self, ids: Ints) -> None:
        """This node keeps these files no more."""
        self.kept[ids] = False

    def move(self, ids: Ints, nodes: Ints) -> None:
        """The (n,) nodes keep the files from now on, for all nodes, and no others do."""
        self._holders[ids] = NOBODY
        self._holders[ids, 0] = nodes

    def adopt(self, ids: Ints) -> None:
        """This node keeps files of others from now on. No plan has chosen a tier for them."""
        self.planned[ids[ids < len(self.planned)]] = UNPLANNED
        ids = ids[~self.owns(ids)]
        self.kept[ids] = True
        self.move(ids, np.full(len(ids), self.node))


def _found(table: npt.NDArray[Number], ids: Ints, default: Any) -> npt.NDArray[Number]:
    """The rows of these files; `default` for files that the table does not have."""
    found = np.full((len(ids), *table.shape[1:]), default, table.dtype)
    inside = ids < len(table)
    found[inside] = table[ids[inside]]
    return found


def planned_tiers(
    frequency: npt.NDArray[Any],
    first_use: Ints,
    sizes: Ints,
    rooms: Sequence[TierRoom],
) -> npt.NDArray[np.int32]:
    """(n,) the tier of each of the files that a node keeps along a plan: the most used files in the
    fastest tier, of files used equally often those that are used first (NoPFS 5.1). NOWHERE for a
    file that fits into no tier, because the room is in pieces.

    frequency, first_use : (n,) of this node;  sizes : (n,) [bytes];  rooms : fastest first
    """
    by_use = np.lexsort((first_use, -frequency.astype(np.float64)))
    tier = np.full(len(sizes), NOWHERE, np.int32)
    tier[by_use] = first_fit(sizes[by_use], rooms)
    return tier
