"""The samplers and StagedLoader under Lightning's Trainer, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from loaders.lightning_ranks import EPOCHS, RANKS, sampler_of

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("lightning_ranks.py")
# For each case of a training run, the number of its ranks.
CASES = {"local": RANKS, "solar": RANKS, "staged": RANKS, "alone": 1}

pytestmark = pytest.mark.skipif(
    find_spec("lightning") is None, reason="lightning is not installed: pip install '.[programs]'"
)


# Runs only with --long, because other tests cover the same in every run: test_with_torch.py tests
# DataLoaders and Lightning's change to a sampler, and test_ddp.py tests several ranks.
@pytest.mark.long
def test_trainings_get_the_samplers_batches_and_none_twice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for case, ranks in CASES.items():
        for rank in range(ranks):
            got = json.loads((tmp_path / f"{case}-{rank}.json").read_text())
            sampler = sampler_of(case, rank=rank, world_size=ranks)
            for epoch in range(EPOCHS):
                sampler.set_epoch(epoch)
                assert got[epoch] == list(sampler), (case, rank, epoch)
            assert got[0] != got[1]
    assert "DistributedSampler would deal them to the ranks again" in done.stdout
    assert "use_distributed_sampler=False" in done.stdout
    assert not list(tmp_path.glob("twice-*"))
