"""Computes the answer to the command `status`, whose schema is documented in docs/status.md."""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_py import __version__
from monarch_py.config.schema import TierConfig
from monarch_py.daemon.copies.readahead import ReadAhead
from monarch_py.daemon.copies.staging import Staging
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.native import Reason, State
from monarch_py.storage.tiers import Tier
from monarch_py.util.threads import failures

SCHEMA_VERSION = 1
# The programs' counters that `status` leaves out, because only the daemon uses them, or because
# `status` reports them in another unit.
NOT_TOLD = ("wait_ns", "source_opens", "source_open_ns")

Counts = Mapping[tuple[int, int], tuple[int, int]]


def _tier(config: TierConfig, tier: Tier | None, why: str) -> dict[str, Any]:
    mount_point = str(config.mount_point)
    if tier is None:
        return {
            "mount_point": mount_point,
            "usable": False,
            "why": why,
            "lost": "",
            "quota_bytes": config.quota_bytes,
            "used_bytes": 0,
            "files": 0,
        }
    failed = (
        f"tier {mount_point} goes unused: its file system returned an error;"
        " repair the file system, then run `monarch stop` and `monarch start`"
    )
    return {
        "mount_point": mount_point,
        "copies": str(tier.copies),
        "kind": config.kind,
        "persistent": config.persistent,
        "usable": tier.usable,
        "why": "" if tier.usable else tier.gone or failed,
        "lost": tier.lost,
        "unrecorded": tier.unrecorded,
        "quota_bytes": config.quota_bytes,
        "used_bytes": tier.used_bytes,
        "free_bytes": tier.room().free_bytes,
        "shortage": tier.shortage(),
        "files": tier.files,
    }


def _counts(evicted: Mapping[int, int], scanner: Scanner, number: int) -> dict[str, int]:
    foreign = len(scanner.foreign.get(number, ()))
    return {"evicted": evicted.get(number, 0), "foreign": foreign}


def _staging(staging: Staging, readahead: ReadAhead) -> dict[str, Any] | None:
    tier = staging.tier
    if tier is None:
        return None
    return {
        **_tier(tier.config, tier, ""),
        "staged": staging.staged,
        "dropped": staging.dropped,
        "read_ahead": readahead.files,
    }


def _source(scanner: Scanner, number: int, counts: Counts) -> dict[str, Any]:
    """Returns the status of one source.

    counts : maps each (state, reason) to (number of the source's files, their total size [bytes])
    """
    source = scanner.sources[number]
    in_state: Counter[int] = Counter()
    bytes_in: Counter[int] = Counter()
    for (state, _), (files, size) in counts.items():
        in_state[state] += files
        bytes_in[state] += size
    bypass = {
        Reason(why).name.lower(): n for (state, why), n in counts.items() if state == State.BYPASS
    }
    return {
        "path": str(source.config.path),
        "scanned": source.scanned,
        "scan_seconds": round(source.scan_seconds, 3),
        "scan_errors": source.errors,
        "scan_error": source.error,
        "files": in_state.total(),
        "bytes": bytes_in.total(),
        "present": in_state[State.PRESENT],
        "present_bytes": bytes_in[State.PRESENT],
        "filling": in_state[State.FILLING],
        "wanted": in_state[State.WANTED],
        "absent": in_state[State.ABSENT],
        "bypass": {why: files for why, (files, _) in bypass.items()},
        "bypass_bytes": {why: size for why, (_, size) in bypass.items()},
    }


def totals(filler: Filler) -> dict[str, Any]:
    """Returns the counters of all programs and of the daemon, each as a total since the daemon's
    start."""
    counted = filler.shared.totals()
    return {
        **{name: count for name, count in counted.items() if name not in NOT_TOLD},
        "wait_seconds": round(counted["wait_ns"] / 1e9, 6),
        "bytes_from_peers": filler.engine.bytes_from_peers,
        "fills": filler.copies.fills,
        "filled_bytes": filler.copies.filled_bytes,
        "fill_failures": filler.failed.count,
        "source_bytes_read_by_fills": filler.engine.bytes_from_source,
    }


def status(
    filler: Filler,
    told: dict[str, Any],
    why: Sequence[str],
    evicted: Mapping[int, int],
    started: float,
) -> dict[str, Any]:
    """Returns the answer to `status`.

    told : the answer's fields `plans`, `ranks` and `ahead`, which other modules have computed
    why : for each configured tier, why it is not used; "" if it is used
    evicted : the number of copies that each tier has evicted, by tier number
    """
    shared, scanner, nodes, routes = filler.shared, filler.scanner, filler.nodes, filler.routes
    tiers = zip(scanner.config.tiers, filler.tiers, why, strict=False)
    return {
        "schema": SCHEMA_VERSION,
        "version": __version__,
        "pid": os.getpid(),
        "uptime_seconds": round(time.monotonic() - started, 3),
        "scanned": scanner.scanned,
        "switched_off": bool(shared.control.off),
        "prefetch": scanner.config.prefetch,
        "scan": scanner.config.scan,
        "thread_failures": failures(),
        "pending": filler.pending,
        "dropping": filler.copies.dropping,
        "catalog_entries": len(shared.catalog),
        "catalog_full": scanner.full,
        "tiers": [
            {**_tier(*each), **(_counts(evicted, scanner, number) if each[1] else {})}
            for number, each in enumerate(tiers)
        ],
        "staging": _staging(filler.staging, filler.readahead),
        **told,
        "sources": [
            _source(scanner, number, counts)
            for number, counts in enumerate(shared.catalog.counts()[: len(scanner.sources)])
        ],
        "totals": totals(filler),
        "nodes": {**nodes.status(), "source_chosen": routes.chosen} if nodes and routes else None,
    }
