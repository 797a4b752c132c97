"""The socket on which commands reach the daemon, and what the daemon does for them."""

import contextlib
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from monarch_py.config.schema import SourceConfig
from monarch_py.daemon.nodes.cluster_status import all_nodes
from monarch_py.daemon.openfiles import all_opened, open_files
from monarch_py.daemon.orphan import let_go
from monarch_py.daemon.server import Daemon
from monarch_py.daemon.status import SCHEMA_VERSION
from monarch_py.errors import MonarchError, SessionError
from monarch_py.ipc.jobs import pid_namespace
from monarch_py.ipc.session import SessionDir
from monarch_py.util.file_version import Version, version_of
from monarch_py.util.processes import Identity
from monarch_py.util.threads import note_failure

log = logging.getLogger("monarch.daemon")

REQUEST_BYTES = 1 << 20
# How many connections the kernel queues for the daemon. The queue is long, because all ranks of a
# large job may send a command at once.
BACKLOG = 1024
# After a failed accept(), the thread that accepts connections pauses for this long [s].
ACCEPT_PAUSE_S = 0.2
# Commands that only read the daemon's state. They create no work for the daemon's loop, so the loop
# is not woken after them.
ONLY_TELLING = ("status", "history", "open", "where", "all", "cluster")

Request = dict[str, Any]
Action = Callable[[Request], Any]


class Control:
    """Executes the commands of the daemon's user and of root. The daemon ends if the socket's file
    is unlinked, because no further command could reach it.

    Raises OSError if the socket cannot be made.
    """

    def __init__(self, daemon: Daemon, session: SessionDir) -> None:
        self._daemon, self._session = daemon, session
        self._versions = self._versions_now()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        session.bind(self._socket, session.socket)
        self._socket.listen(BACKLOG)
        self._attended: set[socket.socket] = set()
        daemon.needs(session.socket)
        # When the daemon ends, the last callback runs first. `shutdown` wakes the thread that
        # accepts connections. `close` then resets the connections that are not accepted yet.
        daemon.at_end.callback(self._socket.close)
        daemon.at_end.callback(self._socket.shutdown, socket.SHUT_RDWR)
        # Each of these commands runs completely inside `daemon.deciding()`, between two iterations
        # of the loop.
        self._between_turns: dict[str, Action] = {
            "stop": self._stop,
            "stay": self._stay,
            "let_go": self._let_go,
            "clear": self._clear,
            "drop": self._drop,
            "job": self._new_job,
            "where": self._where,
            "cluster": self._cluster,
            "warm": self._warm,
            "scan": self._scan,
            "take_back": self._take_back,
        }
        # These commands may wait for a file system or for another node, so the loop goes on
        # meanwhile. Where the loop must pause, the command enters `daemon.deciding()` itself.
        self._beside_turns: dict[str, Action] = {
            "status": lambda _: daemon.status(),
            "history": lambda _: daemon.history(),
            "all": self._all,
            "open": self._open_files,
            "look": self._look,
            "compare": self._compare,
            "add_source": self._add_source,
        }

    def begin(self) -> None:
        """Starts the thread that answers commands."""
        threading.Thread(target=self._answer_forever, name="control", daemon=True).start()

    def end(self) -> None:
        """Shuts down the connections of clients that still wait for an answer, so that they stop
        waiting at once. Otherwise the connections stay open until all threads of this process have
        ended. A thread may hang in a source's file system."""
        for connection in list(self._attended):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- the socket ---------------------------------------------------------------------------

    def _answer_forever(self) -> None:
        is_said = False
        while not self._daemon.is_closed:
            try:
                self._take_in(self._socket.accept()[0])
                is_said = False
            # The daemon has no free descriptor, or it is ending and has shut the socket down.
            except OSError as error:
                if not (is_said or self._daemon.is_closed):
                    log.warning(
                        "commands must wait: the daemon cannot accept connections now: %s", error
                    )
                is_said = True
                time.sleep(ACCEPT_PAUSE_S)
            except Exception as error:  # the thread goes on, because the next command may succeed
                note_failure(error)
                time.sleep(ACCEPT_PAUSE_S)

    def _take_in(self, connection: socket.socket) -> None:
        """Executes a command in a new thread, so that a slow command (`look`, `all`) delays no
        other. If no thread can be started, the calling thread executes the command."""
        self._attended.add(connection)
        try:
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
        except (RuntimeError, MemoryError):
            self._attend(connection)

    def _attend(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._answer(connection)
            except OSError as error:
                log.info("the answer to a command could not be sent: %s", error)
            except Exception:
                # A bad request must not end this service; the traceback is written to the log.
                log.exception("a command failed in the daemon")
            finally:
                self._attended.discard(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in (os.geteuid(), 0):
            return
        line = connection.makefile("rb").readline(REQUEST_BYTES)
        if not line.endswith(b"\n"):
            return  # the request is incomplete, or too long
        request = json.loads(line)
        try:
            answer = self._do(request)
        except MonarchError as error:
            answer = {"error": str(error)}
        connection.sendall(json.dumps(answer).encode() + b"\n")
        if request.get("do") == "stop":
            self._daemon.stop_soon()
        if request.get("do") not in ONLY_TELLING:
            self._daemon.wake()

    def _do(self, request: Request) -> Any:
        name = request.get("do")
        if name in self._beside_turns:
            return self._beside_turns[name](request)
        if name not in self._between_turns:
            raise SessionError(
                f"the daemon has no command {name!r}; if its version of Monarch differs, run"
                " `monarch stop` and `monarch start`"
            )
        with self._daemon.deciding():
            return self._between_turns[name](request)

    # --- commands that run between two iterations of the loop ---------------------------------

    @staticmethod
    def _identity() -> dict[str, int]:
        return asdict(Identity.of(os.getpid()))

    def _stop(self, _: Request) -> Any:
        self._daemon.shared.was_asked_to_stop = True
        self._session.forget_starts()
        return self._identity()

    def _stay(self, _: Request) -> Request:
        self._daemon.stays = True
        return {}

    def _let_go(self, _: Request) -> Request:
        """Makes the daemon end when no process uses it any more. A daemon that `monarch run` has
        started does so anyway."""
        let_go(self._session, self._daemon.stop_now)
        return {}

    def _new_job(self, _: Request) -> Request:
        self._daemon.plan_manager.new_job()
        return {}

    def _where(self, _: Request) -> Request:
        daemon = self._daemon
        return {
            **self._identity(),
            "pid_namespace": pid_namespace(),
            "cluster": "" if daemon.cluster is None else daemon.cluster.name,
            "generation": int(daemon.shared.control.generation),
            "scanned": daemon.scanner.scanned,
            "first_copy": daemon.filler.first_copy,
            "is_current": all(
                now in (None, then)
                for now, then in zip(self._versions_now(), self._versions, strict=True)
            ),
            "sources": [str(source.real_path) for source in daemon.config.sources],
            "described": [source.words() for source in daemon.config.sources],
            "settings": daemon.config.settings,
            "switched_off": bool(daemon.shared.control.off),
        }

    def _versions_now(self) -> list[Version]:
        return [version_of(file) for file in self._daemon.config.files]

    def _add_source(self, request: Request) -> Request:
        source = SourceConfig.from_words(request["source"])
        return {"added": self._daemon.add_source(source)}

    def _cluster(self, _: Request) -> Any:
        """Returns the cluster with its secret. This reveals nothing new: only the daemon's user and
        root can send commands, and both can read the daemon's memory."""
        if self._daemon.cluster is None:
            raise SessionError("the daemon of this configuration serves this node alone")
        return msgspec.to_builtins(self._daemon.cluster)

    def _scan(self, request: Request) -> Request:
        """Makes the scan list some directories and everything below them. The request gives each
        directory as (number of the source, path). Returns whether all listings that were requested
        so far are complete."""
        scanner = self._daemon.scanner
        for number, path in request["directories"]:
            scanner.ask_for(int(number), str(path), is_deep=True, is_read=False)
        scanner.hurry()
        return {"scanned": scanner.scanned}

    def _warm(self, request: Request) -> Request:
        entries = np.array(request["entries"], dtype=np.uint64)
        entries = entries[entries < len(self._daemon.shared.catalog)]
        return {"files": self._daemon.filler.requests.warm(entries, str(request["ticket"]))}

    def _take_back(self, request: Request) -> Request:
        files = self._daemon.filler.take_back(str(request["ticket"]))
        self._daemon.directory_prefetch.look_again()
        return {"files": files}

    def _clear(self, _: Request) -> Request:
        self._daemon.directory_prefetch.clear()
        return {"dropped": self._daemon.filler.clear()}

    def _drop(self, request: Request) -> Request:
        entries = [int(entry) for entry in request.get("entries", [])]
        return {"dropped": self._daemon.filler.copies.drop(entries)}

    # --- commands that run while the loop goes on ---------------------------------------------

    def _all(self, _: Request) -> Request:
        """Returns the status of all nodes."""
        nodes = all_nodes(self._daemon.cluster, self._daemon.status())
        return {"schema": SCHEMA_VERSION, "nodes": nodes}

    def _open_files(self, _: Request) -> Request:
        """Returns the files that programs have open. The search takes long, so it runs while the
        daemon's loop continues."""
        opened, staging = all_opened(), self._daemon.filler.staging.number
        with self._daemon.deciding():
            return {"open": open_files(self._daemon.shared, staging, opened)}

    def _look(self, request: Request) -> Request:
        """Looks up the requested paths at the source, and adds the files found there to the
        catalog. The scan may not have found these files yet. Returns the entry for each path; -1 if
        there is no file."""
        scanner, filler = self._daemon.scanner, self._daemon.filler
        paths = [(int(number), str(path)) for number, path in request["paths"]]
        met = [scanner.look(number, path) for number, path in paths]
        with self._daemon.deciding():
            for (number, path), seen in zip(paths, met, strict=True):
                if seen is not None and scanner.find(number, path) < 0:
                    scanner.meet(seen)
            filler.checks.adopt_found()
            return {"entries": [scanner.find(number, path) for number, path in paths]}

    def _compare(self, request: Request) -> Request:
        """Compares the requested files and directories with the source, in the request's order.
        Stops after about a second. Drops the copies of changed files. Returns how many entries were
        compared, and which of them have changed."""
        outdated = self._daemon.filler.outdated
        with self._daemon.deciding():
            catalog = self._daemon.shared.catalog.reader()
        entries = np.array(request["entries"], dtype=np.uint64)
        compared = outdated.look(catalog, entries[entries < len(catalog)])
        with self._daemon.deciding():
            files, directories = outdated.drop(compared)
        return {
            "compared": len(compared.ids),
            "outdated": files.tolist(),
            "directories": directories.tolist(),
        }
