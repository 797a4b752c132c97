"""Runs ranks on this machine under a real mpiexec, each with its own configuration and tier."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from cluster.rank_server import rank_program
from support.command_line import run_monarch
from support.session import arranged

from monarch_py.errors import SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.native import lib

MIB = 1 << 20
# The time limit of a run of ranks [s], shorter than pytest's own limit.
LIMIT_S = 90
# Runs each rank in a new interpreter. This is slow, so only tests of the processes themselves use
# it. In other tests, rank_server.py forks the ranks.
INTERPRETER = [sys.executable, "-m", "monarch_py"]


def why_no_mpi() -> str | None:
    """Returns a sentence that says what is missing on this machine, or None if ranks can be
    started."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is missing: pip install mpi4py mpich"
    if shutil.which(mpiexec()) is None:
        return "mpiexec is missing: pip install mpich"
    return None


def mpiexec() -> str:
    """Returns the mpiexec of the interpreter's own environment, which mpi4py uses."""
    return str(Path(sys.executable).with_name("mpiexec"))


class Local:
    """Writes `count` configurations, tiers-N.yaml, for one source. When the context is left, ends
    the daemons that serve these configurations.

    settings : keys that all configurations have
    """

    def __init__(self, directory: Path, source: Any, count: int, **settings: Any) -> None:
        self.directory, self.count = directory, count
        self.prefix: list[str] = []  # precedes `monarch` in the command line of every rank
        self.program = rank_program()  # the command line of `monarch` itself
        self.shm = directory / "shm"
        self.shm.mkdir(parents=True)
        self.template = directory / "tiers-{rank}.yaml"
        for rank in range(count):
            (directory / f"tier{rank}").mkdir()
            self.configure(
                rank, sources=[str(source) if isinstance(source, Path) else source], **settings
            )

    def file(self, rank: int) -> Path:
        return self.directory / f"tiers-{rank}.yaml"

    def configure(self, rank: int, **settings: Any) -> None:
        """Adds settings to the configuration file of a rank."""
        tier = {
            "mount_point": str(self.directory / f"tier{rank}"),
            "max_storage_quota": (rank + 1) * MIB,
        }
        document: dict[str, Any] = {"hierarchy": [tier]}
        if self.file(rank).exists():
            document = yaml.safe_load(self.file(rank).read_text())
        self.file(rank).write_text(yaml.safe_dump({**document, **arranged(settings)}))

    def env(self, **more: str) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("MONARCH_", "PMI"))}
        return {**base, "MONARCH_SHM": str(self.shm), **more}

    def monarch(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs `monarch` in one process, without a launcher."""
        return run_monarch([str(word) for word in words], self.env(**env), LIMIT_S)

    def ranks(
        self, *words: str | Path, count: int | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs `monarch` under mpiexec, by default in as many ranks as there are configurations."""
        return self._run(self.command(*words, count=count), env)

    def command(self, *words: str | Path, count: int | None = None) -> list[str | Path]:
        number = str(self.count if count is None else count)
        return [mpiexec(), "-n", number, *self.prefix, *self.program, *words]

    def _run(
        self, command: Sequence[str | Path], env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def start(self) -> None:
        done = self.ranks("start", "-c", self.template)
        assert done.returncode == 0, done.stderr

    def connection(self, rank: int) -> DaemonConnection:
        return DaemonConnection(self.session(self.file(rank)))

    def session(self, file: Path) -> SessionDir:
        raw = os.fsencode(os.path.realpath(file))
        key = f"{lib.monarch_xxh3_of(raw, len(raw)):016x}"
        return SessionDir(self.shm / f"monarch-{os.geteuid()}" / key)

    def daemons(self) -> list[psutil.Process]:
        """Returns all running daemons whose configuration files are below the directory."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if "daemon.lifecycle import main" in words and f"{self.directory}/" in words:
                    found.append(process)
        return found

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in range(self.count):
            with suppress(SessionError):
                self.connection(rank).ask("stop")
        left = psutil.wait_procs(self.daemons(), timeout=20)[1]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=20)


@pytest.fixture
def local_factory(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    """Makes `Local` objects: local_factory(source, count, **settings)."""
    if missing := why_no_mpi():
        pytest.skip(missing)
    with ExitStack() as stack:

        def make(source: Any, count: int, **settings: Any) -> Local:
            return stack.enter_context(Local(tmp_path / "nodes", source, count, **settings))

        yield make


@pytest.fixture(scope="session", autouse=True)
def no_memory_of_killed_ranks() -> Iterator[None]:
    """Removes the segments of shared memory that no process maps any more. MPICH leaves segments
    behind when ranks are killed."""
    yield
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped += maps.read_text()
    for segment in Path("/dev/shm").glob("mpich_shm_*"):
        with suppress(OSError):  # the segment is another user's
            # A job that is just starting may not have mapped its segment yet.
            if segment.name not in mapped and time.time() - segment.stat().st_mtime > 10:
                segment.unlink()
