"""Under DDP, unequal and empty batches give the gradients of the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("ddp_ranks.py")
ROOT = Path(__file__).parents[2]
# Of a rank's batches: the smallest and the largest that each way has.
SIZES = {"equal": (4, 4), "uneven": (3, 4), "solar": (1, 12), "empty": (0, 6)}


@pytest.mark.parametrize("steps", [10, pytest.param(50, marks=pytest.mark.long)])
def test_gradients_are_those_of_the_whole_batch(steps: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "store", str(steps), *SIZES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for way, found in json.loads(done.stdout).items():
        assert found["norm"] <= 1e-14, way
        assert found["element"] <= 1e-13, way
        least, most = SIZES[way]
        assert least <= found["smallest"] <= found["largest"] <= most, way
        assert (found["smallest"] == 0) == (way == "empty")
        assert (found["smallest"] < found["largest"]) == (way != "equal")
