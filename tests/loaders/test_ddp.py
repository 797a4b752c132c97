"""Under DDP, ranks with unequal or empty batches compute the gradients of the global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("ddp_ranks.py")
ROOT = Path(__file__).parents[2]
# For each way to deal samples: the sizes of the smallest and the largest batch of a rank.
SIZES = {"equal": (4, 4), "uneven": (3, 4), "solar": (1, 12), "empty": (0, 6)}
# Without --long, the test runs only SHORT steps, some of which have empty batches. It leaves out
# the way `equal`, because `uneven` runs the same code.
SHORT, LEFT_OUT = 8, "equal"


@pytest.mark.parametrize("steps", [SHORT, pytest.param(50, marks=pytest.mark.long)])
def test_gradients_are_those_of_the_whole_batch(steps: int, tmp_path: Path) -> None:
    ways = [way for way in SIZES if steps != SHORT or way != LEFT_OUT]
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "store", str(steps), *ways],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # Each of two nodes holds 80 of the 200 samples in memory. So the ranks read the other 40
    # samples from the source. They also read a few samples that one node holds but that were dealt
    # to the other node.
    assert 40 <= told.pop("share") <= 80
    # The ranks 0 and 2 have one quota, and the ranks 1 and 3 have another. The first rank that
    # checks its inputs sets the quota, and the two ranks with the other quota are refused.
    assert told.pop("disagree") == 2
    assert told.pop("early") == 4
    # One rank calls stat on the 50 files for all ranks, and all 4 ranks raise that rank's error.
    assert (told.pop("asked"), told.pop("missing")) == (50, 4)
    assert list(told) == ways
    for way, found in told.items():
        assert found["norm"] <= 1e-14, way
        assert found["element"] <= 1e-13, way
        least, most = SIZES[way]
        assert least <= found["smallest"] <= found["largest"] <= most, way
        assert (found["smallest"] == 0) == (way == "empty")
        assert (found["smallest"] < found["largest"]) == (way != "equal")
