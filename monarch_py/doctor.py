"""`monarch doctor`: what works on this machine, what does not, and the mend."""

import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monarch_py import memory
from monarch_py.bringup.address import is_loopback, serving_address
from monarch_py.client import Client
from monarch_py.config import SYSTEM_SWITCH_FILE, Config, load_config, mount_options
from monarch_py.errors import MonarchError
from monarch_py.native import LIBRARY, ffi
from monarch_py.session import SessionDir, shm_root
from monarch_py.units import MIB, format_size

__all__ = ["Finding", "examine"]

# Shared memory for a catalog: 192 bytes and the path a file, and the clients' segment.
CATALOG_BYTES_PER_FILE = 288
# Of the first one, whatever is in it.
FIRST_CATALOG_BYTES = MIB
# The daemon has two for each block that it copies, and a job's locks may take one a file.
MIN_DESCRIPTORS = 256
# Loading MPI looks for fabrics, on some machines for long.
MPI_S = 30
# In a process of its own: what a broken MPI does to it is told.
MPI_VERSION = """
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
print(MPI.Get_library_version().split("\\n")[0].strip("\\0"))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """level : 'ok', 'warning' or 'problem';  mend : what to do, '' when nothing."""

    level: str
    what: str
    found: str
    mend: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _machine() -> Iterator[Finding]:
    machine = platform.machine()
    if machine in ("x86_64", "aarch64"):
        yield Finding("ok", "machine", machine)
    else:
        yield Finding("problem", "machine", machine, "Monarch runs on x86-64 and aarch64")
    libc, version = platform.libc_ver()
    if libc == "glibc":
        yield Finding("ok", "C library", f"{libc} {version}")
    else:
        yield Finding(
            "problem", "C library", libc or "unknown", "Monarch needs glibc 2.17 or later"
        )


def _library() -> Iterator[Finding]:
    if not LIBRARY.exists():
        yield Finding(
            "problem", "preload library", f"{LIBRARY} is missing", "install Monarch again"
        )
        return
    if any(letter in str(LIBRARY) for letter in " :"):
        mend = "LD_PRELOAD separates its names by these: install where the path has none"
        yield Finding("problem", "preload library", f"{LIBRARY} holds a space or a colon", mend)
        return
    program = shutil.which("true") or "/bin/true"
    environment = {"LD_PRELOAD": str(LIBRARY)}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0 and not done.stderr:
        yield Finding("ok", "preload library", str(LIBRARY))
    else:
        problem = done.stderr.strip() or f"a program under it ended with {done.returncode}"
        mend = "give other users and nodes read access to it, or install it where they have"
        yield Finding("problem", "preload library", problem, mend)


def _shared_memory() -> Iterator[Finding]:
    root = shm_root()
    try:
        system = os.statvfs(root)
    except OSError as error:
        yield Finding("problem", "shared memory", f"{root}: {error.strerror}", "set MONARCH_SHM")
        return
    free = system.f_bavail * system.f_frsize
    shared = ("struct monarch_clients", "struct monarch_fills", "struct monarch_control")
    # In whole MiB, as it is said.
    needed = -(-(sum(map(ffi.sizeof, shared)) + FIRST_CATALOG_BYTES) // MIB) * MIB
    files = max(0, free - needed) // CATALOG_BYTES_PER_FILE
    text = f"{root}: {format_size(free)} free, room for the catalog of {files:,} files"
    if free < needed:
        least = format_size(needed)
        mend = f"make it larger (at least {least}; docker: --shm-size), or set MONARCH_SHM"
        yield Finding("problem", "shared memory", text, mend)
    else:
        yield Finding("ok", "shared memory", text)


def _switches(config: Config | None) -> Iterator[Finding]:
    files = [SYSTEM_SWITCH_FILE, config.switch_file if config else None]
    for path in files:
        if path is not None and path.exists():
            yield Finding("warning", "switch", f"{path} turns everything off", "remove it")
    if os.environ.get("MONARCH_DISABLE", "0") not in ("", "0"):
        yield Finding("warning", "switch", "MONARCH_DISABLE is set", "unset it")


def _tiers(config: Config) -> Iterator[Finding]:
    for tier in config.tiers:
        system = os.statvfs(tier.mount_point)
        free = system.f_bavail * system.f_frsize
        text = (
            f"{tier.mount_point}: quota {format_size(tier.quota_bytes)}, {format_size(free)} free"
        )
        room = min(free, memory.available_bytes()) if tier.kind == "ram" else free
        if room < tier.quota_bytes:
            limit = "memory (cgroup)" if room < free else "disk"
            mend = f"the {limit} leaves {format_size(room)} now; the quota is kept to that"
            yield Finding("warning", f"tier ({tier.kind})", text, mend)
        elif "huge=always" in mount_options(tier.mount_point):
            mend = "mount it with huge=within_size; with huge=always a small file takes 2 MiB"
            yield Finding("warning", f"tier ({tier.kind})", text, mend)
        else:
            yield Finding("ok", f"tier ({tier.kind})", text)


def _sources(config: Config) -> Iterator[Finding]:
    for source in config.sources:
        if os.access(source.path, os.R_OK | os.X_OK):
            yield Finding("ok", "source", str(source.path))
        else:
            mend = "ask its owner for read and search permission"
            yield Finding("problem", "source", f"{source.path} is not readable", mend)


def _many_nodes() -> Iterator[Finding]:
    """Whether `mpiexec monarch start` can bring up daemons together."""
    if importlib.util.find_spec("mpi4py") is None:
        text = "mpi4py is not there: this node works alone"
        yield Finding("ok", "many nodes", f"{text} (pip install mpi4py mpich)")
        return
    mend = "mpi4py needs the cluster's MPI (module load), or: pip install mpi4py mpich"
    command = [sys.executable, "-c", MPI_VERSION]
    try:  # a module of the working directory is not meant
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MPI_S, cwd="/"
        )
    except subprocess.TimeoutExpired:
        yield Finding("warning", "many nodes", f"MPI was not loaded in {MPI_S} s", mend)
        return
    if done.returncode == 0:
        yield Finding("ok", "many nodes", f"mpi4py finds {' '.join(done.stdout.split())}")
    else:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        yield Finding("warning", "many nodes", f"mpi4py does not load: {why}", mend)


def _address(config: Config) -> Iterator[Finding]:
    try:
        address = serving_address(config)
    except MonarchError as error:
        yield Finding("problem", "address", str(error))
        return
    if is_loopback(address):
        mend = "with several nodes, name one under peers: {interface: ...}"
        yield Finding("ok", "address", f"{address}, which only this node reaches; {mend}")
    else:
        yield Finding("ok", "address", f"other nodes reach this one at {address}")


def _daemon(config: Config) -> Iterator[Finding]:
    client = Client(SessionDir.of(config.file))
    if not client.runs():
        level = "problem" if client.serves() else "warning"
        found = "it left its segments and does not answer" if client.serves() else "none runs"
        yield Finding(level, "daemon", found, f"monarch start -c {config.file}")
        return
    report = client.ask("status")
    yield Finding("ok", "daemon", f"process {report['pid']} serves")
    for tier in report["tiers"]:
        if not tier["usable"]:
            yield Finding("problem", "tier", tier["why"], "stop the other daemon or mend the tier")
    if report["catalog_full"]:
        mend = "make /dev/shm larger, or narrow the sources with include and exclude"
        yield Finding("warning", "catalog", "shared memory is full; some files are uncached", mend)


def _container(config: Config) -> Iterator[Finding]:
    """What a container must share, for a job inside and a daemon outside."""
    places = [shm_root(), LIBRARY.parent, config.file]
    places += [source.path for source in config.sources]
    places += [tier.mount_point for tier in config.tiers]
    shared = " ".join(dict.fromkeys(str(place) for place in places))
    yield Finding("ok", "containers", f"bind at the same paths, as the same user: {shared}")


def _limits() -> Iterator[Finding]:
    """Limits under which programs would go without Monarch, or the daemon without room."""
    segments = sum(ffi.sizeof(f"struct monarch_{name}") for name in ("clients", "control", "fills"))
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space < 32 * segments:
        text = f"address space limited to {format_size(space)}"
        mend = f"ulimit -v unlimited: the segments alone take {format_size(segments)}"
        yield Finding("warning", "limits", text, mend)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < MIN_DESCRIPTORS:
        text = f"{files} open files"
        yield Finding("warning", "limits", text, f"ulimit -n {MIN_DESCRIPTORS}, or more")


def _environment() -> Iterator[Finding]:
    preload = os.environ.get("MONARCH_LEFT") or os.environ.get("LD_PRELOAD", "")
    for path in filter(None, preload.replace(":", " ").split()):
        if Path(path).name == LIBRARY.name and Path(path) != LIBRARY:
            mend = "use the library and the monarch command of one installation"
            yield Finding("warning", "LD_PRELOAD", f"names another libmonarch.so: {path}", mend)


def examine(config_file: Path | None) -> list[Finding]:
    """Everything that can be looked at; without a configuration, the machine alone."""
    findings = [*_machine(), *_library(), *_shared_memory(), *_limits(), *_environment()]
    findings += _many_nodes()
    config = None
    if config_file is None:
        mend = "name one with -c to have its tiers and sources examined"
        findings.append(Finding("warning", "configuration", "none is named", mend))
    else:
        try:
            config = load_config(config_file)
        except MonarchError as error:
            findings.append(Finding("problem", "configuration", str(error)))
        else:
            findings.append(Finding("ok", "configuration", str(config.file)))
            findings += [Finding("warning", "configuration", text) for text in config.warnings]
            findings += [*_sources(config), *_tiers(config), *_container(config)]
            findings += [*_address(config), *_daemon(config)]
    return findings + list(_switches(config))
