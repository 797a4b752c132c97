"""The steps with which a rank starts the daemon of its own node."""

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from monarch_py.cluster.node_info import NodeInfo, make_info
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.daemon.starting import StartupInfo, spawn, written
from monarch_py.errors import ConfigError, MonarchError, SessionError
from monarch_py.ipc.connection import DaemonConnection, troubles
from monarch_py.ipc.session import SessionDir, holder_of, link_session
from monarch_py.ipc.shares import Shares
from monarch_py.peers.membership import Cluster
from monarch_py.peers.server import listen
from monarch_py.scan.record import Listed, read_record, record_sources

# TURN_LIMIT_S : how long a command waits for the lock `turn` [s]. Another command that starts a
#     daemon holds this lock until the daemon runs. If it must list the sources first, this may take
#     minutes.
# TURN_PAUSE_S : the pause between two attempts to acquire the lock [s].
TURN_LIMIT_S, TURN_PAUSE_S = 300.0, 0.1
# The number of attempts to reach the other nodes. There are two attempts, because a busy daemon may
# answer the first request too late.
LOOKS = 2


class LocalNode:
    """This rank's node.

    record : on rank 0, the list of the sources' files, which `scan` makes; empty on other ranks
    began : on rank 0, when `scan` began, as a value of time.monotonic() [s]
    process : the daemon's process; None until this rank has started the daemon
    lifeline : the writing end of a pipe. The daemon ends when this end is closed. None until this
        rank has started the daemon
    """

    def __init__(self, config_file: Path, name: str) -> None:
        self._config_file, self._name = config_file, name
        self._listener: socket.socket | None = None
        self.record = b""
        self.began = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.lifeline: int | None = None
        self._shares: Shares | None = None

    def take_turn(self) -> None:
        """Waits until no other command is starting or ending a daemon on this node. Keeps others
        from doing so until `leave_turn`. Raises SessionError if the wait takes longer than
        TURN_LIMIT_S."""
        try:
            config = load_config(self._config_file)
        except MonarchError:
            return  # `prepare` loads the configuration again, and then raises this error
        self._shares = Shares(SessionDir.of(config.file))
        limit = time.monotonic() + TURN_LIMIT_S
        while not self._shares.try_turn():
            if time.monotonic() > limit:
                raise SessionError(
                    f"another `monarch start` or `monarch run` has been starting the daemon of"
                    f" {self._config_file} for {TURN_LIMIT_S:.0f} s; try again when it has ended"
                )
            time.sleep(TURN_PAUSE_S)

    def leave_turn(self) -> None:
        if self._shares is not None:
            self._shares.close()
            self._shares = None

    def prepare(self) -> NodeInfo:
        self._config = load_config(self._config_file)
        link_session(self._config_file, self._config.file)
        if self._config.scan == "lazy":
            raise ConfigError(
                f"{self._config.file}: several nodes need a list of all files, but 'scan: lazy'"
                " makes none; remove 'scan: lazy'"
            )
        info, self._listener = make_info(self._config, self._name)
        return info

    # --- the first start --------------------------------------------------------------------------

    def scan(self) -> None:
        self.began = time.monotonic()
        try:
            self.record = record_sources(self._config)
        except OSError as error:
            raise SessionError(f"a source cannot be listed: {error}") from error

    def start(self, cluster: Cluster, record: bytes, began: float) -> list[str]:
        """Starts the daemon with rank 0's list of the sources. Returns the problems that the daemon
        reports, one sentence each."""
        _check_record(self._config, read_record(record), cluster.members[0].name)
        fd = written(record)
        try:
            return self._start(cluster, fd, began)
        finally:
            os.close(fd)

    # --- a later start: the daemon rejoins its cluster --------------------------------------------

    def cluster(self) -> Cluster:
        """Returns the cluster to which this node's running daemon belongs."""
        return msgspec.convert(self._daemon.ask("cluster"), Cluster)

    @property
    def _daemon(self) -> DaemonConnection:
        return DaemonConnection(SessionDir.of(self._config.file))

    def roots(self) -> list[int | None]:
        """Returns the inode number of each source's directory; None for a directory that cannot be
        examined."""
        return [_inode(source.real_path) for source in self._config.sources]

    def come_back(self, cluster: Cluster, roots: Sequence[int | None], name: str) -> list[str]:
        """Starts this node's daemon again, at the address that the running daemons expect. The
        daemon lists the sources itself. Returns the problems that it reports, one sentence each.

        name : the name of a node with a running daemon
        roots : the inode numbers of the sources' directories on that node
        """
        assert self._listener is not None
        for source, ours, theirs in zip(self._config.sources, self.roots(), roots, strict=True):
            if ours != theirs:
                raise _other_source(source.path, name)
        me = cluster.members[cluster.rank]
        if self._listener.getsockname()[:2] != (me.host, me.port):
            self._listener.close()
            self._listener = _listen_again(me.host, me.port, SessionDir.of(self._config.file))
        return self._start(cluster, None)

    # --- both kinds of start ----------------------------------------------------------------------

    def _start(self, cluster: Cluster, record: int | None, began: float = 0.0) -> list[str]:
        assert self._listener is not None
        reading, self.lifeline = os.pipe2(os.O_CLOEXEC)
        with self._listener as listener:
            try:
                startup = StartupInfo(cluster, listener.fileno(), record, reading, began)
                self.process = spawn(self._config_file, detach=False, startup=startup)
            finally:
                os.close(reading)
        return troubles(self._daemon.ask("status"))

    def unreached(self) -> list[dict[str, Any]]:
        """Returns the nodes that this node's daemon cannot reach, each as the dict of the daemon's
        command `all`. If this node's daemon does not answer in time, returns []. This may happen if
        thousands of nodes are down."""
        silent: list[dict[str, Any]] = []
        with suppress(SessionError):
            for _ in range(LOOKS):
                silent = [node for node in self._daemon.ask("all")["nodes"] if not node["answers"]]
                if not silent:
                    break
        return silent

    def end(self) -> None:
        """Ends the daemon if this rank has started it."""
        if self.lifeline is not None:
            os.close(self.lifeline)
        if self.process is not None:
            self.process.wait()


def _listen_again(host: str, port: int, session: SessionDir) -> socket.socket:
    try:
        return listen(host, port)
    except SessionError as error:
        silent = holder_of(session.lock)
        silent_hint = f"its earlier daemon ({silent}) does not answer; end that process"
        hint = silent_hint if silent else "free the port"
        raise SessionError(
            f"the running daemons expect this node at {host}, port {port}, but its daemon cannot"
            f" listen there ({error.__cause__}): {hint}, or stop all daemons first"
        ) from error


def _check_record(config: Config, record: list[Listed], name: str) -> None:
    """Checks that each source is the same directory here as on the node `name`, which has made
    `record`. Compares the inode numbers here with those in `record`. Raises SessionError if a
    source differs."""
    for source, listed in zip(config.sources, record, strict=True):
        samples = [(source.real_path / os.fsdecode(path), ino) for path, ino in listed.samples]
        is_same = _inode(source.real_path) == listed.root_ino
        # Files may have been replaced since the scan. So one file of `samples` with the recorded
        # inode number is enough.
        if not is_same or (samples and all(_inode(file) != ino for file, ino in samples)):
            raise _other_source(source.path, name)


def _other_source(path: Path, name: str) -> SessionError:
    return SessionError(
        f"{path} is not the same directory as on {name} (the inode numbers differ): mount the same"
        " file system on all nodes, or start each node's daemon separately with --alone"
    )


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None
