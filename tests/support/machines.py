"""Simulated machines for one test: network namespaces on a bridge.

Each machine has its own host name, /etc/hosts and /dev/shm. A sleeping process per machine holds
the machine's namespaces; leaving the context ends all of these processes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.peers.nodes import Nodes, why_no_nodes
from support.session import wait_until

__all__ = ["Machines", "why_no_machines"]


def why_no_machines() -> str | None:
    """Returns a sentence that says what is missing on this machine, or None if machines can be
    created."""
    return why_no_nodes()


class Machines:
    """Creates `count` machines with the names node0, node1, ...

    directory : the directory for the machines' files, which this class creates
    rate : the rate of each link, in tc's notation; None for no limit
    """

    def __init__(self, directory: Path, count: int, rate: str | None = None) -> None:
        self.names = [f"node{i}" for i in range(count)]
        self.nodes = Nodes(count, rate)
        self._directory = directory
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Machines:
        self.nodes.__enter__()
        try:
            self._directory.mkdir(parents=True)
            hosts = [f"{self.nodes.address(i)} {name}" for i, name in enumerate(self.names)]
            (self._directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
            for i in range(len(self.names)):
                self._hold(i)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _hold(self, machine: int) -> None:
        name, hosts = self.names[machine], self._directory / "hosts"
        ready = self._directory / f"{name}.ready"
        setup = (
            f"hostname {name} && mount --bind {shlex.quote(str(hosts))} /etc/hosts"
            " && mount -t tmpfs -o mode=1777,size=256m shm /dev/shm"
            f" && touch {shlex.quote(str(ready))} && exec sleep infinity"
        )
        own = [
            "unshare",
            "--uts",
            "--ipc",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            setup,
        ]
        self._holders.append(subprocess.Popen(self.nodes.command(machine, own)))

        def is_ready() -> bool:
            assert self._holders[-1].poll() is None, f"{name} cannot be set up"
            return ready.exists()

        wait_until(is_ready, what=f"the machine {name}")

    def _end(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self.nodes.__exit__(None, None, None)

    def command(self, machine: int, words: Sequence[str | Path]) -> list[str]:
        """Returns a command line that runs `words` on a machine."""
        holder = str(self._holders[machine].pid)
        enter = ["nsenter", "--target", holder, "--net", "--uts", "--ipc", "--mount"]
        return [*enter, "--", *map(str, words)]

    def run(
        self, machine: int, *words: str | Path, env: Mapping[str, str], timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(machine, words),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def launcher(self) -> Path:
        """Returns a program that runs a command on a machine given by name, as ssh does."""
        cases = [
            f'{name}) exec {shlex.join(self.command(i, ["sh", "-c"]))} "$*" ;;'
            for i, name in enumerate(self.names)
        ]
        script = self._directory / "onnode"
        lines = [
            "#!/bin/sh",
            # Options that mpiexec passes to ssh are skipped.
            'while [ "${1#-}" != "$1" ]; do shift; done',
            'host=$1; shift; case "$host" in',
            *cases,
            "esac; exit 1",
        ]
        script.write_text("\n".join(lines) + "\n")
        os.chmod(script, 0o755)
        return script
