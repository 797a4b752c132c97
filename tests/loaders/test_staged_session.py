"""StagedLoader reads the same bytes with and without the preload library, from the source and from
copies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = """
import json, sys, zlib
from monarch_py.loaders.staged.nopfs import Job
if __name__ == "__main__":
    job = Job(sys.argv[1], 4, 1, seed=1,
              workers=int(sys.argv[3]), multiprocessing_context=sys.argv[2])
    sums = [zlib.crc32(job.get()[0]) for _ in range(job.length())]
    print(json.dumps({"sums": sums, "sources": job.statistics()["sources"]}))
    job.destroy()
"""
CLASSES, EACH = 3, 8


def test_bytes_are_the_same_with_and_without_the_library(
    tmp_path: Path, session_factory: Callable[..., Any]
) -> None:
    root = tmp_path / "source"
    random = np.random.RandomState(5)
    for number in range(CLASSES * EACH):
        file = root / f"c{number % CLASSES}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.bytes(3000 + 100 * number))
    session = session_factory(root).start()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(method: str, workers: int, *, preload: bool) -> Any:
        words = [sys.executable, program, root, method, str(workers)]
        done = session.run(words, preload=preload)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain = run("fork", 2, preload=False)
    cold = run("fork", 2, preload=True)
    session.want_all()
    session.wait_all_present()
    warm = run("spawn", 1, preload=True)
    assert cold["sums"] == warm["sums"] == plain["sums"]
    assert plain["sources"] == {}
    assert len(set(plain["sums"])) == CLASSES * EACH
    assert warm["sources"]["copies"] >= cold["sources"]["copies"] + CLASSES * EACH
