"""docs/loaders.md shows short changes to programs, and the changed programs run."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import draws

torch = pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")

PAGE = Path(__file__).parents[2] / "docs" / "loaders.md"
PROGRAM = re.compile(r"<!-- program: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
CHANGE = re.compile(r"<!-- change: (\w+) -->\n```diff\n(.*?)```", re.DOTALL)
MOST_LINES = 6
IMAGES, ROWS, WIDTH = 200, 300, 64
MODULE = """
import os
import numpy as np
import torch


class Images:
    def __init__(self, root):
        self.files = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return torch.from_numpy(np.fromfile(self.files[i], dtype=np.float32)), i % 10
"""


def changed(program: str, change: str) -> str:
    """Applies a change that the page shows as a diff, and returns the new program.

    The diff shows few unchanged lines, so the places of the added lines follow from a convention.
    The first added line goes to the top. If the diff ends with an unchanged line, the last added
    line goes before that line. All other added lines take the place of the first removed line."""
    lines, steps = program.splitlines(), change.splitlines()
    plus = [step[1:] for step in steps if step.startswith("+")]
    minus = [step[1:] for step in steps if step.startswith("-")]
    assert len(plus) + len(minus) <= MOST_LINES, change
    assert all(line in lines for line in minus), change
    if steps[-1].startswith(" "):
        lines.insert(lines.index(steps[-1][1:]), plus.pop())
    at = lines.index(minus[0])
    lines = [line for line in lines if line not in minus]
    return "\n".join([plus[0], *lines[:at], *plus[1:], *lines[at:]]) + "\n"


def programs() -> list[tuple[str, str]]:
    text = PAGE.read_text()
    bases = dict(PROGRAM.findall(text))
    found = [(name, changed(bases[name], change)) for name, change in CHANGE.findall(text)]
    # The changed programs contain nearly all lines of the unchanged programs. So the unchanged
    # programs run only with --long.
    return found + [(name, bases[name]) for name in bases if draws.is_long]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    (root / "images").mkdir()
    random = np.random.default_rng(1)
    for number in range(IMAGES):
        random.random(WIDTH, dtype=np.float32).tofile(root / "images" / f"{number:04d}")
    with h5py.File(root / "rows.h5", "w") as file:
        file["x"] = random.random((ROWS, WIDTH), dtype=np.float32)
    (root / "images.py").write_text(MODULE)
    (root / "tier").mkdir()
    (root / "tiers.yaml").write_text(
        f"sources: [{root / 'images'}]\n"
        f"hierarchy: [{{mount_point: {root / 'tier'}, max_storage_quota: 64MiB}}]\n"
    )
    return root


# Runs each program in a forked process of its own, as if it had been started alone. Before the
# first fork, the parent loads only the modules whose imports take most of a program's start time.
# Prints the exit statuses.
PROGRAMS = """
import gc, os, sys
import h5py, torch
torch.optim.SGD([torch.zeros(1)], lr=1.0)  # imports half of torch
gc.collect()
gc.freeze()  # so that no forked program collects the shared objects at its end
for path, port in zip(sys.argv[1::2], sys.argv[2::2]):
    if not (child := os.fork()):
        os.environ["MASTER_PORT"] = port
        errors = os.open(f"{path}.err", os.O_WRONLY | os.O_CREAT)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        exec(compile(open(path).read(), path, "exec"))
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def outcomes(data: Path) -> list[tuple[int, str]]:
    """Runs the programs. Returns each program's exit status and output."""
    environment = {
        **os.environ,
        "DATASET": str(data / "images"),
        "ROWS": str(data / "rows.h5"),
        "MONARCH_CONFIG": str(data / "tiers.yaml"),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(data), str(PAGE.parents[1])]),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    paths = [data / f"program{number}.py" for number in range(len(programs()))]
    for path, (_, text) in zip(paths, programs(), strict=True):
        path.write_text(text)
    words = [word for path in paths for word in (str(path), str(free_port()))]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=True,
    )
    statuses = map(int, done.stdout.split())
    said = [path.with_name(f"{path.name}.err").read_text() for path in paths]
    return list(zip(statuses, said, strict=True))


@pytest.mark.parametrize("number", range(len(programs())))
def test_the_programs_run(outcomes: list[tuple[int, str]], number: int) -> None:
    status, said = outcomes[number]
    assert status == 0, said
