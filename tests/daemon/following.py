"""Writes the plans of training runs, and starts training runs that read their dataset with
DataLoaders."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.files import Files
from support.session import Session

from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler

# Marks a test whose training run uses torch. The test is skipped if torch is not installed.
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed: pip install '.[torch]'"
)
TRAIN = Path(__file__).parent / "programs" / "train_planned.py"


def plan_of(
    files: Files,
    root: Path,
    to: Path,
    *,
    epochs: int = 3,
    seed: int = 11,
    ranks: int = 1,
    batch: int = 8,
    workers: int | None = 2,
    prefetch_factor: int = 2,
    nodes: int = 1,
    names: list[str] | None = None,
) -> Path:
    """Writes the plan of a training run on all files, sorted by name, or only on the files in
    `names`. Returns the path of the plan.

    root : directory in which the training run opens the files"""
    names = names or sorted(files.digests)
    sizes = [files.path(name).stat().st_size for name in names]
    index = Index.of("files", root, names, sizes)
    loader = Loader(
        DistributedSampler(len(names), ranks, seed),
        ranks,
        batch,
        workers=workers,
        prefetch_factor=prefetch_factor,
    )
    Plan((index,), (PlanPart("training", 0, loader),), epochs, nodes).save(to)
    return to


def train(
    session: Session,
    root: Path,
    *,
    preload: bool = True,
    timeout: float = 120,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Runs programs/train_planned.py. Returns what the program prints for each epoch: the epoch's
    number, a digest of all content, and how long the epoch took [s]."""
    words = [sys.executable, str(TRAIN), str(root), json.dumps(settings)]
    done = session.run(words, preload=preload, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
