"""A session with the configuration of a cluster's administrator. Several jobs share its daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.command_line import run_monarch
from support.session import Session, wait_until

KIB = 1024
READ = "import sys; print(sum(len(open(p, 'rb').read()) for p in sys.argv[1:]))"


def is_running(pid: int) -> bool:
    """Whether a process runs. A zombie counts as ended, because the process that has started a
    detached daemon does not wait for it. But while other threads of a killed process still end, its
    locks are held."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False
    return state != "Z" or threads > 1


def make_datasets(root: Path) -> list[Path]:
    datasets = [root / "one", root / "two"]
    for at, dataset in enumerate(datasets):
        dataset.mkdir()
        for name in "abcdef":
            (dataset / name).write_bytes(bytes([at]) * 40 * KIB)
    return datasets


class SiteSession(Session):
    """A session with the configuration of a cluster's administrator, which names no dataset.

    datasets : directories that make_datasets has made; by default new ones
    """

    def __init__(self, root: Path, datasets: list[Path] | None = None, **tier: object) -> None:
        self.datasets = datasets or make_datasets(root)
        mount = root / "tier0"
        mount.mkdir()
        tiers = [{"mount_point": mount, "max_storage_quota": "64MiB", **tier}]
        super().__init__(root, self.datasets[0], tiers=tiers)
        site = root / "site.yaml"
        lines = self.config.read_text().splitlines(keepends=True)
        site.write_text("".join(lines[: lines.index("sources:\n")]))
        self.config.unlink()
        self.config = site

    def env(self, preload: bool = True, **more: str) -> dict[str, str]:
        found = {**super().env(preload), "MONARCH_SITE_CONFIG": str(self.config)}
        found.pop("MONARCH_CONFIG", None)
        return {**found, **more}

    def of(self, number: int) -> dict[str, str]:
        return {"MONARCH_SOURCE": str(self.datasets[number])}

    def files(self, number: int) -> list[str]:
        return sorted(map(str, self.datasets[number].iterdir()))

    def command_line(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_monarch(words, self.env(preload=False, **environment))

    def stop_all(self) -> None:
        if self.connection.runs():
            pid = int(self.connection.ask("where")["pid"])
            self.connection.ask("stop")
            wait_until(lambda: not is_running(pid), what="the daemon's end")


def present(site: Session) -> dict[str, int]:
    return {Path(each["path"]).name: each["present"] for each in site.status()["sources"]}


def hits(site: SiteSession, number: int, **environment: str) -> int:
    """Reads all files of a dataset in a new process. Returns how many of that process's opens were
    served from copies."""
    before = int(site.totals()["hits"])
    said = site.python(READ, *site.files(number), env=environment)
    assert said == f"{6 * 40 * KIB}\n"
    found: int = site.totals()["hits"] - before
    return found


@contextmanager
def under_run(site: SiteSession, script: str = "", **environment: str) -> Iterator[None]:
    """Runs a shell under `monarch run` for the duration of a `with` statement. The shell first runs
    `script`, which by default reads a file of the first dataset. Then the shell writes a line
    `reads`, and the body of the `with` statement begins."""
    script = f"{script or 'cat $MONARCH_SOURCE/a >/dev/null'}; echo reads >&2; read line"
    with subprocess.Popen(
        [sys.executable, "-m", "monarch_py", "run", "-q", "--", "bash", "-c", script],
        env={**site.env(preload=False), **site.of(0), **environment},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            assert run.stderr is not None
            while line := run.stderr.readline():
                if line == "reads\n":
                    break
            yield
            run.communicate("\n", timeout=60)
        finally:
            run.kill()
    assert run.returncode == 0
