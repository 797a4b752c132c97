"""Loads plans that daemons follow, each with the version of its file."""

from dataclasses import replace
from pathlib import Path

from monarch_py.errors import ConfigError
from monarch_py.plan import Plan

# The version of a file: its inode, size and mtime. At least one of them changes if another plan, or
# another configuration, is written to the file.
Version = tuple[int, int, int] | None
# The version of a plan's file, and the plan.
Loaded = tuple[Version, Plan]


def version_of(file: Path) -> Version:
    """Returns the version of a file, or None if stat(2) of the file fails."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def load_plan(file: Path, nodes: int) -> Loaded:
    """Loads the plan of a training on `nodes` nodes. The plan's accesses are converted to accesses
    of whole files, because a daemon copies whole files only. If `nodes` is 1, this node follows
    node 0 of the plan, however many nodes the plan is for.

    Raises ConfigError, which names the file, if the plan cannot be followed.
    """
    version = version_of(file)
    plan = replace(Plan.load(file), grain="files")
    if any(not len(index.pool) for index in plan.datasets):
        raise ConfigError(
            f"{file}: the plan says how many files there are, but not their names; make it from an"
            " index (`monarch plan index`)"
        )
    if nodes not in (1, plan.nodes):
        raise ConfigError(
            f"{file}: the plan is for {plan.nodes} nodes, but {nodes} work together; make it again"
            f" with 'nodes: {nodes}'"
        )
    plan.timeline()
    return version, plan
