"""The keys of a configuration, and the objects of a checked configuration.

Each class has two purposes. Its fields declare the keys of a YAML mapping (see yaml_files/keys.py).
Its objects are parts of a checked configuration. If a field has a unit, its name ends with the
unit.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from monarch_py.config.patterns import checked_glob
from monarch_py.config.performance import Performance
from monarch_py.util.units import GIB, KIB, MIB, parse_size
from monarch_py.yaml_files.keys import DERIVED, Key, Keys
from monarch_py.yaml_files.values import (
    NUMBER,
    SIZE_HINT,
    TEXT,
    Directory,
    Duration,
    Kind,
    Share,
    Size,
    choice,
    directory,
    file,
    path,
    shown_size,
    words,
)

DEFAULT_BLOCK_SIZE_BYTES = 4 * MIB
MIN_BLOCK_SIZE_BYTES = 64 * KIB
MAX_BLOCK_SIZE_BYTES = 1 * GIB
# A block size must be a multiple of PAGE_BYTES, so that each block of a copy can be mapped and
# written back separately.
PAGE_BYTES = 4096

MAX_SOURCES = 16
MAX_TIERS = 16
# Longest path of a tier [bytes]. The preload library builds the path of a copy in a buffer of fixed
# size, which must also hold the copy's name.
MAX_TIER_PATH_BYTES = 180
# The longest paths [bytes], without the NUL, that fit into the structs of csrc/shared/catalog.h.
MAX_SOURCE_PATH_BYTES = 1023
MAX_SWITCH_FILE_BYTES = 239

# The name of a pack's index is the name of the pack with this suffix.
PACK_INDEX = ".monarch"

# While this file exists, Monarch is off on the node, whatever a user's configuration says.
SYSTEM_SWITCH_FILE = Path("/etc/monarch/disabled")


def _block_size(text: str) -> int:
    if text == "max":
        return 0
    n_bytes = parse_size(text)
    if not MIN_BLOCK_SIZE_BYTES <= n_bytes <= MAX_BLOCK_SIZE_BYTES:
        raise ValueError(f"{text!r} is out of range", "choose from 64KiB to 1GiB, or 'max'")
    if n_bytes % PAGE_BYTES:
        problem = f"{text!r} is not a multiple of {PAGE_BYTES} bytes"
        raise ValueError(
            problem, f"write {n_bytes // PAGE_BYTES * PAGE_BYTES}, the next smaller one"
        )
    return n_bytes


def _address(text: str) -> str:
    """Returns `text` if it is a numeric IP address; otherwise raises ValueError. Host names are
    refused, because to resolve a name may take long and may give any address."""
    if "%" in text:
        raise ValueError(f"{text!r} contains an interface name, which only this node knows")
    ip_address(text)
    return text


# The word `max` is read as 0, which selects the default block size. In the original Monarch, `max`
# means that each file is a single block.
BlockSize = Annotated[
    int, words("size or `max`", SIZE_HINT, _block_size, schema=NUMBER, show=shown_size)
]
GLOB_HINT = "write a pattern such as '*.tfrecord', see 'Patterns' in docs/configuration.md"
Glob = Annotated[str, words("pattern", GLOB_HINT, checked_glob)]
ADDRESS_HINT = "write it in numbers, such as 10.0.0.5 or fd00::5, or name an interface"
Address = Annotated[str, words("address", ADDRESS_HINT, _address)]
TierDirectory = Annotated[Path, directory("/local/scratch")]
Interface = Annotated[str, words("name", "write a name such as eth0", str)]
Threads = Annotated[int, Meta(ge=1, le=256, title="threads")]
Reads = Annotated[int, Meta(ge=1, le=256, title="reads")]
Operations = Annotated[int, Meta(ge=1, title="operations per second")]
# Older configurations of the original Monarch have `disk` in place of `file_system`.
TierKind = Annotated[str, choice("ram", "ssd", "file_system", disk="file_system")]
PackFile = Annotated[Path, file("name a tar that `monarch pack` has written")]
PlanFile = Annotated[
    Path, file("name a plan.yaml, or a file that `monarch plan make` has made from it")
]
SwitchFile = Annotated[Path, Kind(path, f"path of at most {MAX_SWITCH_FILE_BYTES} bytes", TEXT)]
AnyFile = Annotated[Path, file("write its name")]


@dataclass(frozen=True, slots=True)
class SourceConfig(Keys):
    """A directory tree with a dataset, and which of its files are copied.

    path : the root of a dataset
    real_path : `path` with all symbolic links resolved
    include : the files to copy, see [Patterns](#patterns)
    exclude : files not to copy, even if `include` selects them
    min_size : smaller files are not copied
    max_size : larger files are not copied
    pack : a tar of the files, made by `monarch pack`; one read of the tar gives many copies, see
        [Packs](packs.md)
    """

    SCALAR: ClassVar[str] = "path"

    path: Directory
    real_path: Annotated[Path, DERIVED] = Path()
    include: Annotated[tuple[Glob, ...], Key(default="every file")] = ()
    exclude: tuple[Glob, ...] = ()
    min_size_bytes: Annotated[Size, Key("min_size")] = 0
    max_size_bytes: Annotated[Size | None, Key("max_size")] = None
    pack: PackFile | None = None

    def words(self) -> dict[str, Any]:
        """Returns the fields as values of JSON's types, for the request that adds this source to a
        daemon."""
        paths = {"path": str(self.path), "real_path": str(self.real_path)}
        return {**asdict(self), **paths, "pack": None if self.pack is None else str(self.pack)}

    @classmethod
    def from_words(cls, words: Mapping[str, Any]) -> "SourceConfig":
        """Makes a source from a result of the method `words`."""
        paths = {name: Path(words[name]) for name in ("path", "real_path", "pack") if words[name]}
        lists = {name: tuple(words[name]) for name in ("include", "exclude")}
        return cls(**{**words, **paths, **lists})


@dataclass(frozen=True, slots=True)
class SourceLimits(Keys):
    """Limits on the load that this node's daemon causes at all sources together.

    bandwidth : the largest number of bytes read per second
    operations : the largest number of opens and reads per second
    """

    bytes_per_s: Annotated[Size | None, Key("bandwidth", "no limit")] = None
    ops_per_s: Annotated[Operations | None, Key("operations", "no limit")] = None


@dataclass(frozen=True, slots=True)
class PeersConfig(Keys):
    """The address at which this node's daemon listens for the other nodes' daemons.

    interface : the network interface whose first address is used
    address : the address itself, instead of `interface`
    port : the port to listen on; 0 means any free port
    fetch : where to read a file if another node has a copy: with `fastest`, from the faster of that
        node and the source; with `holders`, from that node, or from the source if the node fails,
        see [Between nodes](peers.md#the-fastest-place)
    """

    interface: Annotated[Interface | None, Key(default="the address of the host's name")] = None
    address: Address | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    fetch: Literal["fastest", "holders"] = "fastest"


@dataclass(frozen=True, slots=True)
class TierConfig(Keys):
    """A directory for copies. In a checked configuration, `kind` is 'ram' or 'ssd'. Copies in a
    'ram' tier count as memory.

    mount_point : the directory that holds the copies
    max_storage_quota : the room that copies may take
    type : the tier's kind of storage; with `file_system`, Monarch detects it
    persistent : keep the copies when the daemon ends
    eviction : with `planned`, copies make room for others that are needed sooner, see
        [Access plans](plan.md#eviction)
    block_size : a key of the original Monarch, without effect; any value except `max` gives a
        warning
    """

    IGNORED: ClassVar[Mapping[str, str]] = {
        "tpool_size": "the tiers share one pool of threads, see shared_tpool_size",
        "max_storage_occupation_threshold": "a tier is used up to its whole quota; to use less,"
        " lower max_storage_quota",
    }

    mount_point: Annotated[TierDirectory, Key(aliases=("prefix",))]
    # 0 if the level has no quota, like the last level in configurations of the original Monarch.
    quota_bytes: Annotated[
        Size, Key("max_storage_quota", "required", aliases=("max_storage_size",))
    ] = 0
    kind: Annotated[TierKind, Key("type")] = "file_system"
    persistent: bool = False
    eviction: Literal["none", "planned"] = "none"
    level_block_bytes: Annotated[BlockSize, Key("block_size", "the one at the top")] = 0


@dataclass(frozen=True, slots=True)
class StagingArea(Keys):
    """The staging area, as the user has configured it.

    max_storage_quota : the room that staged copies may take
    mount_point : the directory for staged copies, best on a file system in memory
    """

    quota_bytes: Annotated[Size, Key("max_storage_quota")]
    mount_point: TierDirectory = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Limits(Keys):
    """Limits on the configurations of a site's users. Only the site's configuration may have them.

    max_storage_quota : for each directory, the largest allowed sum of the quotas of the tiers below
        the directory or on its file system
    shared_tpool_size : the largest allowed `shared_tpool_size`
    scan_rate : the largest allowed `scan_rate`, and its default
    bandwidth : the largest allowed `bandwidth` of `source_limits`, and its default
    operations : the largest allowed `operations` of `source_limits`, and its default
    """

    quota_bytes: Annotated[dict[TierDirectory, Size], Key("max_storage_quota", "no limit")] = field(
        default_factory=dict
    )
    copy_threads: Annotated[Threads | None, Key("shared_tpool_size", "no limit")] = None
    scan_ops_per_s: Annotated[Operations | None, Key("scan_rate", "no limit")] = None
    bytes_per_s: Annotated[Size | None, Key("bandwidth", "no limit")] = None
    ops_per_s: Annotated[Operations | None, Key("operations", "no limit")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Keys):
    """The keys below `tuning`, which only experts need.

    min_reads : the lower bound of the limit on reads in flight at the sources; the upper bound is
        `shared_tpool_size`
    scan_threads : how many files and directories the scan examines in parallel
    placement : the rule that chooses the tier of a file
    fill_after : the share of a file that programs must have read before it is filled
    handover_size : the largest file that a program reads from the source itself if the file has no
        copy yet; the daemon then makes the copy through the program's descriptor; with `0`, the
        daemon reads all files itself
    direct_io : use `O_DIRECT` to read small files that are filled ahead, to save processor time and
        room in the page cache; the key has no effect if the source does not support `O_DIRECT`, or
        if its reads do not wait for a disk or a server
    promote_mappings : when a copy becomes complete, replace the programs' mappings of the source
        file by mappings of the copy
    balance_ranks : if some ranks miss more often than others, give them more of the threads that
        make copies, see [Ranks of a node](#ranks-of-a-node)
    """

    min_reads: Reads = 4
    scan_threads: Threads = 16
    placement: Literal["first_fit"] = "first_fit"
    fill_after: Share = 0.0
    handover_bytes: Annotated[Size, Key("handover_size")] = 16 * MIB
    direct_io: bool = True
    promote_mappings: bool = True
    balance_ranks: bool = True


@dataclass(frozen=True, slots=True)
class Config(Tuning):
    """A checked configuration.

    file : the absolute path of the file that has the tiers; the daemon's session belongs to this
        file
    files : the files that were read, the site's first
    sources : the datasets, see [`sources`](#sources-the-datasets)
    hierarchy : the tiers, fastest first, see [`hierarchy`](#hierarchy-the-tiers)
    staging : a small area for copies that are dropped after use, see
        [`staging`](#staging-copies-that-come-and-go)
    block_size : copies are divided into blocks of this size, and each block has a checksum; `max`
        means the default
    shared_tpool_size : the largest number of files and blocks that are copied at the same time
    scan : list everything in the background, or only the directories that programs read, see
        [the scan](#the-scan)
    scan_rate : the largest rate of the scan's requests to the sources
    prefetch : which files are copied, and when, see [What is filled](#what-is-filled)
    plan : access plans to follow, see [Access plans](plan.md#following-a-plan)
    metadata : where names and attributes come from: with `cached`, from the scan's results; with
        `source`, from the source each time
    revalidate : the greatest age of the attributes that a program gets for a file; at this
        interval, directories are compared with the source, to find files that processes without the
        library have removed or replaced; with `0`, attributes always come from the source, and
        directories are not compared
    source_limits : limits on the load at the sources, see below
    peers : the address for the other nodes' daemons, see below
    limits : in a site's configuration: limits for its users, see [`limits`](#limits-of-a-site)
    performance : a file that `monarch calibrate -o` has written, with rates to use until the daemon
        has measured its own
    switch_file : Monarch is switched off while this file exists, or while `/etc/monarch/disabled`
        exists
    autostart : the first program under the library that opens a file of a source starts the daemon,
        see [Without a command](autostart.md)
    idle_exit : a daemon that a program has started ends when no program has used it for this long;
        with `0` it does not end
    version : the version of this format
    warnings : one sentence for each value that has no effect, or another effect than the user may
        expect
    """

    GROUPS: ClassVar[Mapping[str, type[Keys]]] = {"tuning": Tuning}
    # The inner mapping in which the original Monarch has its settings.
    WRAPPERS: ClassVar[tuple[str, ...]] = ("data_plane",)
    IGNORED: ClassVar[Mapping[str, str]] = {
        "type": "there is one kind of data plane",
        "type_configs": "copies are always made in the background, by one pool of threads",
        "has_shareable_file_descriptors": "descriptors are always the program's own",
        "storage_sync_timeout": "programs never wait for a tier to be synchronised",
        "rate_limiter": "see source_limits",
        "metadata_container": "epochs and shuffling need no description; to select files,"
        " give a source an 'include'",
        "home_dir": "nothing is written outside the tiers and the runtime directory",
        "debug": "see 'monarch status' and the daemon's log",
        "profiler": "statistics are always kept, see 'monarch status'",
    }

    file: Annotated[Path, DERIVED]
    files: Annotated[tuple[Path, ...], DERIVED] = ()
    sources: Annotated[tuple[SourceConfig, ...], Key(default="required", alone=True)] = ()
    tiers: Annotated[tuple[TierConfig, ...], Key("hierarchy", "required")] = ()
    staging_area: Annotated[
        StagingArea | None, Key("staging", "up to 1 GiB in shared memory, when needed")
    ] = None
    # The checked staging area. None if the configuration has none; the daemon then makes a staging
    # area itself when it needs one.
    staging: Annotated[TierConfig | None, DERIVED] = None
    block_size_bytes: Annotated[BlockSize, Key("block_size")] = DEFAULT_BLOCK_SIZE_BYTES
    # The default is large, because many reads at the same time hide a source's latency. Many
    # threads cost little, because a thread that waits for a source sleeps.
    copy_threads: Annotated[Threads, Key("shared_tpool_size")] = 64
    scan: Literal["full", "lazy"] = "full"
    scan_ops_per_s: Annotated[Operations | None, Key("scan_rate", "no limit")] = None
    prefetch: Literal["auto", "on_demand", "eager", "none"] = "auto"
    plans: Annotated[tuple[PlanFile, ...], Key("plan", alone=True)] = ()
    metadata: Literal["cached", "source"] = "cached"
    revalidate_s: Annotated[Duration, Key("revalidate")] = 300.0
    source_limits: Annotated[SourceLimits, Key(default="no limit")] = SourceLimits()
    peers: Annotated[PeersConfig, Key(default="the address of the host's name")] = PeersConfig()
    limits: Annotated[Limits, Key(default="no limit")] = Limits()
    performance_file: Annotated[AnyFile | None, Key("performance")] = None
    performance: Annotated[Performance, DERIVED] = Performance()  # noqa: RUF009
    # A user's own switch file, in addition to SYSTEM_SWITCH_FILE.
    switch_file: SwitchFile | None = None
    autostart: bool = False
    idle_exit_s: Annotated[Duration, Key("idle_exit")] = 300.0
    version: Literal["1"] = "1"
    warnings: Annotated[tuple[str, ...], DERIVED] = ()

    @property
    def settings(self) -> str:
        """A digest of all settings except the sources. The user is warned if a job's digest differs
        from its daemon's."""
        alike = replace(self, sources=(), files=(), warnings=())
        return hashlib.sha256(repr(alike).encode()).hexdigest()

    @property
    def evicting(self) -> tuple[int, ...]:
        """The numbers of the tiers from which copies may be evicted, to make room for others."""
        return tuple(n for n, tier in enumerate(self.tiers) if tier.eviction == "planned")
