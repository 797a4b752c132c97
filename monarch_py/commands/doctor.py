"""`monarch doctor`: reports what works on this machine, what does not, and what to do about it."""

import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from monarch_py.cluster.address import is_loopback, serving_address
from monarch_py.commands.named_files import named_files
from monarch_py.commands.switches import Finding, switches
from monarch_py.config._disk import mount_options
from monarch_py.config.layers import read_layers
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config, PeersConfig, TierConfig
from monarch_py.daemon.starting import LEAST_ADDRESSES
from monarch_py.errors import MonarchError, TierError
from monarch_py.ipc.connection import HAS_CHANGED, DaemonConnection
from monarch_py.ipc.session import SessionDir, holder_of, least_shm_bytes, shm_root
from monarch_py.native import LIBRARY, ffi, lib
from monarch_py.peers.handshake import LIBCRYPTO_HINT, NO_LIBCRYPTO, has_libcrypto
from monarch_py.storage import memory
from monarch_py.storage.manifest import Manifest
from monarch_py.storage.shortage import occupied_bytes, shortage
from monarch_py.storage.tiers import held_elsewhere, tier_root
from monarch_py.util.container import container, is_of_the_image
from monarch_py.util.hanging import hanging
from monarch_py.util.limits import MIN_DESCRIPTORS
from monarch_py.util.ownership import doubts, why_not_private
from monarch_py.util.units import format_size

NONE_RUNS = (
    "no daemon runs; `monarch run` starts one for its command, and `monarch start` starts one that"
    " stays"
)
NAME_ONE = "set MONARCH_SOURCE=/the/dataset to have the dataset checked too"
# Estimate of the shared memory that a catalog takes per file [bytes]: up to 192 bytes, plus 96 for
# the path. The shared segments of fixed size (`least_shm_bytes`) are not included.
CATALOG_BYTES_PER_FILE = 288
# Time limit [s] for loading MPI. On some machines, MPI loads slowly because it searches for network
# fabrics.
MPI_S = 30
# A Python program that loads MPI. Doctor runs the program as a separate process. If a broken MPI
# crashes this process, doctor goes on and reports the problem. The program's argument is the
# directory that contains the package monarch_py. The program adds this directory to sys.path,
# because `pip install --prefix` may have installed mpi4py there.
MPI_VERSION = """
import sys
sys.path.insert(0, sys.argv[1])
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
print(MPI.Get_library_version().split("\\n")[0].strip("\\0"))
"""


def _machine() -> Finding:
    machine = platform.machine()
    if machine in ("x86_64", "aarch64"):
        kind = container()
        return Finding("ok", "machine", f"{machine}, in a {kind} container" if kind else machine)
    return Finding("problem", "machine", machine, "Monarch runs on x86-64 and aarch64")


def _libc() -> Finding:
    libc, version = platform.libc_ver()
    if libc == "glibc":
        return Finding("ok", "C library", f"{libc} {version}")
    hint = "Monarch needs glibc 2.17 or later"
    return Finding("problem", "C library", libc or "unknown", hint)


def _library() -> Finding:
    what = "preload library"
    if not LIBRARY.exists():
        return Finding("problem", what, f"{LIBRARY} is missing", "install Monarch again")
    if any(letter in str(LIBRARY) for letter in " :"):
        hint = (
            "spaces and colons separate names in LD_PRELOAD; install Monarch at a path without them"
        )
        return Finding("problem", what, f"{LIBRARY} contains a space or a colon", hint)
    program = shutil.which("true") or "/bin/true"
    environment = {"LD_PRELOAD": str(LIBRARY)}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0 and not done.stderr:
        return Finding("ok", what, str(LIBRARY))
    problem = done.stderr.strip() or (
        f"a program that loads the library ended with status {done.returncode}"
    )
    hint = "make the library readable for all users on all nodes, or install Monarch there again"
    return Finding("problem", what, problem, hint)


def _in_the_way(path: Path, what: str, hint: str) -> Finding | None:
    """Returns a finding if the directory `path` exists and is not private to this user; otherwise
    None. The daemon requires a private directory."""
    try:
        why = why_not_private(path)
    except OSError:
        return None  # the path does not exist
    return Finding("problem", what, f"{path} {why}", hint) if why else None


def _shared_memory() -> Finding:
    root, what = shm_root(), "shared memory"
    directory = root / f"monarch-{os.geteuid()}"
    if found := _in_the_way(directory, what, "set MONARCH_SHM to a directory of yours"):
        return found
    try:
        free = shutil.disk_usage(root).free
    except OSError as error:
        return Finding("problem", what, f"{root}: {error.strerror}", "set MONARCH_SHM")
    needed = least_shm_bytes()
    # A catalog never has more than MONARCH_MAX_FILES files, even if shared memory has more room.
    files = min(max(0, free - needed) // CATALOG_BYTES_PER_FILE, lib.MONARCH_MAX_FILES)
    text = f"{root}: {format_size(free)} free, room for the catalog of {files:,} files"
    if free >= needed:
        return Finding("ok", what, text)
    least = format_size(needed)
    hint = f"make it larger (at least {least}; docker: --shm-size), or set MONARCH_SHM"
    return Finding("problem", what, text, hint)


def _places(config: Config) -> Iterator[Finding]:
    """Yields a finding for each tier directory that another user owns or can replace."""
    for tier in (*config.tiers, *([config.staging] if config.staging else [])):
        what = f"tier ({tier.kind})"
        for doubt in doubts(tier.mount_point):
            level = "problem" if doubt.is_certain else "warning"
            yield Finding(level, what, doubt.text, doubt.hint)
        root = tier_root(tier.mount_point)
        if (found := _in_the_way(root, what, "choose another mount_point")) is not None:
            yield found


def occupied_by_others(tier: TierConfig) -> str:
    """If a tier's file system has less room for copies than the tier's quota, returns a sentence
    that says so; otherwise "". Works with and without a running daemon."""
    place, quota = tier.mount_point, tier.quota_bytes
    # Add up the sizes of the existing copies only if the free space alone is smaller than the
    # quota, because this sum takes a long time for many copies.
    return shortage(place, quota, 0) and shortage(place, quota, occupied_bytes(tier_root(place)))


def _tiers(config: Config) -> Iterator[Finding]:
    for tier in config.tiers:
        free = shutil.disk_usage(tier.mount_point).free
        text = (
            f"{tier.mount_point}: quota {format_size(tier.quota_bytes)}, {format_size(free)} free"
        )
        room = memory.available_bytes() if tier.kind == "ram" else tier.quota_bytes
        hint = occupied_by_others(tier)
        if not hint and room < tier.quota_bytes:
            hint = (
                f"copies get at most {format_size(room)} now, even if the quota is larger: the"
                " memory limit (cgroup) leaves no more room"
            )
        if hint:
            yield Finding("warning", f"tier ({tier.kind})", text, hint)
        elif "huge=always" in mount_options(tier.mount_point):
            hint = "mount it with huge=within_size; with huge=always a small file takes 2 MiB"
            yield Finding("warning", f"tier ({tier.kind})", text, hint)
        else:
            yield Finding("ok", f"tier ({tier.kind})", text)


def _manifests(config: Config) -> Iterator[Finding]:
    """Yields a finding for each damaged manifest (the list of the copies in a persistent tier).
    Leaves out tiers that a daemon uses now. A damaged manifest is only a warning, because a daemon
    can start in spite of the damage."""
    for tier in config.tiers:
        root = tier_root(tier.mount_point)
        path = root / "manifest.sqlite"
        if not (tier.persistent and os.path.lexists(path)) or holder_of(root / "lock") is not None:
            continue
        try:
            manifest = Manifest(path)
            manifest.check()
            manifest.load()  # raises TierError if a column is malformed
            manifest.close()
        except TierError as error:
            yield Finding("warning", f"tier ({tier.kind})", str(error))


def _sources(config: Config) -> Iterator[Finding]:
    for source in config.sources:
        if os.access(source.path, os.R_OK | os.X_OK):
            yield Finding("ok", "source", str(source.path))
        else:
            hint = "ask its owner for read and search permission"
            yield Finding("problem", "source", f"{source.path} is not readable", hint)


def _many_nodes() -> Finding:
    """Returns a finding that says whether `mpiexec monarch start` can start daemons on several
    nodes."""
    what = "many nodes"
    if importlib.util.find_spec("mpi4py") is None:
        text = "mpi4py is not installed, so this node works alone (pip install mpi4py mpich)"
        return Finding("ok", what, text)
    hint = "load the cluster's MPI (module load), or pip install mpi4py mpich"
    command = [sys.executable, "-c", MPI_VERSION, str(LIBRARY.parents[1])]
    try:  # run the program in "/", so that it imports no module of the working directory
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MPI_S, cwd="/"
        )
    except subprocess.TimeoutExpired:
        return Finding("warning", what, f"MPI did not load within {MPI_S} s", hint)
    if done.returncode == 0:
        return Finding("ok", what, f"mpi4py finds {' '.join(done.stdout.split())}")
    why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return Finding("warning", what, f"mpi4py does not load: {why}", hint)


def _address(config: Config) -> Iterator[Finding]:
    try:
        address = serving_address(config)
    except MonarchError as error:
        yield Finding("problem", "address", str(error))
        return
    text = f"other nodes reach this one at {address}"
    if is_loopback(address):
        text = f"{address}, which other nodes cannot reach; for several nodes, name another one"
        text += " under peers: {interface: ...}"
    yield Finding("ok", "address", text)


def _libcrypto(config: Config) -> Iterator[Finding]:
    """Yields a finding if the library libcrypto is missing and a daemon may need it. A daemon needs
    libcrypto only if it works together with daemons of other nodes."""
    names_peers = config.peers != PeersConfig()
    may_join = names_peers or importlib.util.find_spec("mpi4py") is not None
    if may_join and not has_libcrypto():
        level = "problem" if names_peers else "warning"
        yield Finding(level, "libcrypto", NO_LIBCRYPTO, LIBCRYPTO_HINT)


def _daemon(config: Config) -> Iterator[Finding]:
    connection = DaemonConnection(SessionDir.of(config.file))
    if not connection.runs():
        yield from _no_daemon(config, connection)
        return
    report = connection.ask("status")
    yield Finding("ok", "daemon", f"process {report['pid']} serves")
    if not connection.ask("where")["is_current"]:
        yield Finding("warning", "daemon", HAS_CHANGED.format(config.file))
    for tier in report["tiers"]:
        if not tier["usable"]:
            yield Finding("problem", "tier", tier["why"])
        if tier["lost"]:
            yield Finding("warning", "tier", tier["lost"])
    if report["catalog_full"]:
        hint = "make /dev/shm larger, or narrow the sources with include and exclude"
        yield Finding("warning", "catalog", "shared memory is full: some files get no copy", hint)


def _no_daemon(config: Config, connection: DaemonConnection) -> Iterator[Finding]:
    """Yields findings that say whether `monarch run` could start a daemon. Call this only if no
    daemon answers."""
    if (holder := holder_of(connection.session.lock)) is not None:
        found = f"{holder} does not answer: it is starting, ending or suspended"
        hint = "run doctor again; if the process still does not answer, end it"
        yield Finding("problem", "daemon", found, hint)
        return
    held = [held_elsewhere(tier.mount_point, config.file) for tier in config.tiers]
    for text in filter(None, held):
        yield Finding("problem" if all(held) else "warning", "tier", text)
    if all(held):
        found = "no daemon runs, and none can be started: no tier can be used"
        yield Finding("problem", "daemon", found, "free a tier, or add one to 'hierarchy'")
    elif connection.serves():
        found = "the last daemon was killed or crashed (see `monarch logs`)"
        yield Finding("problem", "daemon", found, f"start one with monarch start -c {config.file}")
    else:
        yield Finding("note", "daemon", NONE_RUNS)


def _container(config: Config) -> Iterator[Finding]:
    """Yields one finding for the case that the job runs in a container and the daemon on the host.
    The finding lists the paths at which the container and the host must see the same files."""
    files = [Path(os.path.abspath(file)) for file in config.files]
    places = [shm_root(), LIBRARY.parent, *files]
    places += [source.path for source in config.sources]
    places += [tier.mount_point for tier in config.tiers]
    shared = " ".join(dict.fromkeys(map(str, places)))
    text = (
        "if the job runs in a container and the daemon outside, run both as the same user, and"
        " mount these at the same paths"
    )
    if not container() or DaemonConnection(SessionDir.of(config.file)).runs():
        yield Finding("note", "containers", f"{text}: {shared}")
        return
    silent = hanging(places)
    answering = [each for each in dict.fromkeys(places) if each not in silent]
    lacking = " ".join(str(each) for each in answering if is_of_the_image(each))
    text = "a daemon outside this container cannot be reached"
    hint = f"mount {shared} of the host at the same paths, or run the daemon inside"
    yield Finding("note", "containers", f"{text}; paths not mounted: {lacking or 'none'}", hint)


def _limits() -> Iterator[Finding]:
    """Yields findings on resource limits that are too low for the daemon, or for programs that load
    the preload library."""
    segments = sum(ffi.sizeof(f"struct monarch_{name}") for name in ("clients", "control", "fills"))
    space, most = resource.getrlimit(resource.RLIMIT_AS)
    if resource.RLIM_INFINITY != most < LEAST_ADDRESSES:
        text = f"address space limited to {format_size(most)}"
        hint = f"run ulimit -v unlimited; a daemon needs {format_size(LEAST_ADDRESSES)}"
        yield Finding("problem", "limits", text, hint)
    elif space != resource.RLIM_INFINITY and space < 32 * segments:
        text = f"address space limited to {format_size(space)}"
        hint = f"run ulimit -v unlimited; the shared segments alone take {format_size(segments)}"
        yield Finding("warning", "limits", text, hint)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < MIN_DESCRIPTORS:
        text = f"at most {files} open files"
        yield Finding(
            "warning", "limits", text, f"raise the limit: ulimit -n {MIN_DESCRIPTORS} or more"
        )
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        hint = "raise the limit: ulimit -f unlimited; no daemon starts if it is too low"
        yield Finding("warning", "limits", f"files of at most {format_size(size)}", hint)


def _environment() -> Iterator[Finding]:
    preload = os.environ.get("MONARCH_LEFT") or os.environ.get("LD_PRELOAD", "")
    for path in filter(None, preload.replace(":", " ").split()):
        if Path(path).name == LIBRARY.name and Path(path) != LIBRARY:
            hint = "use the library and the monarch command of one installation"
            yield Finding("warning", "LD_PRELOAD", f"names another libmonarch.so: {path}", hint)


def examine(config_file: Path | None) -> Iterator[Finding]:
    """Examines the machine and the configuration. Yields each finding as soon as it is known.

    config_file : the configuration; None to examine only the machine
    """
    for part in (_machine, _libc, _library, _shared_memory):
        yield part()
    yield from _limits()
    yield from _environment()
    yield _many_nodes()
    if config_file is None:
        hint = "name one with -c to check its tiers and sources"
        yield Finding("warning", "configuration", "none is named", hint)
        yield from switches(None)
    else:
        yield from _configured(config_file)


def _configured(config_file: Path) -> Iterator[Finding]:
    config, can_start = None, True
    parts: tuple[Callable[[Config], Iterator[Finding]], ...] = (
        _sources,
        named_files,
        *WITHOUT_SOURCES,
    )
    try:
        if read_layers(config_file).lack_sources:
            config, parts = load_config(config_file, with_sources=False), WITHOUT_SOURCES
            can_start = False
            yield Finding("warning", "configuration", f"{config.file} names no dataset", NAME_ONE)
        else:
            config = load_config(config_file)
            yield Finding("ok", "configuration", ", ".join(map(str, config.files)))
    except MonarchError as error:
        yield Finding("problem", "configuration", str(error))
        can_start = False
        # Examine the tiers even if a source does not exist or hangs.
        with suppress(MonarchError):
            config, parts = load_config(config_file, with_sources=False), WITHOUT_SOURCES
    if config is not None:
        for text in config.warnings:
            yield Finding("warning", "configuration", text)
        for part in parts:
            yield from (f for f in part(config) if can_start or f.found != NONE_RUNS)
    yield from switches(config)


WITHOUT_SOURCES = (_tiers, _manifests, _places, _container, _address, _libcrypto, _daemon)
