"""The keys of a configuration. docs/configuration.md shows these tables row by row."""

from __future__ import annotations

from pathlib import Path

import yaml

from monarch_py.config import _values as own
from monarch_py.config.schema import (
    DEFAULT_BLOCK_SIZE_BYTES,
    DEFAULT_COPY_THREADS,
    DEFAULT_EVICTION,
    DEFAULT_FETCH,
    DEFAULT_HANDOVER_BYTES,
    DEFAULT_METADATA,
    DEFAULT_MIN_READS,
    DEFAULT_PLACEMENT,
    DEFAULT_PREFETCH,
    DEFAULT_REVALIDATE_S,
    DEFAULT_SCAN,
    DEFAULT_SCAN_THREADS,
    EVICTIONS,
    FETCHES,
    MAX_SWITCH_FILE_BYTES,
    MAX_THREADS,
    METADATA,
    PLACEMENTS,
    PREFETCHES,
    SCANS,
    SYSTEM_SWITCH_FILE,
)
from monarch_py.document import Key, Section, Spot, Table, is_empty, list_of, read_mapping, values

__all__ = ["DATA_PLANE", "DOCUMENT", "LEVEL", "PEERS", "SETTINGS", "SOURCE", "STAGING"]

# `disk` is what older configurations of the original say for file_system.
_KINDS = {"ram": "ram", "ssd": "ssd", "file_system": "file_system", "disk": "file_system"}
_PATTERNS = list_of(own.glob, "write a list such as ['*.tfrecord']")

SOURCE = Table(
    keys={
        "path": Key(values.path, "directory", "the root of a dataset", required=True),
        "include": Key(
            _PATTERNS, "list of patterns", "the files to copy", (), default_text="every file"
        ),
        "exclude": Key(_PATTERNS, "list of patterns", "files to leave out nevertheless", ()),
        "min_size": Key(values.size, "size", "smaller files are left out", 0, default_text="0"),
        "max_size": Key(values.size, "size", "larger files are left out"),
    }
)


def _sources(node: yaml.Node, spot: Spot) -> list[Section]:
    """A list, or the path of the only one."""
    if isinstance(node, yaml.ScalarNode) and not is_empty(node):
        return [_source(node, spot)]
    found: list[Section] = _list_of_sources(node, spot)
    return found


def _source(node: yaml.Node, spot: Spot) -> Section:
    if not isinstance(node, yaml.ScalarNode):
        return read_mapping(node, spot, SOURCE)
    section = Section(spot, SOURCE)
    section.add("path", values.path(node, spot), spot)
    return section


_list_of_sources = list_of(_source, "write '- path: /the/dataset' below it")

# max_storage_quota is not marked as required, because the last level of a configuration of the
# original has none; load.py asks for it on all others.
LEVEL = Table(
    keys={
        "mount_point": Key(values.path, "directory", "where the copies go", required=True),
        "max_storage_quota": Key(
            values.size, "size", "the room that copies may take", default_text="required"
        ),
        "type": Key(
            values.choice(_KINDS),
            "`ram`, `ssd` or `file_system`",
            "what the tier is made of; `file_system` looks whether it is in memory",
            "file_system",
            default_text="`file_system`",
        ),
        "persistent": Key(
            values.flag,
            "`true` or `false`",
            "keep the copies when the daemon ends",
            False,
            default_text="`false`",
        ),
        "block_size": Key(
            own.block_size,
            "size or `max`",
            "of the original Monarch; ignored, with a warning unless it is `max`",
            default_text="the one at the top",
        ),
        "eviction": Key(
            values.choice({name: name for name in EVICTIONS}),
            " or ".join(f"`{name}`" for name in EVICTIONS),
            "whether copies go for others that are needed sooner,"
            " see [Access plans](plan.md#eviction)",
            DEFAULT_EVICTION,
            default_text=f"`{DEFAULT_EVICTION}`",
        ),
    },
    aliases={"prefix": "mount_point", "max_storage_size": "max_storage_quota"},
    ignored={
        "tpool_size": "the tiers share one pool of threads, see shared_tpool_size",
        "max_storage_occupation_threshold": "a tier is used up to its whole quota, so lower"
        " max_storage_quota to use less",
    },
)


def _level(node: yaml.Node, spot: Spot) -> Section:
    return read_mapping(node, spot, LEVEL)


STAGING = Table(
    keys={
        "max_storage_quota": Key(
            values.size, "size", "the room that staged copies may take", required=True
        ),
        "mount_point": Key(
            values.path,
            "directory",
            "where they go, best a file system in memory",
            Path("/dev/shm"),  # noqa: S108
            default_text="`/dev/shm`",
        ),
    },
)


def _staging(node: yaml.Node, spot: Spot) -> Section:
    return read_mapping(node, spot, STAGING)


LIMITS = Table(
    keys={
        "bandwidth": Key(values.size, "size", "bytes per second", default_text="no limit"),
        "operations": Key(
            values.integer(1), "number", "opens and reads per second", default_text="no limit"
        ),
    }
)


def _source_limits(node: yaml.Node, spot: Spot) -> Section:
    return read_mapping(node, spot, LIMITS)


PEERS = Table(
    keys={
        "interface": Key(
            own.word,
            "name",
            "the network interface whose first address it is",
            default_text="the address of the host's name",
        ),
        "address": Key(own.address, "address", "the same, in numbers"),
        "port": Key(
            values.integer(0, 65535),
            "0 to 65535",
            "0 is any port that is free",
            0,
            default_text="0",
        ),
        "fetch": Key(
            values.choice({name: name for name in FETCHES}),
            " or ".join(f"`{name}`" for name in FETCHES),
            "where a file comes from that another node has; `holders`: the source only when they"
            " fail, see [Between nodes](peers.md#the-fastest-place)",
            DEFAULT_FETCH,
            default_text=f"`{DEFAULT_FETCH}`",
        ),
    }
)


def _peers(node: yaml.Node, spot: Spot) -> Section:
    return read_mapping(node, spot, PEERS)


SETTINGS = Table(
    keys={
        "sources": Key(
            _sources,
            "list, or a path",
            "the datasets, see below",
            default_text="required",
        ),
        "hierarchy": Key(
            list_of(_level, "write '- mount_point: /the/tier' below it"),
            "list",
            "the tiers, fastest first, see below",
            default_text="required",
        ),
        "staging": Key(
            _staging,
            "mapping",
            "a small area for copies that come and go, see below",
            default_text="none",
        ),
        "block_size": Key(
            own.block_size,
            "size or `max`",
            "the size of one read from the source; `max` is the default",
            DEFAULT_BLOCK_SIZE_BYTES,
            default_text="4MiB",
        ),
        "shared_tpool_size": Key(
            values.integer(1, MAX_THREADS),
            "threads",
            "the most files and blocks that are copied at a time",
            DEFAULT_COPY_THREADS,
            default_text=str(DEFAULT_COPY_THREADS),
        ),
        "scan": Key(
            values.choice({name: name for name in SCANS}),
            " or ".join(f"`{name}`" for name in SCANS),
            "the scan lists everything, in the background, or only the directories that programs"
            " read, see [the scan](#the-scan)",
            DEFAULT_SCAN,
            default_text=f"`{DEFAULT_SCAN}`",
        ),
        "scan_threads": Key(
            values.integer(1, MAX_THREADS),
            "threads",
            "how many files and directories are looked at at a time",
            DEFAULT_SCAN_THREADS,
            default_text=str(DEFAULT_SCAN_THREADS),
        ),
        "scan_rate": Key(
            values.integer(1),
            "operations per second",
            "the most that the scan asks of the sources",
            default_text="no limit",
        ),
        "placement": Key(
            values.choice({name: name for name in PLACEMENTS}),
            " or ".join(f"`{name}`" for name in PLACEMENTS),
            "the rule that says which tier a file goes to",
            DEFAULT_PLACEMENT,
            default_text=f"`{DEFAULT_PLACEMENT}`",
        ),
        "prefetch": Key(
            values.choice({name: name for name in PREFETCHES}),
            " or ".join(f"`{name}`" for name in PREFETCHES),
            "what is filled: files that are read, and what lies beside them; files that are read;"
            " all, in the order of the scan, behind those; only what `monarch warm` names",
            DEFAULT_PREFETCH,
            default_text=f"`{DEFAULT_PREFETCH}`",
        ),
        "plan": Key(
            own.plans,
            "file or list of files",
            "access plans that are followed, see [Access plans](plan.md#following-a-plan)",
            default_text="none",
        ),
        "fill_after": Key(
            values.share,
            "0 to 1, or percent",
            "the share of a file that a program must have read before it is filled",
            0.0,
            default_text="0",
        ),
        "handover_size": Key(
            values.size,
            "size",
            "programs read files that have no copy, and are no larger than this, at the source;"
            " copies are made through their descriptors",
            DEFAULT_HANDOVER_BYTES,
            default_text="16MiB",
        ),
        "promote_mappings": Key(
            values.flag,
            "`true` or `false`",
            "move live mappings to a copy that is finished later",
            True,
            default_text="`true`",
        ),
        "metadata": Key(
            values.choice({name: name for name in METADATA}),
            " or ".join(f"`{name}`" for name in METADATA),
            "who answers for names and attributes: what was scanned, or the source each time",
            DEFAULT_METADATA,
            default_text=f"`{DEFAULT_METADATA}`",
        ),
        "revalidate": Key(
            values.duration,
            "time",
            "how often directories are compared with the source for what is removed or replaced"
            " around the library, and how old the attributes of a file may be; `0`: never, and the"
            " source is asked for attributes each time",
            DEFAULT_REVALIDATE_S,
            default_text="5min",
        ),
        "source_limits": Key(
            _source_limits,
            "mapping",
            "the most that this node asks of the sources, see below",
            default_text="no limit",
        ),
        "balance_ranks": Key(
            values.flag,
            "`true` or `false`",
            "of what readers wait for, a rank of this node that misses more than the others gets"
            " more",
            True,
            default_text="`true`",
        ),
        "peers": Key(
            _peers,
            "mapping",
            "where the other nodes' daemons reach this one's, see below",
            default_text="the address of the host's name",
        ),
        "performance": Key(
            own.file,
            "file",
            "what `monarch calibrate -o` has written: rates until others are measured",
            default_text="none",
        ),
        "min_reads": Key(
            values.integer(1, MAX_THREADS),
            "reads",
            "the fewest reads in flight at the sources; shared_tpool_size is the most",
            DEFAULT_MIN_READS,
            default_text=str(DEFAULT_MIN_READS),
        ),
        "switch_file": Key(
            values.path,
            f"path of at most {MAX_SWITCH_FILE_BYTES} bytes",
            "while this file exists, everything is switched off;"
            f" `{SYSTEM_SWITCH_FILE}` does the same",
        ),
        "version": Key(
            values.choice({"1": "1"}), "`1`", "the version of this format", "1", default_text="1"
        ),
    }
)

_PROFILER = {"profiler": "statistics are always kept, see 'monarch status'"}

DATA_PLANE = Table(
    keys=SETTINGS.keys,
    ignored={
        "type": "there is one kind of data plane",
        "type_configs": "copies are always made in the background, by one pool of threads",
        "has_shareable_file_descriptors": "descriptors are always the program's own",
        "storage_sync_timeout": "programs never wait for a tier to be in step",
        "rate_limiter": "reads are not slowed down",
        **_PROFILER,
    },
)


def _data_plane(node: yaml.Node, spot: Spot) -> Section:
    return read_mapping(node, spot, DATA_PLANE)


DOCUMENT = Table(
    keys={**SETTINGS.keys, "data_plane": Key(_data_plane, "mapping", "the settings, once more")},
    ignored={
        "metadata_container": "nothing need be known of epochs and shuffling; for its regex,"
        " give a source an 'include'",
        "home_dir": "nothing is written outside the tiers and the runtime directory",
        "debug": "see 'monarch status' and the daemon's log",
        **_PROFILER,
    },
)
