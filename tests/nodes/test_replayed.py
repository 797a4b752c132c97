"""Compares a run of real daemons with its simulation. For each place, the number of bytes that come
from it must be about the same in both."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.draws import cases

from benchmarks.common import build
from benchmarks.nodes import testbed
from benchmarks.nodes.prediction import Rates
from benchmarks.nodes.replay import replay
from benchmarks.nodes.testbed import Dataset, Layout
from monarch_py.daemon.nodes.nodes import UNIT
from monarch_py.util.units import MIB

NODES, FILES, SIZE, EPOCHS = 3, 300, 64 << 10, 3
# The size of the staging area [bytes]. Much more data than this passes through the area, so it
# keeps nothing for the next epoch.
AREA = MIB
# The largest allowed difference between the real and the simulated number of bytes that come from
# one place (the source or the peers), as a share of all bytes. There is a difference because nodes
# make second copies in the remaining room, and because some reads do not wait for a copy.
APART = 0.05
# The same limit for a single epoch, as a share of the epoch's bytes. It is larger than APART
# because, on a busy machine, reads that do not wait for a copy are not evenly spread over the
# epochs.
EACH_APART = 0.1


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in shared memory."""
    place = Path(tempfile.mkdtemp(prefix="monarch-test-", dir="/dev/shm"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("replayed")
    return build(Path(testbed.__file__).with_name("reader.c"), place, "-pthread")


# Without --long, test_one_policy.py and test_source_once.py check the case without a plan.
@pytest.mark.parametrize("planned", cases([0, EPOCHS], short=[EPOCHS]), ids=["hash", "plan"])
def test_bytes_come_from_where_the_simulator_says(
    memory: Path, slowsource_binary: Path, reader: Path, planned: int
) -> None:
    """The tiers of all nodes together have room for the dataset, and for hardly more. The source
    and the peers must deliver about as many bytes as the simulator says."""
    dataset = Dataset.make(memory / "backing", FILES, SIZE)
    counted = int(UNIT.rounded(dataset.sizes.astype(np.uint64)).sum())
    tier = int(counted * 1.04 / NODES)
    # The nodes always ask holders. The simulator's nodes do so too, because its policies do not
    # consider how fast peers are.
    settings = {"peers": {"fetch": "holders"}}
    layout = Layout([tier] * NODES, AREA, settings, planned=planned, keep_pages=True, threads=4)
    (memory / "run").mkdir()
    orders = [dataset.shares(NODES, epoch) for epoch in range(EPOCHS)]
    with testbed.Testbed(
        memory / "run", dataset, (slowsource_binary, reader), layout, rate=100 * MIB
    ) as bed:
        bed.await_catalogs()
        found = replay(bed, Rates(source=100 * MIB, link=1e9), orders)
    assert found.apart("source") == pytest.approx(0, abs=APART)
    assert found.apart("peers") == pytest.approx(0, abs=APART)
    if planned:
        # Without the plan, a hash would choose the owner of each file, and two thirds of the bytes
        # would come from peers.
        assert sum(epoch.peers for epoch in found.simulated) / found.bytes < 0.6
        return
    for real, simulated in zip(found.real, found.simulated, strict=True):
        assert real.source == pytest.approx(simulated.source, abs=EACH_APART * dataset.bytes)
        assert real.peers == pytest.approx(simulated.peers, abs=EACH_APART * dataset.bytes)
