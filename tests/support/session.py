"""A daemon with a configuration of the test's own, and programs with and without the library.

Everything lies below one directory, including shared memory, so that a test does not interfere with
other tests or with a daemon of the user. Leaving the context ends the daemon.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml

from monarch_py.config.schema import Tuning
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.native import LIBRARY
from monarch_py.yaml_files.keys import declared
from support.command_line import run_monarch
from support.forking import Process, fork_monarch

T = TypeVar("T")
MIB = 1 << 20
# The pauses of `wait_until` grow from the first of these times to the second [s].
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.03
# For tests that read a file while it is being filled: each file larger than a unit is filled unit
# by unit. Without this setting, only files larger than the default `handover_size` are filled in
# this way.
IN_UNITS: dict[str, Any] = {"handover_size": "256KiB"}


def arranged(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys as a configuration has them: keys for experts are nested below `tuning`."""
    tuning = {name: value for name, value in settings.items() if name in declared(Tuning)}
    others = {name: value for name, value in settings.items() if name not in tuning}
    return {**others, "tuning": tuning} if tuning else others


def imports_packages(script: str) -> bool:
    """Returns whether a script imports modules from outside the standard library. A script that
    imports none is run with -S, because the interpreter then starts in a third of the time."""
    found = set()
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return any(name.partition(".")[0] not in sys.stdlib_module_names for name in found)


def wait_until(
    condition: Callable[[], T | None],
    *,
    timeout: float = 30.0,
    what: str = "the condition",
    every: float | None = None,
) -> T:
    """Polls until the condition is true, and returns its result. Raises AssertionError after
    `timeout`.

    every : pause between two polls [s]. Without `every`, the pauses grow, because most conditions
    soon become true and each status of a daemon takes a millisecond of CPU
    """
    limit = time.monotonic() + timeout
    pause = SHORTEST_PAUSE_S if every is None else every
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > limit:
            raise AssertionError(f"waited {timeout:.0f} s for {what}, but it did not happen")
        time.sleep(pause)
        if every is None:
            pause = min(1.2 * pause, LONGEST_PAUSE_S)


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspends a process. When the block begins, all threads of the process have stopped. Before
    that, a thread of a FUSE process could still take a request. Nobody can kill a process that
    waits for the answer to such a request."""
    tasks = Path(f"/proc/{pid}/task")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: all(
                (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
                for task in tasks.iterdir()
            ),
            what="the stop of all threads",
        )
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Session:
    """One configuration with its daemon.

    tiers : as in the configuration's `hierarchy`; by default, one tier of 256 MiB below `directory`
    settings : other keys. Unless a test sets `prefetch`, it is `on_demand`: with `auto`, the daemon
        would open further files at unpredictable times, which would disturb the tests that count
        opens
    """

    def __init__(
        self,
        directory: Path,
        source: Path | Sequence[Any],
        *,
        tiers: Sequence[Mapping[str, Any]] | None = None,
        preload: Path | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.shm = directory / "shm"
        self.shm.mkdir(exist_ok=True)
        sources = [source] if isinstance(source, Path) else list(source)
        self.source = Path(sources[0]["path"] if isinstance(sources[0], Mapping) else sources[0])
        if tiers is None:
            mount = directory / "tier0"
            mount.mkdir(exist_ok=True)
            tiers = [{"mount_point": str(mount), "max_storage_quota": 256 * MIB}]
        document = {
            "sources": [str(s) if isinstance(s, Path) else dict(s) for s in sources],
            "hierarchy": [{k: self._plain(v) for k, v in tier.items()} for tier in tiers],
            "prefetch": "on_demand",
            **arranged(settings),
        }
        self.tiers = [Path(tier["mount_point"]) for tier in document["hierarchy"]]
        self.persistent = [bool(tier.get("persistent")) for tier in document["hierarchy"]]
        area = document.get("staging") or {}
        self.staging = [Path(area["mount_point"])] if "mount_point" in area else []
        self.config = directory / "tiers.yaml"
        self.config.write_text(yaml.safe_dump(document))
        self.preload = preload or LIBRARY
        self.daemon: Process | None = None
        self.log = directory / "daemon.log"

    @staticmethod
    def _plain(value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    # --- the daemon ---------------------------------------------------------------------------

    def env(self, preload: bool = True, **more: str) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_")}
        # The readline module, which pytest's workers import, sets COLUMNS and LINES.
        for name in ("LD_PRELOAD", "COLUMNS", "LINES"):
            base.pop(name, None)
        base["MONARCH_SHM"] = str(self.shm)
        if preload:
            base["LD_PRELOAD"] = str(self.preload)
            base["MONARCH_CONFIG"] = str(self.config)
        return {**base, **more}

    @property
    def paths(self) -> SessionDir:
        old = os.environ.get("MONARCH_SHM")
        os.environ["MONARCH_SHM"] = str(self.shm)
        try:
            return SessionDir.of(self.config)
        finally:
            if old is None:
                del os.environ["MONARCH_SHM"]
            else:
                os.environ["MONARCH_SHM"] = old

    @property
    def connection(self) -> DaemonConnection:
        return DaemonConnection(self.paths)

    def start(self, *, wait: bool = True, prefix: Sequence[str] = ()) -> Session:
        """Runs `monarch serve`.

        wait : whether to wait until the daemon serves. If not, the daemon is started as a new
            program instead of being forked, because the test examines the start
        prefix : words before the command, for example to run it in a cgroup or namespace
        """
        self.daemon = self.spawn(prefix) if prefix or not wait else self.fork()
        if wait:
            self.wait_up()
        return self

    def fork(self) -> Process:
        with self.log.open("ab") as log:
            environment = self.env(preload=False)
            words = self.command("serve")[3:]
            forked = fork_monarch(words, environment, log.fileno(), log.fileno())
        return forked or self.spawn()

    def spawn(self, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Starts `monarch serve` in a new process, which the caller must end. The process writes to
        the log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*prefix, *self.command("serve")],
                env=self.env(preload=False),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_up(self) -> None:
        wait_until(self._is_up, what="the daemon's start")

    def _is_up(self) -> bool:
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            raise AssertionError(f"the daemon ended: {self.log.read_text(errors='replace')}")
        return self.connection.serves() and self.connection.runs()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "monarch_py", words[0], "-c", str(self.config), *words[1:]]

    def monarch(
        self, *words: str, timeout: float = 60, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of the command line with this configuration."""
        words = (words[0], "-c", str(self.config), *words[1:])
        return run_monarch(words, self.env(preload=False, **(environment or {})), timeout)

    def stop(self) -> None:
        """Stops the daemon properly."""
        daemon = self.daemon
        if daemon is None or daemon.poll() is not None:
            self._reap()
            return
        daemon.send_signal(signal.SIGCONT)
        daemon.terminate()
        self._reap()
        assert daemon.returncode == 0, f"the daemon ended with status {daemon.returncode}"

    def kill(self) -> None:
        """Kills the daemon with SIGKILL."""
        if self.daemon is not None:
            self.daemon.kill()
        self._reap()

    def _reap(self) -> None:
        if self.daemon is not None:
            try:
                self.daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
                raise
            self.daemon = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.stop()
        if kind is None:
            text = self.log.read_text(errors="replace") if self.log.exists() else ""
            assert "Traceback" not in text, text

    # --- status -----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.connection.ask("status")
        return answer

    def totals(self) -> dict[str, Any]:
        totals: dict[str, Any] = self.status()["totals"]
        return totals

    def wait_scanned(self, timeout: float = 60) -> None:
        wait_until(lambda: self.status()["scanned"], timeout=timeout, what="the scan")

    def wait_idle(self, timeout: float = 60) -> dict[str, Any]:
        """Waits until all requested files are filled. Returns the status at that time."""

        def idle() -> dict[str, Any] | None:
            status = self.status()
            quiet = status["scanned"] and not status["pending"]
            return status if quiet or self._only_young(status) else None

        return wait_until(idle, timeout=timeout, what="the end of all fills")

    @staticmethod
    def _only_young(status: dict[str, Any]) -> bool:
        return bool(status["scanned"]) and not sum(
            source["wanted"] + source["filling"] for source in status["sources"]
        )

    def want_all(self) -> None:
        """Opens every file once under the library, so that all are filled."""
        script = (
            "import os,sys\n"
            "for d, _, fs in os.walk(sys.argv[1]):\n"
            "    for f in fs:\n"
            "        try: os.close(os.open(os.path.join(d, f), os.O_RDONLY | os.O_NONBLOCK))\n"
            "        except OSError: pass\n"
        )
        roots = [source["path"] for source in self.status()["sources"]]
        for root in roots:
            self.run([sys.executable, "-I", "-S", "-c", script, root], check=True)

    def wait_all_present(self, timeout: float = 60) -> dict[str, Any]:
        """Waits for the scan, opens every file, and waits until each file has a copy or a reason
        for having none. Returns the status at that time. Files that found no room also have a
        reason, but the daemon retries them a moment later."""
        self.wait_scanned(timeout)
        self.want_all()

        def present() -> dict[str, Any] | None:
            status = self.status()
            is_settled = all(
                s["present"] + sum(s["bypass"].values()) == s["files"] for s in status["sources"]
            )
            return status if is_settled else None

        return wait_until(present, timeout=timeout, what="copies of all files")

    def forget(self) -> None:
        """Drops all copies, so that everything is cold again."""
        self.connection.ask("clear")

    # --- programs -------------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        preload: bool = True,
        cwd: Path | None = None,
        timeout: float = 120,
        check: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in argv],
            env=self.env(preload, **(env or {})),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    def python(self, script: str, *words: str | Path, **more: Any) -> str:
        """Runs a Python script under the library and returns its standard output. Fails if the
        script fails."""
        options = [] if imports_packages(script) else ["-S"]
        done = self.run([sys.executable, *options, "-c", script, *words], **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def report(self) -> str:
        return json.dumps(self.status(), indent=2)
