"""Makes the additional fields that `monarch report` needs: the history, and where the files are.

The command counts the files in the catalog, which is in shared memory. So the daemon spends no time
on counting.
"""

import os
from typing import Any

import numpy as np

from monarch_py.arrays import Array, Ids
from monarch_py.commands.daemon_view import DaemonView
from monarch_py.errors import SessionError
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.jobs import Jobs
from monarch_py.native import Kind, State
from monarch_py.storage import memory

# A report divides the files into groups, and contains sums for each group. This limit on the number
# of groups keeps the report small.
MOST_GROUPS = 2000


def record(connection: DaemonConnection, report: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a report (docs/status.md) that only `monarch report` needs. Raises
    SessionError if the daemon does not answer.

    report : the daemon's answer to `status`
    """
    places = len(report["tiers"]) + (report["staging"] is not None)
    history = connection.ask("history")
    try:
        catalog = DaemonView(connection).catalog
    except (OSError, ValueError) as error:
        raise SessionError("the daemon ended before its catalog could be read") from error
    return {
        "history": history,
        "files": grouped(catalog, places),
        "rooms": [_room(tier) for tier in report["tiers"]],
        "memory_bytes": memory.available_bytes(),
        "other_jobs": len(Jobs(connection.session).others()),
    }


def _room(tier: dict[str, Any]) -> int:
    """Returns how many bytes a tier could hold if it had no quota: the size of its copies, plus the
    free space of its file system. If the free space is not known, returns the quota."""
    try:
        system = os.statvfs(tier["mount_point"])
    except OSError:  # for example, this process runs in a container without the tier's directory
        return int(tier["quota_bytes"])
    return int(tier["used_bytes"] + system.f_bavail * system.f_frsize)


def grouped(catalog: CatalogReader, places: int) -> dict[str, Any]:
    """Returns the field `files` of a report, which describes groups of files. A group consists of
    consecutive catalog entries. The scan adds the files of a directory one after another, so a
    group covers few directories. For each group, the field contains the first file, the number of
    files, their total size, and the total size of the files whose copies are in each place. A place
    is a tier or the staging area. The groups are sorted by the paths of their first files.

    places : the number of places
    """
    ids = np.flatnonzero(catalog.entries["kind"] == Kind.FILE).astype(np.uint64)
    groups = min(MOST_GROUPS, len(ids))
    starts = (np.arange(groups) * len(ids) // max(1, groups)).astype(np.intp)
    named = [(int(catalog.entries["source"][i]), catalog.path(int(i))) for i in ids[starts]]
    order = np.array(sorted(range(groups), key=named.__getitem__), dtype=np.intp)
    sizes, copied = _sums(catalog, ids, starts, places)
    return {
        "source": [named[i][0] for i in order],
        "first": [named[i][1].encode(errors="replace").decode() for i in order],
        "count": np.diff(starts, append=len(ids))[order].tolist(),
        "bytes": sizes[order].tolist(),
        "copied_bytes": copied[:, order].tolist(),
    }


def _sums(catalog: CatalogReader, ids: Ids, starts: Array, places: int) -> tuple[Ids, Ids]:
    """Returns two tables of sizes [bytes]: the total size of each group's files, (groups,), and the
    total size of those files whose copies are in each place, (places, groups).

    ids : the catalog entries of all files
    starts : the index in `ids` at which each group begins
    """
    copied = np.zeros((places, len(starts)), dtype=np.uint64)
    if not len(ids):
        return copied.sum(axis=0), copied
    sizes, words = catalog.entries["size"][ids], catalog.words[ids]
    is_present, tiers = word.state(words) == State.PRESENT, word.tier(words)
    for place in range(places):
        there = np.where(is_present & (tiers == place), sizes, np.uint64(0))
        copied[place] = np.add.reduceat(there, starts)
    return np.add.reduceat(sizes, starts), copied
