"""From a YAML file to a checked Config.

The tables of _keys.py say what may be written; here is what the parts must be to one another
and to the disk. Whatever cannot work is refused now, before a job starts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monarch_py.config import _disk as disk
from monarch_py.config._keys import DOCUMENT, SETTINGS
from monarch_py.config.performance import load_performance
from monarch_py.config.schema import (
    DEFAULT_BLOCK_SIZE_BYTES,
    DEFAULT_EVICTION,
    MAX_SOURCE_PATH_BYTES,
    MAX_SOURCES,
    MAX_SWITCH_FILE_BYTES,
    MAX_TIER_PATH_BYTES,
    MAX_TIERS,
    Config,
    PeersConfig,
    Performance,
    SourceConfig,
    SourceLimits,
    TierConfig,
)
from monarch_py.document import Section, Spot, load_document, read_mapping
from monarch_py.util.hanging import LIMIT_S, hanging
from monarch_py.util.units import GIB, MIB, TIB, format_size

__all__ = ["load_config"]

# Of a dataset that is not there: making an empty directory would hide that it is not mounted.
SOURCE_MEND = "correct the path; is the file system mounted here?"

# A directory of the configuration with what tells it from others: (spot, path, identity, lineage)
_Place = tuple[Spot, Path, disk.Identity, frozenset[disk.Identity]]


def load_config(path: str | os.PathLike[str], *, with_sources: bool = True) -> Config:
    """Read and check the configuration file at `path`.

    with_sources : False for what needs the tiers alone: a source may be gone, or not answer, and
    its real_path is its path as written

    Raises ConfigError, one sentence of the form ``FILE:LINE: key: what is wrong; the mend``, if
    the file cannot be read or what it asks for cannot work on this machine.
    """
    file = Path(path)
    root, spot = load_document(file, "configuration", "'sources' and 'hierarchy'")
    settings = _settings(read_mapping(root, spot, DOCUMENT))
    sources, tiers = _split(settings)
    staging: list[Section] = [settings["staging"]] if settings["staging"] is not None else []
    looked_at = sources if with_sources else []
    _refuse_hanging([*looked_at, *tiers, *staging])
    source_configs = tuple(_source(section, is_looked_at=with_sources) for section in sources)
    tier_configs = tuple(_tier(section) for section in tiers)
    _warn_of_eviction(settings, tiers)
    staging_config = _staging(settings, len(tiers)) if staging else None
    _check_places(_places(looked_at), _places(tiers), _places(staging))
    return Config(
        file=Path(os.path.abspath(file)),
        sources=source_configs,
        tiers=tier_configs,
        staging=staging_config,
        block_size_bytes=settings["block_size"] or DEFAULT_BLOCK_SIZE_BYTES,
        copy_threads=settings["shared_tpool_size"],
        scan=_scan(settings),
        scan_threads=settings["scan_threads"],
        scan_ops_per_s=settings["scan_rate"],
        placement=settings["placement"],
        prefetch=settings["prefetch"],
        plans=_plans(settings),
        fill_after=settings["fill_after"],
        handover_bytes=settings["handover_size"],
        promote_mappings=settings["promote_mappings"],
        balance_ranks=settings["balance_ranks"],
        metadata=settings["metadata"],
        revalidate_s=settings["revalidate"],
        source_limits=_limits(settings["source_limits"]),
        peers=_peers(settings["peers"]),
        performance=_performance(settings),
        min_reads=_min_reads(settings),
        switch_file=_switch_file(settings),
        warnings=tuple(spot.document.warnings),
    )


def _limits(section: Section | None) -> SourceLimits:
    if section is None:
        return SourceLimits()
    if section["bandwidth"] == 0:
        mend = "write how many bytes a second, or remove it for no limit"
        raise section.spot_of("bandwidth").error("nothing could be read", mend)
    return SourceLimits(bytes_per_s=section["bandwidth"], ops_per_s=section["operations"])


def _peers(section: Section | None) -> PeersConfig:
    if section is None:
        return PeersConfig()
    if "interface" in section and "address" in section:
        raise section.spot_of("address").error("'interface' says it already", "remove one of them")
    return PeersConfig(section["interface"], section["address"], section["port"], section["fetch"])


def _performance(settings: Section) -> Performance:
    file: Path | None = settings["performance"]
    if file is not None and not os.path.isfile(file):
        raise settings.spot_of("performance").error(
            f"{str(file)!r} is not a file", "make it with `monarch calibrate -o`"
        )
    return Performance() if file is None else load_performance(file)


def _scan(settings: Section) -> str:
    scan: str = settings["scan"]
    if scan == "lazy" and settings["prefetch"] == "eager":
        raise settings.spot_of("scan").error(
            "with 'prefetch: eager' everything is filled, and looked at before",
            "remove one of the two",
        )
    return scan


def _plans(settings: Section) -> tuple[Path, ...]:
    plans: list[tuple[Path, Spot]] = settings["plan"] or []
    if plans and settings["prefetch"] == "none":
        raise settings.spot_of("plan").error(
            "with 'prefetch: none' nothing is fetched ahead", "remove one of the two"
        )
    for plan, spot in plans:
        if not os.path.isfile(plan):
            raise spot.error(f"{str(plan)!r} is not a file", "make it with `monarch plan make`")
    return tuple(plan for plan, _ in plans)


def _min_reads(settings: Section) -> int:
    least, most = int(settings["min_reads"]), int(settings["shared_tpool_size"])
    if "min_reads" not in settings:
        return min(least, most)
    if least > most:
        mend = f"write {most} or less, or raise shared_tpool_size"
        raise settings.spot_of("min_reads").error(f"{least} is more than shared_tpool_size", mend)
    return least


def _switch_file(settings: Section) -> Path | None:
    file: Path | None = settings["switch_file"]
    spot = settings.spot_of("switch_file")
    if file is not None:
        _check_length(file, spot, MAX_SWITCH_FILE_BYTES)
    if file is not None and os.path.isdir(file):
        raise spot.error(
            f"{str(file)!r} is a directory, which would switch everything off for good",
            "name a file in it",
        )
    return file


def _settings(document: Section) -> Section:
    """The settings at the top and those below `data_plane`, as one mapping."""
    settings = Section(document.spot, SETTINGS)
    nested: Section | None = document["data_plane"]
    for section in (document, nested) if nested is not None else (document,):
        for name, spot in section.spots.items():
            if name != "data_plane":
                settings.add(name, section[name], spot)
    return settings


def _split(settings: Section) -> tuple[list[Section], list[Section]]:
    """The sections of the sources and of the tiers.

    In configurations of the original the last level of the hierarchy is the dataset itself, which
    shows in that it has no quota.
    """
    settings.require("hierarchy")
    tiers: list[Section] = settings["hierarchy"]
    sources: list[Section] = settings["sources"] or []
    if tiers and "max_storage_quota" not in tiers[-1]:
        if "sources" in settings:
            raise (
                tiers[-1]
                .spot_of("max_storage_quota")
                .error(
                    "is missing, and 'sources' already says where the datasets are",
                    "add a quota if this is a tier, or remove this level",
                )
            )
        sources, tiers = [tiers[-1]], tiers[:-1]
    _check_count(settings, "sources", sources, MAX_SOURCES)
    _check_count(settings, "hierarchy", tiers, MAX_TIERS)
    return sources, tiers


def _check_count(settings: Section, name: str, found: Sequence[Any], most: int) -> None:
    spot = settings.spot_of(name)
    if not found and name == "sources":
        raise spot.error("there is no source", "add the dataset: 'sources: [/the/dataset]'")
    if not found:
        raise spot.error("there is no tier", "add a level with mount_point and max_storage_quota")
    if len(found) > most:
        raise spot.error(f"has {len(found)} entries", f"keep at most {most}")


def _path_of(section: Section) -> tuple[Path, Spot]:
    """Of a source, a tier or the staging area."""
    # Of the table, not of what was written: the staging area's mount point has a default.
    name = "path" if "path" in section.table.keys else "mount_point"
    return section[name], section.spot_of(name)


def _refuse_hanging(sections: Sequence[Section]) -> None:
    """Before anything in this process touches the directories."""
    spots = dict(_path_of(section) for section in sections)
    for path in hanging(list(spots)):
        raise spots[path].error(
            f"{str(path)!r} does not answer within {LIMIT_S:.0f} s",
            "its file system hangs: look at its server, or at the mount",
        )


def _source(section: Section, *, is_looked_at: bool) -> SourceConfig:
    # A level of the original's hierarchy stands for a source, too; it has no choice of files.
    if "mount_point" in section:
        return _source_of_level(section, is_looked_at=is_looked_at)
    path = section["path"]
    real_path = _real_path(section) if is_looked_at else path
    least, most = section["min_size"], section["max_size"]
    if most is not None and least > most:
        raise section.spot_of("min_size").error(
            f"{least} bytes is more than max_size, {most} bytes",
            "exchange the two or remove one",
        )
    return SourceConfig(
        path=path,
        real_path=real_path,
        include=tuple(section["include"]),
        exclude=tuple(section["exclude"]),
        min_size_bytes=least,
        max_size_bytes=most,
    )


def _real_path(section: Section) -> Path:
    path, spot = _path_of(section)
    _check_directory(path, spot, SOURCE_MEND)
    real_path = Path(os.path.realpath(path))
    for name in (path, real_path):
        _check_length(name, spot, MAX_SOURCE_PATH_BYTES)
    return real_path


def _source_of_level(section: Section, *, is_looked_at: bool) -> SourceConfig:
    path = section["mount_point"]
    real_path = _real_path(section) if is_looked_at else path
    if section["persistent"]:
        section.spot_of("persistent").warn("ignored: without a quota this level is the source")
    _warn_of_block_size(section)
    if section["eviction"] != DEFAULT_EVICTION:
        section.spot_of("eviction").warn("ignored: without a quota this level is the source")
    return SourceConfig(path=path, real_path=real_path)


def _tier(section: Section) -> TierConfig:
    section.require("max_storage_quota")
    _check_place_of_tier(section)
    _check_quota(section)
    _warn_of_block_size(section)
    return TierConfig(
        mount_point=section["mount_point"],
        quota_bytes=section["max_storage_quota"],
        kind=_kind(section),
        persistent=section["persistent"],
        eviction=section["eviction"],
    )


def _warn_of_block_size(level: Section) -> None:
    """The original reads with each level's own; our checksums need one for all copies."""
    if level["block_size"] is not None:
        level.spot_of("block_size").warn(
            "ignored: all copies are made in blocks of one size; write block_size at the top"
        )


def _warn_of_eviction(settings: Section, tiers: Sequence[Section]) -> None:
    if not settings["plan"]:
        for section in tiers:
            if section["eviction"] == "planned":
                section.spot_of("eviction").warn("without a 'plan' nothing is evicted")


def _staging(settings: Section, tiers: int) -> TierConfig:
    """The staging area: the last one of the tiers, by its number."""
    section: Section = settings["staging"]
    if tiers >= MAX_TIERS:
        raise settings.spot_of("staging").error(
            f"hierarchy has {tiers} entries, and the area counts as one more",
            f"keep at most {MAX_TIERS - 1} of them or remove 'staging'",
        )
    _check_place_of_tier(section)
    _check_quota(section)
    mount_point = section["mount_point"]
    kind = "ram" if disk.is_in_ram(mount_point) else "ssd"
    return TierConfig(mount_point, section["max_storage_quota"], kind)


def _check_place_of_tier(section: Section) -> None:
    mount_point, spot = section["mount_point"], section.spot_of("mount_point")
    _check_directory(mount_point, spot, "create the directory or correct the path")
    if (kind := disk.kernel_file_system(mount_point)) is not None:
        raise spot.error(
            f"{str(mount_point)!r} is on {kind}, where no copy can be written",
            "choose a directory on a disk or in memory",
        )
    if not disk.is_writable(mount_point):
        raise spot.error(
            f"{str(mount_point)!r} cannot be written to",
            "give yourself the permission or choose another directory",
        )
    _check_length(mount_point, spot, MAX_TIER_PATH_BYTES)


def _check_quota(section: Section) -> None:
    quota, spot = section["max_storage_quota"], section.spot_of("max_storage_quota")
    if quota == 0:
        raise spot.error("0 leaves no room for copies", "give it a size or remove the level")
    try:
        capacity = disk.capacity_bytes(section["mount_point"])
        block = disk.block_bytes(section["mount_point"])
    except OSError as error:
        what = f"the file system of {str(section['mount_point'])!r} says nothing of its size"
        raise section.spot_of("mount_point").error(
            f"{what}: {error.strerror}", "see whether it is mounted and answers"
        ) from error
    if capacity is not None and quota > capacity:
        raise spot.error(
            f"{format_size(quota)} is more than the {format_size(capacity)} of the file system"
            f" of {str(section['mount_point'])!r}",
            f"write at most {_at_most(capacity)}",
        )
    if quota < block:
        spot.warn(
            f"{format_size(quota)} has no room for any copy, which takes {format_size(block)} or"
            " more; give it a larger size"
        )


def _at_most(n_bytes: int) -> str:
    """The largest size that people write without a fraction, and not more than `n_bytes`."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")):
        if n_bytes >= 10 * unit:
            return f"{n_bytes // unit}{name}"
    return str(n_bytes)


def _kind(section: Section) -> str:
    """'ram' or 'ssd', with warnings where what is written is not what the disk says."""
    kind, in_ram = section["type"], disk.is_in_ram(section["mount_point"])
    if kind == "file_system":
        kind = "ram" if in_ram else "ssd"
    elif kind == "ram" and not in_ram:
        section.spot_of("type").warn("is 'ram', but the mount point is not a file system in memory")
    elif kind == "ssd" and in_ram:
        section.spot_of("type").warn(
            "is 'ssd', but the mount point is in memory, whose limit is not watched for this tier"
        )
    # Not an error: such copies do outlive the daemon, which is what many jobs in a row need.
    if section["persistent"] and in_ram:
        section.spot_of("persistent").warn(
            "copies in memory outlive the daemon, but not a restart of the node"
        )
    return str(kind)


def _check_directory(path: Path, spot: Spot, mend: str) -> None:
    try:
        os.stat(path)
    except OSError as error:
        raise spot.error(f"{str(path)!r} cannot be used ({error.strerror})", mend) from None
    if not os.path.isdir(path):
        raise spot.error(f"{str(path)!r} is not a directory", mend)


def _check_length(path: Path, spot: Spot, most: int) -> None:
    """What goes into shared memory has a fixed room there."""
    n_bytes = len(os.fsencode(path))
    if n_bytes > most:
        raise spot.error(f"the path has {n_bytes} bytes", f"choose one of at most {most}")


def _places(sections: Sequence[Section]) -> list[_Place]:
    places = []
    for section in sections:
        path, spot = _path_of(section)
        places.append((spot, path, disk.identity(path), disk.lineage(path)))
    return places


def _check_places(
    sources: Sequence[_Place], tiers: Sequence[_Place], staging: Sequence[_Place]
) -> None:
    """Refuse directories that would hold one another's files. The staging area has a directory of
    its own, also where a tier is."""
    for index, tier in enumerate(tiers):
        for other in tiers[:index]:
            _refuse_same(tier, other, "a tier", "merge the two levels into one")
    for index, source in enumerate(sources):
        for other in sources[:index]:
            _refuse_same(source, other, "a source", "remove one of the two")
            _refuse_inside(source, other, "a source", "keep the outer one and use 'exclude'")
            _refuse_inside(other, source, "a source", "keep the outer one and use 'exclude'")
    for source in sources:
        for tier in (*tiers, *staging):
            mend = "choose a directory apart from it for the tier"
            _refuse_same(tier, source, "a source", mend)
            _refuse_inside(tier, source, "a source", mend)
            _refuse_inside(source, tier, "a tier", mend)


def _refuse_same(place: _Place, other: _Place, what: str, mend: str) -> None:
    if place[2] == other[2]:
        raise place[0].error(f"{str(place[1])!r} is {what} already in line {other[0].line}", mend)


def _refuse_inside(inner: _Place, outer: _Place, what: str, mend: str) -> None:
    if outer[2] in inner[3]:
        raise inner[0].error(
            f"{str(inner[1])!r} is inside {str(outer[1])!r}, {what} in line {outer[0].line}", mend
        )
