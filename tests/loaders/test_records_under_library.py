"""RecordDataset and GroupLoader read the same bytes with and without the preload library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.session import Session

h5py = pytest.importorskip("h5py")

# Reads all rows of each dataset several times, and prints a digest each time. First this process
# reads row by row. Then, for each start method in the program's arguments, a child process reads in
# batches. Finally, GroupLoader reads.
PROGRAM = """
import hashlib, multiprocessing, sys
import numpy as np
from monarch_py.loaders.groups.loader import GroupLoader
from monarch_py.loaders.records.dataset import RecordDataset

def digest(arrays):
    return hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest()

def read(dataset, to):
    order = np.random.default_rng(1).permutation(len(dataset))
    to.send(digest(row for batch in np.split(order, 10) for row in dataset.__getitems__(batch)))

if __name__ == "__main__":
    for name in ("plain", "gzip"):
        dataset = RecordDataset(f"{sys.argv[1]}/{name}.h5", dataset="x")
        print(digest(dataset[i] for i in range(len(dataset))))
        for method in sys.argv[2:] if name == "plain" else ():
            context = multiprocessing.get_context(method)
            here, there = context.Pipe()
            child = context.Process(target=read, args=(dataset, there))
            child.start()
            print(here.recv())
            child.join()
        loader = GroupLoader(
            dataset, 30, 70, epochs=0, collate=np.stack, rank=0, world_size=1
        )
        print(digest(loader))
"""


def test_the_same_bytes_cold_and_from_copies(
    tmp_path: Path, session_factory: Callable[..., Session]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    values = np.random.default_rng(2).integers(0, 9, (1000, 500), dtype=np.int32)
    for name, stored in (("plain", {}), ("gzip", {"chunks": (50, 500), "compression": "gzip"})):
        with h5py.File(source / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=values, **stored)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with session_factory(source) as session:
        session.start()
        said = []
        # A spawned process must read the same bytes as a forked one. One run with a spawned process
        # is enough for this.
        for preload, more in ((False, []), (True, []), (True, ["spawn"])):
            done = session.run(["python", script, source, "fork", *more], preload=preload)
            assert (done.returncode, done.stderr) == (0, "")
            said.append(done.stdout.splitlines())
            if preload:
                session.wait_all_present()
        row_by_row, forked, *rest = said[0]
        assert len(rest) == 3
        assert said[1] == said[0]
        assert said[2] == [row_by_row, forked, forked, *rest]
