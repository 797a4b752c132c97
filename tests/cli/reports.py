"""Makes reports of made-up runs, with any number of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.commands.record import MOST_GROUPS
from monarch_py.daemon.history import COUNTED

MIB, GIB = 1 << 20, 1 << 30
POINTS = 500


def tier(
    quota: int, *, used: int = 0, files: int = 0, kind: str = "ssd", name: str = "/local"
) -> dict[str, Any]:
    return {
        "mount_point": name,
        "usable": True,
        "quota_bytes": quota,
        "used_bytes": used,
        "files": files,
        "kind": kind,
    }


def made_report(
    *,
    files: int = 1000,
    size: int = 100_000,
    epochs: int = 4,
    share: float = 0.5,
    rate: float = 100e6,
    tier_rate: float = 100e9,
    readers: int = 4,
    waiting: float = 0.0,
    tiers: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Returns the report of a made-up run. Its tiers have room for a share of the files, and the
    rate of its source limits the run.

    size : the size of each file [bytes]
    share : the share of the files that have copies (0 to 1)
    rate, tier_rate : the read rates of the source and of the tiers [bytes/s]
    waiting : how many threads wait for parts of copies, on average
    """
    first = files * size / rate
    later = (1 - share) * first + share * files * size / tier_rate
    length = first + (epochs - 1) * later
    seconds = np.linspace(0, length, POINTS)
    epoch = np.where(seconds < first, seconds / first, 1 + (seconds - first) / later)
    opens = np.minimum(epoch, epochs) * files
    hits = np.maximum(0, opens - files) * share
    counted = dict.fromkeys(COUNTED, np.zeros(POINTS)) | {
        "opens": opens,
        "hits": hits,
        "bytes_from_tier": hits * size,
        "bytes_from_source": (opens - hits) * size,
        "source_bytes_read_by_programs": (opens - hits) * size,
        "wait_seconds": seconds * waiting,
    }
    kept = round(share * files)
    left = {"no_room": files - kept} if kept < files else {}
    source = {
        "path": "/pfs/set",
        "files": files,
        "bytes": files * size,
        "present": kept,
        "present_bytes": kept * size,
        "bypass": left,
        "bypass_bytes": {why: n * size for why, n in left.items()},
    }
    tiers = tiers or [tier(kept * (size + 4096), used=kept * size, files=kept)]
    history = {name: values.round().tolist() for name, values in counted.items()}
    return {
        "schema": 1,
        "version": "0.1.0",
        "uptime_seconds": length,
        "prefetch": "auto",
        "scan": "full",
        "tiers": tiers,
        "staging": None,
        "sources": [source],
        "totals": {name: values[-1] for name, values in history.items()},
        "nodes": None,
        "history": {
            **history,
            "seconds": seconds.tolist(),
            "epoch": [None] * POINTS,
            "readers": [readers] * POINTS,
            "memory_bytes": [16 * GIB] * POINTS,
        },
        "files": _groups(files, size, share, len(tiers)),
        "rooms": [1 << 40] * len(tiers),
        "memory_bytes": 16 * GIB,
        "other_jobs": 0,
        **more,
    }


def _groups(files: int, size: int, share: float, tiers: int) -> dict[str, Any]:
    groups = min(MOST_GROUPS, files)
    starts = np.arange(groups) * files // groups
    counts = np.diff(starts, append=files)
    first = [f"train/n{start // 1300:08}/n{start // 1300:08}_{start}.JPEG" for start in starts]
    copied = (counts * size * share).astype(int).tolist()
    return {
        "source": [0] * groups,
        "first": first,
        "count": counts.tolist(),
        "bytes": (counts * size).tolist(),
        "copied_bytes": [copied] + [[0] * groups] * (tiers - 1),
    }


def write(report: Any, directory: Path) -> Path:
    """Writes a report to a new file in the directory. Returns the file's path."""
    file = directory / f"run{len(list(directory.iterdir()))}.json"
    file.write_text(json.dumps(report))
    return file
