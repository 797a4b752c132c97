"""The JSON document of a simulation: its contents, and the refusal of wrong numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from simulator.documents import validate

from monarch_py.simulator.result import Result, to_document

RESULT = Result(
    epoch_seconds=(2.0, 1.0),
    stall_seconds=0.5,
    bytes={"staging": 0, "local": 30, "remote": 10, "pfs": 60},
    reuse_hit_ratio=0.2,
    ready_ratio=0.9,
    imbalanced_iterations=0.0,
)


def document() -> dict[str, Any]:
    made = to_document("mnist", ("One.",), {"nopfs": RESULT, "lbann": "No room."})
    copied: dict[str, Any] = json.loads(json.dumps(made))
    return copied


def test_what_it_says() -> None:
    policies = document()["policies"]
    assert policies["lbann"] == {"unsupported": "No room."}
    assert policies["nopfs"]["total_seconds"] == 3.0
    assert policies["nopfs"]["share"] == {"staging": 0, "local": 0.3, "remote": 0.1, "pfs": 0.6}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"total_seconds": 4.0}, "nopfs: epoch_seconds is not the total"),
        ({"stall_seconds": -1.0}, "nopfs: stall_seconds is no time"),
        ({"epoch_seconds": [4.0, -1.0]}, "nopfs: epoch_seconds falls"),
        ({"share": {"staging": 0, "local": 0, "remote": 0, "pfs": 0.5}}, "does not add up"),
        ({"share": {"pfs": 1.0}}, "share does not name the places"),
        ({"bytes": {"staging": -1, "local": 0, "remote": 0, "pfs": 1}}, "bytes is negative"),
        ({"ready_ratio": 1.5}, "nopfs: ready_ratio is not from 0 to 1"),
    ],
)
def test_wrong_numbers_are_refused(change: dict[str, Any], said: str) -> None:
    made = document()
    made["policies"]["nopfs"].update(change)
    with pytest.raises(ValueError, match=said):
        validate(made)
