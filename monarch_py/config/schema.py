"""What a configuration says once it has been read: frozen, with units in the names.

Written by hand instead of with a validation library: the daemon that holds these has a tight
budget of memory, and load.py has checked everything before one of them exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from monarch_py.util.units import GIB, KIB, MIB

__all__ = [
    "DEFAULT_BLOCK_SIZE_BYTES",
    "DEFAULT_COPY_THREADS",
    "DEFAULT_HANDOVER_BYTES",
    "DEFAULT_MIN_READS",
    "DEFAULT_EVICTION",
    "DEFAULT_FETCH",
    "DEFAULT_METADATA",
    "DEFAULT_PLACEMENT",
    "DEFAULT_PREFETCH",
    "DEFAULT_REVALIDATE_S",
    "DEFAULT_SCAN",
    "DEFAULT_SCAN_THREADS",
    "EVICTIONS",
    "FETCHES",
    "MAX_BLOCK_SIZE_BYTES",
    "MAX_SOURCES",
    "MAX_SOURCE_PATH_BYTES",
    "MAX_SWITCH_FILE_BYTES",
    "MAX_THREADS",
    "MAX_TIERS",
    "MAX_TIER_PATH_BYTES",
    "METADATA",
    "MIN_BLOCK_SIZE_BYTES",
    "PAGE_BYTES",
    "PLACEMENTS",
    "PREFETCHES",
    "SCANS",
    "SYSTEM_SWITCH_FILE",
    "Config",
    "PeersConfig",
    "Performance",
    "SourceConfig",
    "SourceLimits",
    "TierConfig",
]

DEFAULT_BLOCK_SIZE_BYTES = 4 * MIB
MIN_BLOCK_SIZE_BYTES = 64 * KIB
MAX_BLOCK_SIZE_BYTES = 1 * GIB
# Blocks start on pages, so that a copied block can be mapped and written back on its own.
PAGE_BYTES = 4096

# Threads that wait for a source sleep: so many hide the latency of most.
DEFAULT_COPY_THREADS = 64
DEFAULT_MIN_READS = 4
DEFAULT_HANDOVER_BYTES = 16 << 20
DEFAULT_SCAN_THREADS = 16
MAX_THREADS = 256

MAX_SOURCES = 16
MAX_TIERS = 16
# Room in the preloaded library's fixed path buffers beside the name of a copy [bytes].
MAX_TIER_PATH_BYTES = 180
# Of csrc/shared/catalog.h, without the NUL [bytes].
MAX_SOURCE_PATH_BYTES = 1023
MAX_SWITCH_FILE_BYTES = 239

PLACEMENTS = ("first_fit",)
DEFAULT_PLACEMENT = "first_fit"

# The causes of a fill: a first read, or reads of files beside it; a first read; that or the daemon
# of its own accord; only `monarch warm`.
PREFETCHES = ("auto", "on_demand", "eager", "none")
DEFAULT_PREFETCH = "auto"
# A scan lists everything, behind the job, or only the directories that are asked for.
SCANS = ("full", "lazy")
DEFAULT_SCAN = "full"

# Who answers for names and attributes: the catalog, or the source each time.
METADATA = ("cached", "source")
DEFAULT_METADATA = "cached"
DEFAULT_REVALIDATE_S = 300.0

# While a plan is followed the copies of a tier stay, or those that are used latest go for others
# (Lobster 4.4).
EVICTIONS = ("none", "planned")
DEFAULT_EVICTION = "none"

# Where a file that another node has comes from: the faster of that node and the source, or the node
# as long as it answers.
FETCHES = ("fastest", "holders")
DEFAULT_FETCH = "fastest"

# While this file exists everything is off on the node, whatever a user's configuration says.
SYSTEM_SWITCH_FILE = Path("/etc/monarch/disabled")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A directory tree that holds a dataset, and which of its files are copied.

    path : as written, variables expanded, absolute;  real_path : the same without symbolic links
    include, exclude : globs on the path below the source, see patterns.PathFilter
    min_size_bytes, max_size_bytes : bounds on the size of a file, both included; None = no bound
    """

    path: Path
    real_path: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_size_bytes: int = 0
    max_size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """The most that this node asks of all sources together; None = no limit."""

    bytes_per_s: int | None = None
    ops_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class PeersConfig:
    """Where the other nodes' daemons reach this one's.

    interface : a network interface's name;  address : in numbers;  port : 0 = any that is free
    fetch : one of FETCHES
    At most one of interface and address is not None.
    """

    interface: str | None = None
    address: str | None = None
    port: int = 0
    fetch: str = DEFAULT_FETCH


@dataclass(frozen=True, slots=True)
class Performance:
    """Rates of one node, all its threads together [bytes/s]; None = not known.

    source : what the sources give it;  link : its link to other nodes
    """

    source: float | None = None
    link: float | None = None

    def of(self, *, is_source: bool) -> float | None:
        return self.source if is_source else self.link


@dataclass(frozen=True, slots=True)
class TierConfig:
    """A place for copies.

    kind : 'ram' (its copies count as memory) or 'ssd'
    persistent : copies stay when the daemon ends
    eviction : one of EVICTIONS
    """

    mount_point: Path
    quota_bytes: int
    kind: str
    persistent: bool = False
    eviction: str = DEFAULT_EVICTION


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration.

    file : absolute path of the file it was read from;  tiers : fastest first
    scan_ops_per_s : None = no limit
    plans : files of the access plans that are followed
    fill_after : share of a file that must have been asked for before it is filled, 0 to 1
    handover_bytes : a file without a copy, no larger than this, is read by its program at the
        source, and the copy is made through the program's descriptor; 0 = no file is
    promote_mappings : live mappings are replaced once their copies are complete
    staging : the staging area, a tier whose copies come and go; None = the daemon makes one where
        it needs one
    scan : one of SCANS
    metadata : one of METADATA
    revalidate_s : how old an answer about a listing, or a missing name, may be
    balance_ranks : a rank that misses more is served more often
    min_reads, copy_threads : bounds on the reads in flight at the sources
    performance : rates that were measured beforehand
    switch_file : looked at besides SYSTEM_SWITCH_FILE;  everything is off while one of them exists
    warnings : one sentence each, for the user: what was read but has no effect, or not the
        effect one might expect
    """

    file: Path
    sources: tuple[SourceConfig, ...]
    tiers: tuple[TierConfig, ...]
    staging: TierConfig | None = None
    block_size_bytes: int = DEFAULT_BLOCK_SIZE_BYTES
    copy_threads: int = DEFAULT_COPY_THREADS
    scan: str = DEFAULT_SCAN
    scan_threads: int = DEFAULT_SCAN_THREADS
    scan_ops_per_s: int | None = None
    placement: str = DEFAULT_PLACEMENT
    prefetch: str = DEFAULT_PREFETCH
    plans: tuple[Path, ...] = ()
    fill_after: float = 0.0
    handover_bytes: int = DEFAULT_HANDOVER_BYTES
    promote_mappings: bool = True
    metadata: str = DEFAULT_METADATA
    revalidate_s: float = DEFAULT_REVALIDATE_S
    source_limits: SourceLimits = SourceLimits()
    balance_ranks: bool = True
    peers: PeersConfig = PeersConfig()
    performance: Performance = Performance()
    min_reads: int = DEFAULT_MIN_READS
    switch_file: Path | None = None
    warnings: tuple[str, ...] = ()

    @property
    def evicting(self) -> tuple[int, ...]:
        """Numbers of the tiers whose copies may go for others."""
        return tuple(n for n, tier in enumerate(self.tiers) if tier.eviction == "planned")
