"""`monarch init`: writes a first configuration for this node."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from monarch_py.config._disk import is_inside
from monarch_py.config.layers import read_layers, site_file
from monarch_py.config.load import load_config
from monarch_py.errors import ConfigError
from monarch_py.storage import memory
from monarch_py.util.hanging import LIMIT_S, hanging
from monarch_py.util.units import GIB, MIB

# The environment variables in which batch systems store the path of a job's directory on the node's
# own storage.
JOB_DIRECTORIES = ("SLURM_TMPDIR", "LOCAL_SCRATCH", "PBS_JOBFS", "TMPDIR")
USUAL = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108
# The types of file systems that can be on a disk of the node.
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay"})
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# The quota of the tier in memory is the free memory divided by MEMORY_PART, because the job needs
# most of the memory. The quota of a tier on a disk is the disk's free space times DISK_PART.
MEMORY_PART, DISK_PART = 4, 0.8
# The smallest quota of a tier [bytes]. A directory with less room does not become a tier.
LEAST_BYTES = 64 * MIB

# Matches an octal escape. In the mount table, the kernel writes blanks and backslashes as such
# escapes.
OCTAL = re.compile(r"\\([0-7]{3})")

FORM = """\
# Monarch's configuration of {node}, made by `monarch init`. All keys: docs/configuration.md.
sources:                          # the datasets, which are only read
{sources}
"""
TIERS = """\
hierarchy:                        # where copies may go, fastest first
{tiers}"""
TIER = """\
- mount_point: {path}
{quota:33} # {room}
"""
SITE = """\
# The tiers for copies are those of the site's configuration: {site}
"""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A directory on this node in which copies can be made.

    kind : the type of the file system that contains the directory
    device : the device number of this file system
    free_bytes : the free space of this file system [bytes]. For a file system in memory, this is at
        most the available memory
    """

    path: Path
    kind: str
    device: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted file system.

    kind : the type of the file system
    source : the mounted device. For a file system without a device, the name that the kernel shows
        in its place
    """

    path: Path
    kind: str
    source: str

    def pool(self, device: int) -> str:
        """Returns a name for the disk space that the file system uses. File systems that share one
        space get the same name. Subvolumes of btrfs share a space, and so do datasets of ZFS,
        although each of them has a device number of its own."""
        if self.kind == "btrfs":
            return self.source
        return self.source.partition("/")[0] if self.kind == "zfs" else str(device)


def _mounts() -> Iterator[_Mount]:
    """Yields the file systems that are mounted on this node."""
    try:
        table = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        if after:
            path = OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
            kind, source = after.split()[:2]
            yield _Mount(Path(path), kind, source)


def _place(path: Path, kind: str) -> LocalPlace | None:
    """Returns the directory `path` as a LocalPlace; None if this user cannot create files in it."""
    try:
        status, system = os.stat(path), os.statvfs(path)
    except OSError:
        return None
    rights = os.R_OK | os.W_OK | os.X_OK
    if not os.path.isdir(path) or not os.access(path, rights, effective_ids=True):
        return None
    return LocalPlace(path, kind, status.st_dev, system.f_bavail * system.f_frsize)


def local_disks(taken: Collection[int], sources: Sequence[Path] = ()) -> list[LocalPlace]:
    """Returns one directory on each local disk. The disk with the most free space comes first. On
    each disk, the function chooses a directory that the batch system names. If there is none, it
    chooses a mount point, and otherwise a directory of USUAL.

    taken : the device numbers of the sources' file systems. The function leaves out the disks of
        these file systems
    sources : the directories of the datasets. The function leaves out each directory that is one of
        them, contains one of them, or lies in one of them
    """
    mounts = {mount.path: mount for mount in _mounts() if mount.kind in LOCAL}
    named = [Path(os.environ[name]) for name in JOB_DIRECTORIES if os.environ.get(name)]
    hung = hanging([*mounts, *named, *USUAL])
    local = {os.stat(path).st_dev: mounts[path] for path in mounts if _answers(path, hung)}
    pools = {device: mount.pool(device) for device, mount in local.items()}
    used = {pools[device] for device in taken if device in pools}
    found: dict[str, LocalPlace] = {}
    for path in (*named, *mounts, *USUAL):
        device = os.stat(path).st_dev if _answers(path, hung) and path != Path("/") else -1
        is_usable = device in local and pools[device] not in used
        if is_usable and not _overlaps(path, sources):
            place = _place(path, local[device].kind)
            if place is not None and place.free_bytes * DISK_PART >= LEAST_BYTES:
                found.setdefault(pools[device], place)
    return sorted(found.values(), key=lambda place: -place.free_bytes)


def _overlaps(path: Path, sources: Sequence[Path]) -> bool:
    """Whether the directory is one of the sources, contains one, or lies in one."""
    pairs = [pair for source in sources for pair in ((path, source), (source, path))]
    return any(os.path.samefile(*pair) or is_inside(*pair) for pair in pairs)


def _answers(path: Path, hung: Sequence[Path]) -> bool:
    """Whether the path is a directory that this user can examine.

    hung : paths in file systems that hang. For these paths, the result is False
    """
    # If this user has no permission to search a parent directory, os.path.isdir returns False, but
    # Path.is_dir would raise an error.
    return path not in hung and os.path.isdir(path)


def shared_memory() -> LocalPlace | None:
    """The node's shared memory as a LocalPlace; None if it has no room for copies."""
    if {mount.path: mount.kind for mount in _mounts()}.get(SHARED_MEMORY) != "tmpfs":
        return None
    place = _place(SHARED_MEMORY, "tmpfs")
    if place is None:
        return None
    room = min(place.free_bytes, memory.available_bytes())
    usable = LocalPlace(place.path, place.kind, place.device, room)
    return usable if room // MEMORY_PART >= LEAST_BYTES else None


def first_configuration(sources: Sequence[Path]) -> str:
    """Returns the text of a configuration for this node. If the site's configuration has tiers, the
    text has no tiers. Raises ConfigError if a source is not a directory, if the node has no room
    for copies, or if a daemon would refuse the configuration, for example because a tier lies in a
    source.

    sources : the directories of the datasets
    """
    for path in hanging(list(sources)):
        raise ConfigError(f"{path}: does not answer within {LIMIT_S:.0f} s; its file system hangs")
    for path in sources:
        if not os.path.isdir(path):
            raise ConfigError(f"{path}: not a directory; name the dataset's directory")
    named = "\n".join(f"- {_quoted(path)}" for path in sources)
    text = FORM.format(node=os.uname().nodename, sources=named)
    site = site_file()
    if site is not None and "tiers" in read_layers(site).given:
        text += SITE.format(site=site)
    else:
        text += TIERS.format(tiers="".join(_tiers(sources)))
    _check(text)
    return text


def _check(text: str) -> None:
    """Raises ConfigError if a configuration with this text would be refused on this node."""
    # Use a file in memory, because there may be no usable directory for temporary files.
    with open(os.memfd_create("configuration"), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}"
        try:
            load_config(name)
        except ConfigError as error:
            # The user does not see the file, so remove its name and line numbers from the message.
            lines = rf"^{name}:\d+: |,? in line \d+"
            problem = re.sub(lines, "", str(error))
            raise ConfigError(f"the configuration would be refused: {problem}") from None


def _tiers(sources: Sequence[Path]) -> list[str]:
    taken = {os.stat(source).st_dev for source in sources}
    # The first call leaves out each tier that overlaps with a source. If no tier remains, the
    # second call returns the overlapping tiers. Then `_check` raises an error that names one of
    # them.
    tiers = _tiers_apart(taken, sources) or _tiers_apart(taken, ())
    if not tiers:
        raise ConfigError(
            "found no room for copies in this node's memory or on its local disks; set TMPDIR to a"
            " directory on a local disk of the node, or write the configuration by hand"
        )
    return tiers


def _tiers_apart(taken: Collection[int], sources: Sequence[Path]) -> list[str]:
    """Returns the tiers in memory and on local disks, as texts for the configuration.

    taken : the device numbers of file systems that must not have a tier
    sources : directories with which no tier may overlap
    """
    tiers = []
    ram = shared_memory()
    if ram is not None and ram.device not in taken and not _overlaps(ram.path, sources):
        tiers.append(_tier(ram, ram.free_bytes // MEMORY_PART, "of memory are free"))
    for disk in local_disks(taken, sources):
        tiers.append(_tier(disk, int(disk.free_bytes * DISK_PART), f"are free, {disk.kind}"))
    return tiers


def _tier(place: LocalPlace, quota: int, note: str) -> str:
    unit, name = (GIB, "GiB") if quota >= 4 * GIB else (MIB, "MiB")
    room = f"{place.free_bytes // unit} {name} {note}"
    written = f"  max_storage_quota: {quota // unit}{name}"
    return TIER.format(path=_quoted(place.path), quota=written, room=room)


def _quoted(path: Path) -> str:
    """Returns the path as a YAML scalar. Doubles each `$`, because a single `$` would begin the
    name of a variable in a configuration."""
    absolute = path.resolve() if ".." in path.parts else path.absolute()
    text = str(absolute).replace("$", "$$")
    return str(yaml.safe_dump(text, width=10_000).splitlines()[0])
