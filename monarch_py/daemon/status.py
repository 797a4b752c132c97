"""The answer to `status`: one versioned schema, documented in docs/status.md."""

import os
import time
from collections.abc import Mapping
from typing import Any

from monarch_py import __version__
from monarch_py.daemon.copies.readahead import ReadAhead
from monarch_py.daemon.copies.staging import Staging
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.nodes.placement import Nodes
from monarch_py.daemon.nodes.routes import RouteChooser
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.daemon.segments import Shared
from monarch_py.native import Kind, Reason, State
from monarch_py.storage.tiers import Tier

__all__ = ["SCHEMA_VERSION", "status"]

SCHEMA_VERSION = 1


def _tier(tier: Tier | None, mount_point: str, quota: int, why: str) -> dict[str, Any]:
    if tier is None:
        return {
            "mount_point": mount_point,
            "usable": False,
            "why": why,
            "lost": "",
            "quota_bytes": quota,
            "used_bytes": 0,
            "files": 0,
        }
    room = tier.room()
    failed = (
        f"tier {mount_point} goes unused: its file system returned an error;"
        " repair it, then monarch stop and start"
    )
    return {
        "mount_point": mount_point,
        "copies": str(tier.copies),
        "kind": tier.config.kind,
        "persistent": tier.config.persistent,
        "usable": tier.usable,
        "why": "" if tier.usable else tier.gone or failed,
        "lost": tier.lost,
        "quota_bytes": quota,
        "used_bytes": tier.used_bytes,
        "free_bytes": room.free_bytes,
        "files": tier.files,
    }


def _counts(evicted: Mapping[int, int], scanner: Scanner, number: int) -> dict[str, int]:
    foreign = len(scanner.foreign.get(number, ()))
    return {"evicted": evicted.get(number, 0), "foreign": foreign}


def _staging(staging: Staging, readahead: ReadAhead) -> dict[str, Any] | None:
    tier = staging.tier
    if tier is None:
        return None
    config = tier.config
    return {
        **_tier(tier, str(config.mount_point), config.quota_bytes, ""),
        "staged": staging.staged,
        "dropped": staging.dropped,
        "read_ahead": readahead.files,
    }


def _source(scanner: Scanner, shared: Shared, number: int) -> dict[str, Any]:
    source = scanner.sources[number]
    counts = shared.catalog.counts(number, Kind.FILE)
    by_state: dict[State, int] = dict.fromkeys(State, 0)
    bypass: dict[str, int] = {}
    bypass_bytes: dict[str, int] = {}
    present_bytes = 0
    for (state, reason), (files, size) in counts.items():
        by_state[State(state)] += files
        if state == State.BYPASS:
            bypass[Reason(reason).name.lower()] = files
            bypass_bytes[Reason(reason).name.lower()] = size
        elif state == State.PRESENT:
            present_bytes += size
    return {
        "path": str(source.config.path),
        "scanned": source.scanned,
        "scan_seconds": round(source.scan_seconds, 3),
        "scan_errors": source.errors,
        "files": sum(files for files, _ in counts.values()),
        "bytes": sum(size for _, size in counts.values()),
        "present": by_state[State.PRESENT],
        "present_bytes": present_bytes,
        "filling": by_state[State.FILLING],
        "wanted": by_state[State.WANTED],
        "absent": by_state[State.ABSENT],
        "bypass": bypass,
        "bypass_bytes": bypass_bytes,
    }


def _nodes(nodes: Nodes, places: RouteChooser | None) -> dict[str, Any]:
    return {**nodes.status(), "source_chosen": places.chosen if places else 0}


def status(
    filler: Filler,
    told: dict[str, Any],
    tiers: list[tuple[str, int, Tier | None, str]],
    evicted: Mapping[int, int],
    started: float,
) -> dict[str, Any]:
    """The answer to `status`.

    told : `plans`, `ranks` and `ahead`, as their own modules tell them
    tiers : the configured ones: (mount point, quota [bytes], the tier or None, why it goes unused)
    evicted : how many copies each tier has evicted, by its number
    """
    shared, scanner = filler.shared, filler.scanner
    counted = shared.totals()
    totals: dict[str, Any] = {
        "wait_seconds": round(counted.pop("wait_ns") / 1e9, 6),
        **counted,
        "bytes_from_peers": filler.engine.bytes_from_peers,
        "fills": filler.copies.fills,
        "filled_bytes": filler.copies.filled_bytes,
        "fill_failures": filler.failures,
        "source_bytes_read_by_fills": filler.engine.bytes_from_source,
    }
    return {
        "schema": SCHEMA_VERSION,
        "version": __version__,
        "pid": os.getpid(),
        "uptime_seconds": round(time.monotonic() - started, 3),
        "scanned": scanner.scanned,
        "switched_off": bool(shared.control.off),
        "prefetch": scanner.config.prefetch,
        "scan": scanner.config.scan,
        "pending": filler.pending,
        "dropping": filler.copies.dropping,
        "catalog_entries": len(shared.catalog),
        "catalog_full": scanner.full,
        "tiers": [
            {
                **_tier(tier, m, q, why),
                **(_counts(evicted, scanner, number) if tier else {}),
            }
            for number, (m, q, tier, why) in enumerate(tiers)
        ],
        "staging": _staging(filler.staging, filler.readahead),
        **told,
        "sources": [_source(scanner, shared, i) for i in range(len(scanner.sources))],
        "totals": totals,
        "nodes": _nodes(filler.nodes, filler.routes) if filler.nodes else None,
    }
