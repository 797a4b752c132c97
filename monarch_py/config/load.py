"""Reads the layers of a configuration into a checked Config.

This module checks whether the values fit together, and whether the file systems can hold the tiers.
So a configuration that cannot work is refused before a job starts.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from monarch_py.config import _disk as disk
from monarch_py.config.layers import no_dataset, read_layers
from monarch_py.config.limits import within_limits
from monarch_py.config.performance import load_performance
from monarch_py.config.schema import (
    DEFAULT_BLOCK_SIZE_BYTES,
    MAX_SOURCE_PATH_BYTES,
    MAX_SOURCES,
    MAX_SWITCH_FILE_BYTES,
    MAX_TIER_PATH_BYTES,
    MAX_TIERS,
    PACK_INDEX,
    Config,
    TierConfig,
)
from monarch_py.util.hanging import LIMIT_S, hanging
from monarch_py.util.units import GIB, MIB, TIB, format_size
from monarch_py.yaml_files.keys import missing
from monarch_py.yaml_files.nodes import Spot

# The hint for a missing dataset. It does not suggest creating the directory: an empty directory
# would hide that the dataset's file system is not mounted.
SOURCE_HINT = "correct the path; is the file system mounted here?"
TIER_HINT = "create the directory or correct the path"

# The path of a directory or file that the configuration names, and where the path is written.
_Place = tuple[Path, Spot]


def load_config(
    path: str | os.PathLike[str], *, with_sources: bool = True, sources: Sequence[Path] = ()
) -> Config:
    """Reads and checks all layers of a configuration.

    path : the user's file, or the site's file
    with_sources : False if the caller needs only the tiers. Then no source is examined, so sources
        may be missing, and their file systems may hang. Each source's `real_path` is then its
        `path`
    sources : the datasets that the command line names

    Raises ConfigError if a file cannot be read, or if the configuration cannot work on this
    machine. The message is one sentence: ``FILE:LINE: key: what is wrong; the hint``.
    """
    layers = read_layers(Path(path), sources)
    top = layers.top
    config = Config(**layers.given, file=layers.file, files=layers.files)
    if with_sources and layers.lack_sources:
        raise no_dataset(layers.file)
    roots = _check_complete(config, top, with_sources=with_sources)
    levels = [top.of("hierarchy").of(number) for number in range(len(config.tiers))]
    tiers = [
        (t.mount_point, at.of("mount_point")) for t, at in zip(config.tiers, levels, strict=True)
    ]
    staging = []
    if config.staging_area is not None:
        staging = [(config.staging_area.mount_point, top.of("staging").of("mount_point"))]
    looked_at = roots if with_sources else []
    packs = _packs(config, top) if with_sources else []
    _refuse_hanging([*looked_at, *packs, *tiers, *staging])
    _check_packs(packs)
    _check_settings(config, top)
    _check_places(looked_at, tiers, staging)
    config = within_limits(
        replace(
            config,
            sources=tuple(
                replace(source, real_path=_real_path(*place) if with_sources else source.path)
                for source, place in zip(config.sources, roots, strict=True)
            ),
            tiers=tuple(
                _tier(tier, at, config) for tier, at in zip(config.tiers, levels, strict=True)
            ),
            staging=_staging(config, top),
            block_size_bytes=config.block_size_bytes or DEFAULT_BLOCK_SIZE_BYTES,
        ),
        top,
    )
    config = replace(config, min_reads=min(config.min_reads, config.copy_threads))
    if config.performance_file is not None:
        config = replace(config, performance=load_performance(config.performance_file))
    return replace(config, warnings=layers.warnings)


def _check_complete(config: Config, top: Spot, *, with_sources: bool) -> list[_Place]:
    """Checks that the configuration names sources and tiers, but not too many. Returns the path of
    each source, and where the configuration names it."""
    at = top.of("sources")
    if "hierarchy" not in top:
        raise missing(top, Config, "hierarchy")
    if with_sources and not config.sources:
        raise at.error("there is no source", "add the dataset: 'sources: [/the/dataset]'")
    if not config.tiers:
        hint = "add a level with mount_point and max_storage_quota"
        raise top.of("hierarchy").error("there is no tier", hint)
    _check_count(at, config.sources, MAX_SOURCES)
    _check_count(top.of("hierarchy"), config.tiers, MAX_TIERS)
    spots = [at.of(number).of("path") for number in range(len(config.sources))]
    return [(source.path, spot) for source, spot in zip(config.sources, spots, strict=True)]


def _check_count(spot: Spot, found: Sequence[Any], most: int) -> None:
    if len(found) > most:
        raise spot.error(f"has {len(found)} entries", f"keep at most {most}")


def _packs(config: Config, top: Spot) -> list[_Place]:
    spots = [top.of("sources").of(number).of("pack") for number in range(len(config.sources))]
    found = zip(config.sources, spots, strict=True)
    return [(source.pack, spot) for source, spot in found if source.pack is not None]


def _check_packs(packs: Sequence[_Place]) -> None:
    for pack, spot in packs:
        if not os.path.isfile(pack):
            problem = f"{str(pack)!r} is not a file"
            raise spot.error(problem, "make it with `monarch pack DIR -o TAR`, or remove the key")
        if not os.path.isfile(f"{pack}{PACK_INDEX}"):
            problem = f"{str(pack)!r} has no index: {pack.name + PACK_INDEX!r} is not beside it"
            raise spot.error(problem, "make it with `monarch pack DIR -o TAR --index-only`")


def _refuse_hanging(places: Sequence[_Place]) -> None:
    """Raises ConfigError if the file system of one of the `places` hangs. Call this function before
    any other access to these places. Otherwise that access would hang."""
    spots = dict(places)
    for path in hanging(list(spots)):
        raise spots[path].error(
            f"{str(path)!r} does not answer within {LIMIT_S:.0f} s",
            "its file system hangs; check its server and the mount",
        )


def _check_settings(config: Config, top: Spot) -> None:
    """Raises ConfigError if keys contradict each other, or if a file that the configuration names
    is missing or of the wrong kind."""
    for number, source in enumerate(config.sources):
        least, most = source.min_size_bytes, source.max_size_bytes
        if most is not None and least > most:
            at = top.of("sources").of(number).of("min_size")
            problem = f"{least} bytes is more than max_size, {most} bytes"
            raise at.error(problem, "swap the two or remove one")
    if config.scan == "lazy" and config.prefetch == "eager":
        problem = "'prefetch: eager' fills all files and needs a full scan"
        raise top.of("scan").error(problem, "remove one of the two")
    if config.plans and config.prefetch == "none":
        problem = "with 'prefetch: none' the plan would have no effect"
        raise top.of("plan").error(problem, "remove one of the two")
    if "min_reads" in top and config.min_reads > config.copy_threads:
        raise top.of("min_reads").error(
            f"{config.min_reads} is more than shared_tpool_size",
            f"write {config.copy_threads} or less, or raise shared_tpool_size",
        )
    if config.source_limits.bytes_per_s == 0:
        hint = "write a size such as 100MB, or remove the key for no limit"
        raise top.of("source_limits").of("bandwidth").error("0 would stop all reads", hint)
    if config.peers.interface is not None and config.peers.address is not None:
        at = top.of("peers").of("address")
        raise at.error("cannot be given together with 'interface'", "remove one of the two")
    _check_files(config, top)


def _check_files(config: Config, top: Spot) -> None:
    hint = "write a plan.yaml, or make the file with `monarch plan make`"
    needed = [(plan, top.of("plan").of(at), hint) for at, plan in enumerate(config.plans)]
    if config.performance_file is not None:
        hint = "make it with `monarch calibrate -o`"
        needed.append((config.performance_file, top.of("performance"), hint))
    for file, spot, hint in needed:
        if not os.path.isfile(file):
            raise spot.error(f"{str(file)!r} is not a file", hint)
    if config.switch_file is not None:
        spot = top.of("switch_file")
        _check_length(config.switch_file, spot, MAX_SWITCH_FILE_BYTES)
        if os.path.isdir(config.switch_file):
            problem = f"{str(config.switch_file)!r} is a directory, so Monarch would always be"
            raise spot.error(f"{problem} switched off", "name a file in it")


def _real_path(path: Path, spot: Spot) -> Path:
    real_path = Path(os.path.realpath(path))
    for name in (path, real_path):
        _check_length(name, spot, MAX_SOURCE_PATH_BYTES)
    return real_path


def _tier(tier: TierConfig, level: Spot, config: Config) -> TierConfig:
    if "max_storage_quota" not in level:
        raise missing(level, TierConfig, "max_storage_quota")
    _check_area(tier, level)
    if tier.eviction == "planned" and not config.plans:
        level.of("eviction").warn("has no effect without a 'plan'")
    return replace(tier, kind=_kind(tier, level), level_block_bytes=0)


def _staging(config: Config, top: Spot) -> TierConfig | None:
    """Checks and returns the staging area; None if the configuration has none. The staging area
    counts as one of the MAX_TIERS tiers, because it gets the number after the last tier's."""
    area, spot = config.staging_area, top.of("staging")
    if area is None:
        return None
    if len(config.tiers) >= MAX_TIERS:
        raise spot.error(
            f"hierarchy has {len(config.tiers)} tiers, and the staging area counts as one more",
            f"keep at most {MAX_TIERS - 1} tiers or remove 'staging'",
        )
    return _tier(TierConfig(area.mount_point, area.quota_bytes), spot, config)


def _check_area(tier: TierConfig, level: Spot) -> None:
    """Raises ConfigError if no copies can be made in the tier's directory, or if the directory's
    file system is smaller than the tier's quota."""
    mount_point, spot = tier.mount_point, level.of("mount_point")
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
    _check_quota(tier, level)


def _check_quota(tier: TierConfig, level: Spot) -> None:
    quota, spot = tier.quota_bytes, level.of("max_storage_quota")
    if quota == 0:
        raise spot.error("0 leaves no room for copies", "give it a size or remove the level")
    try:
        capacity = disk.capacity_bytes(tier.mount_point)
        block = disk.block_bytes(tier.mount_point)
    except OSError as error:
        raise level.of("mount_point").error(
            f"the size of the file system of {str(tier.mount_point)!r} cannot be read"
            f" ({error.strerror})",
            "check that it is mounted",
        ) from error
    if capacity is not None and quota > capacity:
        raise spot.error(
            f"{format_size(quota)} is more than the {format_size(capacity)} of the file system"
            f" of {str(tier.mount_point)!r}",
            f"write at most {_at_most(capacity)}",
        )
    if quota < block:
        spot.warn(
            f"{format_size(quota)} is too small for any copy, because a copy takes at least"
            f" {format_size(block)}; write a larger size"
        )


def _at_most(n_bytes: int) -> str:
    """Returns `n_bytes` as text, rounded down to a whole number. The unit is the largest of TiB,
    GiB and MiB for which this number is at least 10. Sizes below 10 MiB are in bytes."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")):
        if n_bytes >= 10 * unit:
            return f"{n_bytes // unit}{name}"
    return str(n_bytes)


def _kind(tier: TierConfig, level: Spot) -> str:
    """Returns the tier's kind, 'ram' or 'ssd'. Warns if the keys of the tier do not fit its file
    system."""
    in_ram = disk.is_in_ram(tier.mount_point)
    if tier.kind == "ram" and not in_ram:
        level.of("type").warn("is 'ram', but the mount point is not a file system in memory")
    if tier.kind == "ssd" and in_ram:
        level.of("type").warn(
            "is 'ssd', but the mount point is in memory; Monarch watches the memory limit only for"
            " type 'ram'"
        )
    # A persistent tier in memory only gives a warning, because its copies outlive the daemon and
    # can serve the next job.
    if tier.persistent and in_ram:
        level.of("persistent").warn(
            "copies in memory outlive the daemon, but not a restart of the node"
        )
    found = "ram" if in_ram else "ssd"
    return found if tier.kind == "file_system" else tier.kind


def _check_directory(path: Path, spot: Spot, hint: str) -> None:
    try:
        os.stat(path)
    except OSError as error:
        raise spot.error(f"{str(path)!r} cannot be used ({error.strerror})", hint) from None
    if not os.path.isdir(path):
        raise spot.error(f"{str(path)!r} is not a directory", hint)


def _check_length(path: Path, spot: Spot, most: int) -> None:
    """Raises ConfigError if a path does not fit into its field in shared memory.

    most : the length of the longest path that fits [bytes]
    """
    n_bytes = len(os.fsencode(path))
    if n_bytes > most:
        raise spot.error(f"the path is {n_bytes} bytes long", f"choose one of at most {most}")


def _check_places(
    sources: Sequence[_Place], tiers: Sequence[_Place], staging: Sequence[_Place]
) -> None:
    """Raises ConfigError in three cases: if a path is not a directory; if two tiers have the same
    directory; if a source overlaps with another source, a tier or the staging area. Two directories
    overlap if they are the same, or if one contains the other. A tier and the staging area may have
    the same mount point, because staged copies lie in a directory of their own.

    Call this function before the other checks of a tier. If a user has named a source as a tier,
    those checks would advise the user to make the source writable.
    """
    for path, spot in sources:
        _check_directory(path, spot, SOURCE_HINT)
    for path, spot in (*tiers, *staging):
        _check_directory(path, spot, TIER_HINT)
    for other, tier in combinations(tiers, 2):
        _refuse_same(tier, other, "a tier", "merge the two levels into one")
    for other, source in combinations(sources, 2):
        _refuse_same(source, other, "a source", "remove one of the two")
        _refuse_inside(source, other, "a source", "keep the outer one and use 'exclude'")
        _refuse_inside(other, source, "a source", "keep the outer one and use 'exclude'")
    for source in sources:
        for tier in (*tiers, *staging):
            hint = "choose a tier directory that neither contains the source nor lies in it"
            _refuse_same(tier, source, "a source", hint)
            _refuse_inside(tier, source, "a source", hint)
            _refuse_inside(source, tier, "a tier", hint)


def _refuse_same(place: _Place, other: _Place, what: str, hint: str) -> None:
    if os.path.samefile(place[0], other[0]):
        raise place[1].error(
            f"{str(place[0])!r} is already {what}, in {_where(other[1], place[1])}", hint
        )


def _refuse_inside(inner: _Place, outer: _Place, what: str, hint: str) -> None:
    if disk.is_inside(inner[0], outer[0]):
        raise inner[1].error(
            f"{str(inner[0])!r} is inside {str(outer[0])!r}, {what} in"
            f" {_where(outer[1], inner[1])}",
            hint,
        )


def _where(spot: Spot, seen_from: Spot) -> str:
    """Returns the position `spot` as text, for a message about the position `seen_from`. If both
    are in the same file, the text names only the line. Otherwise the text also names the
    document."""
    is_same = spot.line and spot.document is seen_from.document
    return f"line {spot.line}" if is_same else str(replace(spot, key=""))
