"""The limits of a site, which its users' configurations may not exceed.

Only Monarch's own programs check these limits, so a user can evade them. To enforce limits, a site
must use quotas of the file system and memory cgroups.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from monarch_py.config.layers import ASK
from monarch_py.config.schema import Config
from monarch_py.util.units import format_size
from monarch_py.yaml_files.nodes import Spot


def within_limits(config: Config, top: Spot) -> Config:
    """Checks the quotas, and then returns `lowered(config, top)`. Raises ConfigError if a sum of
    quotas, or a value that a layer sets, exceeds the site's limit."""
    _check_quotas(config, top)
    return lowered(config, top)


def lowered(config: Config, top: Spot) -> Config:
    """Returns `config`, with each default that exceeds the site's limit replaced by the limit.
    Raises ConfigError if a layer sets a value that exceeds the limit. Does not check the quotas."""
    limits, asked = config.limits, config.source_limits
    at = top.of("source_limits")
    threads = _least(top, "shared_tpool_size", config.copy_threads, limits.copy_threads)
    return replace(
        config,
        copy_threads=threads or config.copy_threads,
        scan_ops_per_s=_least(top, "scan_rate", config.scan_ops_per_s, limits.scan_ops_per_s),
        source_limits=replace(
            asked,
            bytes_per_s=_least(at, "bandwidth", asked.bytes_per_s, limits.bytes_per_s, format_size),
            ops_per_s=_least(at, "operations", asked.ops_per_s, limits.ops_per_s),
        ),
    )


def _least(
    at: Spot, key: str, value: int | None, most: int | None, tell: Callable[[int], str] = str
) -> int | None:
    """Returns the value of a key. If a default exceeds the site's limit, returns the limit instead.
    Raises ConfigError if a layer sets a value that exceeds the limit.

    at : the position of the mapping to which the key belongs
    value : the key's value; None for no limit
    most : the site's limit for the key; None if the site sets none
    tell : a function that returns the text of a value, for the error message
    """
    if most is None or (value is not None and value <= most):
        return value
    if key not in at:
        return most
    asked = "no limit" if value is None else tell(value)
    raise at.of(key).error(f"{asked} exceeds the site's limit of {tell(most)}", _hint(tell(most)))


def _hint(most: str) -> str:
    return f"write at most {most.replace(' ', '')}, {ASK}"


def _check_quotas(config: Config, top: Spot) -> None:
    spots = [top.of("hierarchy").of(number) for number in range(len(config.tiers))]
    tiers = list(zip(config.tiers, spots, strict=True))
    if config.staging is not None:
        tiers.append((config.staging, top.of("staging")))
    for directory, most in config.limits.quota_bytes.items():
        taken = 0
        for tier, at in tiers:
            if not _shares(tier.mount_point, directory):
                continue
            taken += tier.quota_bytes
            if taken > most:
                what = "" if taken == tier.quota_bytes else ", together with the tiers before it,"
                left = most - (taken - tier.quota_bytes)
                raise at.of("max_storage_quota").error(
                    f"{format_size(taken)}{what} exceeds the site's limit of {format_size(most)}"
                    f" for {str(directory)!r} and its file system",
                    _hint(format_size(left)) if left > 0 else f"remove this level, {ASK}",
                )


def _shares(mount_point: Path, directory: Path) -> bool:
    """Whether the quota limit of `directory` applies to a tier. The limit applies to tiers below
    the directory and to tiers on the directory's file system. A tier below the directory may be on
    another file system, such as a ZFS dataset."""
    if Path(os.path.realpath(mount_point)).is_relative_to(os.path.realpath(directory)):
        return True
    device = _device(directory)
    return device is not None and _device(mount_point) == device


def _device(directory: Path) -> int | None:
    try:
        return os.stat(directory).st_dev
    except OSError:  # this node has no such directory
        return None
