"""Collects what each node reports about itself before the daemons start, and checks whether the
nodes can form a cluster."""

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monarch_py import __version__
from monarch_py.cluster.address import is_loopback, serving_address
from monarch_py.config.schema import Config
from monarch_py.errors import SessionError
from monarch_py.ipc.connection import HAS_CHANGED, DaemonConnection
from monarch_py.ipc.session import SessionDir, shm_root
from monarch_py.peers.membership import Cluster
from monarch_py.peers.server import listen
from monarch_py.util.processes import boot_id

THOSE_THAT_RUN = "the nodes with running daemons"
# Hints for settings that may differ between nodes with equal configuration files. A key is a
# setting's name up to the first "[": "plan" stands for "plan[0]".
_MENDS = {"Monarch": "install the same version there", "plan": "give all nodes the same plan"}


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The report of one rank about its node.

    name : the node's name, for messages
    place : four values that together identify the node's daemon: the host's name, the boot ID, the
        session, and the file system of the shared memory
    file : the path of the configuration
    address : where the daemon will listen; None if a daemon already runs on the node
    running : the name of the running daemon's cluster; "" if the daemon works alone; None if no
        daemon runs
    agreed : settings that must be equal on all nodes, key -> value
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
    """Returns this node's information, and the socket at which its daemon will listen; None if a
    daemon already runs here. Raises ConfigError or SessionError if this node cannot take part."""
    session = SessionDir.of(config.file)
    session.make()
    running, is_current = _running(DaemonConnection(session))
    listener = None
    if running is None:
        listener = listen(serving_address(config), config.peers.port)
    info = NodeInfo(
        name=name,
        # The boot ID distinguishes two machines with the same name.
        place=(socket.gethostname(), boot_id(), str(session.path), str(os.stat(shm_root()).st_dev)),
        file=str(config.file),
        address=None if listener is None else listener.getsockname()[:2],
        running=running,
        quotas=tuple(tier.quota_bytes for tier in config.tiers),
        agreed=_agreed(config),
        warnings=config.warnings + (() if is_current else (HAS_CHANGED.format(config.file),)),
    )
    return info, listener


def _running(connection: DaemonConnection) -> tuple[str | None, bool]:
    """Returns the name of the running daemon's cluster; None if no daemon runs here. Also returns
    whether the configuration has stayed unchanged since that daemon read it."""
    try:
        found = connection.ask("where")
    except SessionError:
        return None, True
    return str(found["cluster"]), bool(found["is_current"])


def _agreed(config: Config) -> dict[str, str]:
    """Returns the settings that must be equal on all nodes. They determine which files the nodes
    share, and how a node identifies a file in its requests to others."""
    agreed = {"Monarch": __version__, "block_size": f"{config.block_size_bytes} bytes"}
    for i, source in enumerate(config.sources):
        key = f"sources[{i}]"
        agreed[key] = repr(str(source.real_path))
        agreed[f"{key}.include"] = repr(list(source.include))
        agreed[f"{key}.exclude"] = repr(list(source.exclude))
        agreed[f"{key}.min_size"] = f"{source.min_size_bytes} bytes"
        most = source.max_size_bytes
        agreed[f"{key}.max_size"] = "none" if most is None else f"{most} bytes"
    # Plans decide which node owns a file, that is, reads it from the source for all nodes. If one
    # node had a different plan, some files would have no owner, and some would have two.
    for i, plan in enumerate(config.plans):
        agreed[f"plan[{i}]"] = f"one with the SHA-256 {_digest(plan)}"
    return agreed


def _digest(file: Path) -> str:
    """Returns the first 16 hexadecimal digits of the file's SHA-256. Raises SessionError if the
    file cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise SessionError(f"{file}: {error.strerror}") from error


def check_infos(infos: Sequence[NodeInfo]) -> None:
    """Checks that the daemons of these nodes can form one cluster. If they cannot, raises
    SessionError, with the same words on every rank."""
    _check_places(infos)
    _check_running(infos)
    _check_addresses(infos)
    for info in infos[1:]:
        _check_agreed(info, infos[0].name, infos[0].agreed)


def check_members(infos: Sequence[NodeInfo], cluster: Cluster) -> None:
    """Checks that the ranks are on the same nodes as when the cluster was started. On each node
    without a running daemon, also checks that the settings and quotas are the same as then. If a
    check fails, raises SessionError, with the same words on every rank.

    infos : the nodes of this command's ranks;  cluster : the cluster of the running daemons
    """
    before, now = [member.name for member in cluster.members], [info.name for info in infos]
    if before != now:
        raise SessionError(
            f"the running daemons were started on {', '.join(before)}, but these ranks are on"
            f" {', '.join(now)}: start the same ranks on the same nodes, or stop all daemons first"
        )
    for info, member in zip(infos, cluster.members, strict=True):
        if info.running is not None:
            continue
        _check_agreed(info, THOSE_THAT_RUN, cluster.agreed)
        if info.quotas != member.quotas:
            raise SessionError(
                f"{info.name}: the quotas are {_listed(info.quotas)} bytes, but the running daemons"
                f" were started with {_listed(member.quotas)}; quotas decide which node keeps a"
                f" file, so correct {info.file}, or stop all daemons first"
            )


def _check_agreed(info: NodeInfo, others: str, agreed: Mapping[str, str]) -> None:
    for key in dict.fromkeys([*agreed, *info.agreed]):
        ours, theirs = agreed.get(key, "missing"), info.agreed.get(key, "missing")
        if ours != theirs:
            hint = _MENDS.get(key.partition("[")[0], f"correct {info.file}")
            if others == THOSE_THAT_RUN:
                hint += (
                    ", as it was when the running daemons were started, or stop all daemons first"
                )
            raise SessionError(
                f"{info.name}: {key} is {theirs}, but on {others} it is {ours}; it must be the same"
                f" on all nodes: {hint}"
            )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _check_running(infos: Sequence[NodeInfo]) -> None:
    """Checks that all running daemons belong to one cluster. Raises SessionError if they do
    not."""
    together = Counter(info.running for info in infos if info.running)
    cluster = together.most_common(1)[0][0] if together else None
    others = [info.name for info in infos if info.running not in (None, cluster)]
    if others:
        raise SessionError(
            f"{', '.join(others)}: a daemon serves this configuration already, but does not belong"
            " to the other nodes' cluster; stop it first with `monarch stop`"
        )


def _check_places(infos: Sequence[NodeInfo]) -> None:
    seen: dict[tuple[str, ...], int] = {}
    for rank, info in enumerate(infos):
        other = seen.setdefault(info.place, rank)
        if other != rank:
            raise SessionError(
                f"ranks {other} and {rank} are both on {info.place[0]}, with one configuration:"
                " start one rank per node, with mpiexec -ppn 1 (Open MPI: -N 1) or srun"
                " --ntasks-per-node=1, or give each rank a configuration of its own, such as"
                " -c 'tiers-{rank}.yaml'"
            )


def _check_addresses(infos: Sequence[NodeInfo]) -> None:
    if len({info.place[0] for info in infos}) == 1:
        return
    for info in infos:
        if info.address is not None and is_loopback(info.address[0]):
            raise SessionError(
                f"{info.name}: other nodes cannot reach the loopback address {info.address[0]}; set"
                f" peers.interface or peers.address in {info.file}"
            )
    seen: dict[str, NodeInfo] = {}
    for info in infos:
        if info.address is None:
            continue
        other = seen.setdefault(info.address[0], info)
        if other.place[:2] != info.place[:2]:
            raise SessionError(
                f"{other.name} and {info.name} have the same address, {info.address[0]}, as is"
                f" usual for container bridges; set peers.interface in {info.file}"
            )
