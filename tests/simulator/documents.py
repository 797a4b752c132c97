"""Checks the JSON document of a simulation for consistent values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from monarch_py.simulator.result import PLACES, SCHEMA

# Tolerated relative error of sums of millions of floating-point numbers.
_TOLERANCE = 1e-6


def validate(document: Mapping[str, Any]) -> None:
    """Raises ValueError, with the policy and the field, if a value of the document is wrong."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema: {document.get('schema')!r} is not {SCHEMA}")
    for policy, result in document["policies"].items():
        if "unsupported" not in result:
            _validate_one(policy, result)
    json.dumps(document, allow_nan=False)


def _validate_one(policy: str, result: Mapping[str, Any]) -> None:
    def demand(condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(f"{policy}: {what}")

    total = result["total_seconds"]
    for key in ("total_seconds", "initial_seconds", "stall_seconds"):
        demand(math.isfinite(result[key]) and result[key] >= 0, f"{key} is no time")
    demand(all(seconds >= 0 for seconds in result["epoch_seconds"]), "epoch_seconds falls")
    gap = abs(math.fsum(result["epoch_seconds"]) - total)
    demand(gap <= _TOLERANCE * max(total, 1), "epoch_seconds is not the total")
    for key in ("share", "bytes"):
        demand(tuple(result[key]) == PLACES, f"{key} does not name the places")
        demand(min(result[key].values()) >= 0, f"{key} is negative")
    shares = math.fsum(result["share"].values())
    demand(shares == 0 or abs(shares - 1) <= _TOLERANCE, "share does not add up to 1")
    for key in ("reuse_hit_ratio", "ready_ratio", "imbalanced_iterations"):
        demand(0 <= result[key] <= 1, f"{key} is not from 0 to 1")
