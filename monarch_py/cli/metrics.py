"""The command metrics."""

import errno
import os
import signal
import socket
import socketserver
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import click
from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app, write_to_textfile

from monarch_py.cli.messages import tell
from monarch_py.cli.options import examples, refuse_input, served_config_option
from monarch_py.errors import MonarchError, SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.report.metrics import DASHBOARD, registry_of
from monarch_py.util.signals import handling

LOOPBACK = "127.0.0.1"
# Time limit [s] for the connection that tests whether a process listens on a socket.
PROBE_S = 1.0


class _Quiet(WSGIRequestHandler):
    """A request handler that logs no requests."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _ThreadingServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _UnixServer(socketserver.ThreadingMixIn, WSGIServer):
    address_family = socket.AF_UNIX
    daemon_threads = True

    def server_bind(self) -> None:
        socketserver.UnixStreamServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accepts a client, and returns its socket with an invented address. A client of a Unix
        socket has no host and no port, but the request handler expects both."""
        return self.socket.accept()[0], ("a client", 0)


def _remove_unused_socket(path: Path) -> None:
    """Removes `path` if it is a socket on which no process listens. Raises MonarchError if a
    process listens on the socket, or if `path` is not a socket."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise MonarchError(f"{path} exists and is not a socket; name another path")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PROBE_S)
            # EAGAIN: a process listens, but its queue of connections is full.
            if probe.connect_ex(str(path)) in (0, errno.EAGAIN):
                raise MonarchError(f"another process listens at {path}; name another path")
        path.unlink()


@contextmanager
def _on_socket(path: Path) -> Iterator[WSGIServer]:
    """Yields a server on a Unix socket at `path`. Only this user can connect to it. Raises
    MonarchError if the socket cannot be created, if another process listens on it, or if `path` is
    not a socket."""
    try:
        _remove_unused_socket(path)
        mask = os.umask(0o177)
        try:
            server = _UnixServer(str(path), _Quiet)  # type: ignore[arg-type]
        finally:
            os.umask(mask)
    except OSError as error:  # `strerror` is None if the path is too long
        raise MonarchError(
            f"{path}: cannot listen there ({error.strerror or error}); name another path"
        ) from None
    try:
        yield server
    finally:
        path.unlink(missing_ok=True)


def _listening(port: int) -> WSGIServer:
    try:
        return _ThreadingServer((LOOPBACK, port), _Quiet)
    except OSError as error:
        raise MonarchError(
            f"cannot listen on port {port} ({error.strerror}); give another port"
        ) from None


def _print_dashboard(context: click.Context, _parameter: Any, is_asked: bool) -> None:
    if is_asked:
        click.echo(DASHBOARD.read_text(), nl=False)
        context.exit()


@click.command(
    short_help="Export the daemon's counters to Prometheus.",
    epilog=examples(
        "monarch metrics",
        "monarch metrics --textfile /var/lib/node_exporter/monarch.prom",
        "monarch metrics --dashboard > monarch.json",
    ),
)
@served_config_option
@click.option(
    "--socket", "socket_file", type=click.Path(path_type=Path), help="Serve on this Unix socket."
)
@click.option("--port", type=click.IntRange(1, 65535), help=f"Serve on this port of {LOOPBACK}.")
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    help="Write to this file, for the textfile collector of node_exporter.",
)
@click.option(
    "--dashboard",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_dashboard,
    help="Print a Grafana dashboard of these metrics, and exit.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="With --textfile: write the file again at this interval until Ctrl-C.",
)
def metrics(
    config_file: Path,
    socket_file: Path | None,
    port: int | None,
    textfile: Path | None,
    every: float | None,
) -> None:
    """Export the daemon's counters to Prometheus: print them once, or serve them until Ctrl-C.

    Only you can read the metrics from the Unix socket. Any user of this machine can read them from
    the port. No metric contains a path.
    """
    ways = [name for name, given in (("--socket", socket_file), ("--port", port)) if given]
    if len(ways) + (textfile is not None) > 1:
        raise click.UsageError("give only one of --socket, --port and --textfile")
    if every is not None and textfile is None:
        raise click.UsageError("--every has an effect only with --textfile; give --textfile too")
    if textfile is not None:
        refuse_input("--textfile", textfile, [config_file])
    session = SessionDir.of(config_file)
    DaemonConnection(session).ask("status")  # if no daemon runs, the command fails here

    def ask() -> dict[str, Any] | None:
        try:
            return DaemonConnection(session).ask("status")  # type: ignore[no-any-return]
        except SessionError:
            return None

    # SIGTERM and SIGHUP raise SystemExit, so that the command removes its socket before it ends.
    with handling((signal.SIGTERM, signal.SIGHUP), lambda number, _: sys.exit(128 + number)):
        registry = registry_of(ask)
        if textfile is not None:
            _write(textfile, registry, every)
        elif socket_file is not None:
            with _on_socket(socket_file) as server:
                _serve(server, registry, str(socket_file))
        elif port is not None:
            with _listening(port) as server:
                _serve(server, registry, f"http://{LOOPBACK}:{port}/metrics")
        else:
            click.echo(generate_latest(registry).decode(), nl=False)


def _serve(server: WSGIServer, registry: CollectorRegistry, where: str) -> None:
    server.set_app(make_wsgi_app(registry))
    tell(f"metrics on {where}")
    server.serve_forever()


def _write(textfile: Path, registry: CollectorRegistry, every: float | None) -> None:
    try:
        _write_once(textfile, registry)
        while every is not None:
            threading.Event().wait(every)
            _write_once(textfile, registry)
    finally:
        if every is not None:
            # Nobody will update the file any more, so let it say that no daemon answers.
            _write_once(textfile, registry_of(lambda: None))


def _write_once(textfile: Path, registry: CollectorRegistry) -> None:
    try:
        write_to_textfile(str(textfile), registry)
    except OSError as error:
        raise MonarchError(
            f"{textfile}: cannot be written ({error.strerror}); check the path"
        ) from None
