"""What every node says of itself before the daemons start, and whether they go together."""

from __future__ import annotations

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monarch_py import __version__
from monarch_py.cluster.address import is_loopback, serving_address
from monarch_py.config import Config
from monarch_py.errors import SessionError
from monarch_py.ipc.connection import HAS_CHANGED, DaemonConnection
from monarch_py.ipc.session import SessionDir, shm_root
from monarch_py.peers import listen
from monarch_py.peers.membership import Cluster

__all__ = ["NodeInfo", "check_infos", "check_members", "make_info", "those_that_run"]

THOSE_THAT_RUN = "the nodes whose daemons run"
# The hints where nodes differ in something that does not stand in the configuration.
_MENDS = {"Monarch": "install the same version there", "plan": "give them the same file"}
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One rank's.

    name : of the node, for people
    place : what no two daemons share: host, boot, session, file system of the shared memory
    file : the configuration
    address : where it listens; None if a daemon runs here already
    running : the name of that one's cluster, "" for a daemon alone; None without one
    agreed : key -> value that all nodes must have alike
    """

    name: str
    place: tuple[str, ...]
    file: str
    address: tuple[str, int] | None
    running: str | None
    quotas: tuple[int, ...]
    agreed: dict[str, str]
    warnings: tuple[str, ...]


def make_info(config: Config, name: str) -> tuple[NodeInfo, socket.socket | None]:
    """With the socket that listens, if no daemon runs here. ConfigError, SessionError."""
    session = SessionDir.of(config.file)
    session.make()
    running, is_current = _running(DaemonConnection(session))
    listener = None
    if running is None:
        listener = listen(serving_address(config), config.peers.port)
    info = NodeInfo(
        name=name,
        place=(socket.gethostname(), _boot(), str(session.path), str(os.stat(shm_root()).st_dev)),
        file=str(config.file),
        address=None if listener is None else listener.getsockname()[:2],
        running=running,
        quotas=tuple(tier.quota_bytes for tier in config.tiers),
        agreed=_agreed(config),
        warnings=config.warnings + (() if is_current else (HAS_CHANGED.format(config.file),)),
    )
    return info, listener


def _boot() -> str:
    """Tells two machines of one name apart."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _running(connection: DaemonConnection) -> tuple[str | None, bool]:
    """Of the daemon that runs here its cluster, and whether it has the configuration as it is."""
    try:
        found = connection.ask("where")
    except SessionError:
        return None, True
    return str(found["cluster"]), bool(found["is_current"])


def _agreed(config: Config) -> dict[str, str]:
    """What a file is named by, or told by, between nodes."""
    agreed = {"Monarch": __version__, "block_size": f"{config.block_size_bytes} bytes"}
    for i, source in enumerate(config.sources):
        key = f"sources[{i}]"
        agreed[key] = repr(str(source.real_path))
        agreed[f"{key}.include"] = repr(list(source.include))
        agreed[f"{key}.exclude"] = repr(list(source.exclude))
        agreed[f"{key}.min_size"] = f"{source.min_size_bytes} bytes"
        most = source.max_size_bytes
        agreed[f"{key}.max_size"] = "none" if most is None else f"{most} bytes"
    # Owners follow from plans: with another one on one node, files would have none, or two.
    for i, plan in enumerate(config.plans):
        agreed[f"plan[{i}]"] = f"one with the SHA-256 {_digest(plan)}"
    return agreed


def _digest(file: Path) -> str:
    """SessionError if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise SessionError(f"{file}: {error.strerror}") from error


def those_that_run(infos: Sequence[NodeInfo]) -> list[int]:
    """The ranks whose daemons run already, of one cluster if `check_infos` has found nothing."""
    return [rank for rank, info in enumerate(infos) if info.running is not None]


def check_infos(infos: Sequence[NodeInfo]) -> None:
    """SessionError, in the same words on every rank, for nodes that do not go together."""
    _check_places(infos)
    _check_running(infos)
    _check_addresses(infos)
    for info in infos[1:]:
        _check_agreed(info, infos[0].name, infos[0].agreed)


def check_members(infos: Sequence[NodeInfo], cluster: Cluster) -> None:
    """SessionError, in the same words on every rank, when these nodes are not those that the
    daemons which still run were started with, or would keep something else now."""
    before, now = [member.name for member in cluster.members], [info.name for info in infos]
    if before != now:
        raise SessionError(
            f"the daemons that run were started on {', '.join(before)}, and these ranks are on"
            f" {', '.join(now)}: start the same ranks on the same nodes, or stop all daemons first"
        )
    for info, member in zip(infos, cluster.members, strict=True):
        if info.running is not None:
            continue
        _check_agreed(info, THOSE_THAT_RUN, cluster.agreed)
        if info.quotas != member.quotas:
            raise SessionError(
                f"{info.name}: its quotas are {_listed(info.quotas)} bytes, and the daemons that"
                f" run know it with {_listed(member.quotas)}: who keeps what follows from them;"
                f" correct {info.file}, or stop all daemons first"
            )


def _check_agreed(info: NodeInfo, others: str, agreed: Mapping[str, str]) -> None:
    for key in dict.fromkeys([*agreed, *info.agreed]):
        ours, theirs = agreed.get(key, "missing"), info.agreed.get(key, "missing")
        if ours != theirs:
            hint = _MENDS.get(key.partition("[")[0], f"correct {info.file}")
            if others == THOSE_THAT_RUN:
                hint += ", as it was when they were started, or stop all daemons first"
            raise SessionError(
                f"{info.name}: {key} is {theirs}, and on {others} {ours}: it has to be the"
                f" same on all nodes; {hint}"
            )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _check_running(infos: Sequence[NodeInfo]) -> None:
    """Those that run have to know of each other."""
    together = Counter(info.running for info in infos if info.running)
    cluster = together.most_common(1)[0][0] if together else None
    others = [info.name for info in infos if info.running not in (None, cluster)]
    if others:
        raise SessionError(
            f"{', '.join(others)}: a daemon serves this configuration already, and not together"
            " with the other nodes; stop it first, with monarch stop"
        )


def _check_places(infos: Sequence[NodeInfo]) -> None:
    seen: dict[tuple[str, ...], int] = {}
    for rank, info in enumerate(infos):
        other = seen.setdefault(info.place, rank)
        if other != rank:
            raise SessionError(
                f"ranks {other} and {rank} are both on {info.place[0]}, with one configuration:"
                " start one rank a node, with mpiexec -ppn 1 (Open MPI: -N 1) or srun"
                " --ntasks-per-node=1, or give each a configuration of its own, such as"
                " -c 'tiers-{rank}.yaml'"
            )


def _check_addresses(infos: Sequence[NodeInfo]) -> None:
    if len({info.place[0] for info in infos}) == 1:
        return
    for info in infos:
        if info.address is not None and is_loopback(info.address[0]):
            raise SessionError(
                f"{info.name}: its address, {info.address[0]}, is one that only it can reach; name"
                f" another with peers.interface or peers.address in {info.file}"
            )
    seen: dict[str, NodeInfo] = {}
    for info in infos:
        if info.address is None:
            continue
        other = seen.setdefault(info.address[0], info)
        if other.place[:2] != info.place[:2]:
            raise SessionError(
                f"{other.name} and {info.name} have one address, {info.address[0]}, as a bridge of"
                f" containers has on every node; name another with peers.interface in {info.file}"
            )
