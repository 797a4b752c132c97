"""Simulated nodes on one machine: network namespaces on a bridge, each behind a rate-limited link.

Needs root, and the commands `ip`, `tc` and `nsenter`. The kernel's token bucket filter (tc-tbf)
limits the rate in both directions of a link. The links have no additional latency.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType

__all__ = ["Nodes", "why_no_nodes"]

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
# The size of the token bucket, in tc's notation. It is large enough for the kernel's largest
# packets at 1 Gbit/s.
_BURST = "256kb"
_QUEUE = "50ms"
# A counter. Each network that this process creates gets the next number.
_MADE = count()


def _tool(name: str) -> str:
    # An ordinary user's PATH may lack the directories of these programs.
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") or name


def _run(*words: str) -> None:
    subprocess.run([_tool(words[0]), *words[1:]], check=True, capture_output=True)


def _set_namespace(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def why_no_nodes() -> str | None:
    """Returns None if nodes can be created on this machine. Otherwise returns one sentence that
    says why not."""
    if os.geteuid() != 0:
        return "only root can create network namespaces"
    for name, package in _TOOLS.items():
        if shutil.which(_tool(name)) is None:
            return f"{name} is missing: install {package}"
    probe = f"monarch-probe-{os.getpid()}"
    try:
        _run("ip", "netns", "add", probe)
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be created here: {error.stderr.decode().strip()}"
    _run("ip", "netns", "del", probe)
    return None


class Nodes:
    """Creates `count` nodes, which exist inside the `with` block. Raises CalledProcessError if the
    kernel refuses to create them.

    rate : the rate of each node's link, in tc's notation ("1gbit"); None for no limit
    """

    def __init__(self, count: int, rate: str | None = None) -> None:
        # The names contain a number, because a process may have several objects of this class.
        own = f"monarch-{os.getpid()}-{next(_MADE)}"
        self._names = [f"{own}-{i}" for i in range(count)]
        self._switch = f"{own}-switch"
        self._rate = rate

    def __enter__(self) -> Nodes:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, node: int) -> str:
        return f"10.78.0.{10 + node}"

    def path(self, node: int) -> str:
        """Returns the path of the file that represents a node's network namespace."""
        return f"/run/netns/{self._names[node]}"

    def command(self, node: int, words: Sequence[str]) -> list[str]:
        """Returns a command line that runs `words` on a node."""
        return [_tool("nsenter"), f"--net={self.path(node)}", *words]

    @contextmanager
    def entered(self, node: int) -> Iterator[None]:
        """Inside the `with` block, this thread and the processes that it starts are in the network
        namespace of the node. Raises OSError if this is not permitted."""
        with open("/proc/thread-self/ns/net", "rb") as home, open(self.path(node), "rb") as there:
            _set_namespace(there.fileno())
            try:
                yield
            finally:
                _set_namespace(home.fileno())

    def set_link(self, node: int, *, up: bool) -> None:
        """Switches a node's link off or on. Processes are not notified."""
        _run("ip", "-n", self._switch, "link", "set", f"p{node}", "up" if up else "down")

    def set_rate(self, node: int, rate: str) -> None:
        """Changes the rate of a node's link, in both directions. The link must already have a
        rate."""
        bucket = ["tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE]
        for place, device in ((self._names[node], "eth0"), (self._switch, f"p{node}")):
            _run("tc", "-n", place, "qdisc", "change", "dev", device, "root", *bucket)

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "br0", "up")
        for i, name in enumerate(self._names):
            _run("ip", "netns", "add", name)
            inside, outside = ["dev", "eth0"], ["dev", f"p{i}"]
            pair = ["type", "veth", "peer", "name", f"p{i}", "netns", self._switch]
            _run("ip", "link", "add", "eth0", "netns", name, *pair)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", *inside)
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", self._switch, "link", "set", f"p{i}", "master", "br0")
            _run("ip", "-n", self._switch, "link", "set", f"p{i}", "up")
            if self._rate:
                bucket = ["tbf", "rate", self._rate, "burst", _BURST, "latency", _QUEUE]
                _run("tc", "-n", name, "qdisc", "add", *inside, "root", *bucket)
                _run("tc", "-n", self._switch, "qdisc", "add", *outside, "root", *bucket)

    def _remove(self) -> None:
        for name in [*self._names, self._switch]:
            if os.path.exists(f"/run/netns/{name}"):
                subprocess.run(
                    [_tool("ip"), "netns", "del", name], check=False, capture_output=True
                )
