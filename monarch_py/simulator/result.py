"""The results of a simulation: one Result for each policy, and a JSON document of all results.

The JSON (``--json``) is an object::

    {"schema": 1, "scenario": NAME, "assumptions": [...], "policies": {POLICY: {...}, ...}}

For each policy it contains times [s], numbers of bytes, and shares from 0 to 1:

====================== =================================================================
``total_seconds``       the time from the start to the end of the last batch, including the wait for
                        the first fill
``epoch_seconds``       the time of each epoch; the sum is the total (the time before the first
                        batch belongs to the first epoch)
``stall_seconds``       how long a rank waited for samples, as the mean over the ranks. Not
                        included: waits for other ranks at a barrier, and for copies that are made
                        before the first batch
``initial_seconds``     the part of ``total_seconds`` before the first batch
``share``, ``bytes``    how much was read from each place: ``staging``, ``local``, ``remote`` and
                        ``pfs``. Each sample is counted once: for the place from which it was read
                        into the staging buffer or by the rank.
                        ``staging`` is for the samples whose read cost nothing. These are all
                        samples under the policy `perfect`, and each sample whose file the node was
                        already reading for another of its own samples
``reuse_hit_ratio``     the share of the dataset's bytes that an epoch reads from copies of earlier
                        epochs, on any node; the mean over the epochs after the first. It cannot
                        exceed the caches' capacity divided by the dataset's size
``ready_ratio``         the share of samples that were in the node's memory when a rank requested
                        them, including prefetched samples
``imbalanced_iterations`` the share of batches in which the slowest rank took more than 1.1 times
                        as long as the fastest
====================== =================================================================

A policy that cannot run in the scenario has ``{"unsupported": REASON}`` instead.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1
PLACES = ("staging", "local", "remote", "pfs")
# A batch is imbalanced if its slowest rank takes more than IMBALANCE times as long as its fastest
# rank.
IMBALANCE = 1.1


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one policy on a scenario. The fields have the names and meanings of the keys in
    the JSON document, which the module's docstring describes."""

    epoch_seconds: tuple[float, ...]
    stall_seconds: float
    bytes: Mapping[str, int]
    reuse_hit_ratio: float
    ready_ratio: float
    imbalanced_iterations: float
    initial_seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float:
        """The time of the whole run [s]."""
        return math.fsum(self.epoch_seconds)

    @property
    def share(self) -> dict[str, float]:
        """For each place, the share of all bytes that were read from it, from 0 to 1. All shares
        are 0 if nothing was read."""
        total = sum(self.bytes.values())
        return {place: self.bytes[place] / total if total else 0.0 for place in PLACES}

    def to_dict(self) -> dict[str, Any]:
        """Returns the policy's JSON object. If `details` is empty, the object has no such key."""
        sums = {"total_seconds": self.total_seconds, "share": self.share}
        document = {**sums, **asdict(self)}
        if not self.details:
            del document["details"]
        return document


def to_document(
    name: str, assumptions: tuple[str, ...], results: Mapping[str, Result | str]
) -> dict[str, Any]:
    """Returns the JSON document of a comparison. The policies are in the order of `results`.

    name : the scenario's name
    assumptions : the scenario's assumptions
    results : for each policy its result, or the reason why it cannot run in the scenario
    """
    policies = {
        policy: {"unsupported": result} if isinstance(result, str) else result.to_dict()
        for policy, result in results.items()
    }
    return {
        "schema": SCHEMA,
        "scenario": name,
        "assumptions": list(assumptions),
        "policies": policies,
    }
