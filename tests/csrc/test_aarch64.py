"""Tests the C sources on aarch64: a cross compiler compiles them, and an emulator runs them.

The daemon is built for the host's architecture. The programs for aarch64 read the files that this
daemon serves. This works because shared memory has the same layout on both architectures.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from csrc.building import (
    CSRC,
    HERE,
    NATIVE,
    PRELOAD,
    PRELOAD_COMPILED,
    build,
    build_program,
    compile_all,
)
from csrc.sanitizing import CSRC_FLAGS
from support import draws
from support.elf import OLDEST_GLIBC, exported, newest_glibc
from support.mounts import Mounts
from support.session import MIB, Session

from monarch_py.native import LIBRARY, JobStatus

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# The Debian packages of the compiler and the emulator, and the directory of the libraries for
# aarch64.
PACKAGES = {COMPILER: "gcc-aarch64-linux-gnu", EMULATOR: "qemu-user"}
SYSROOT = Path("/usr/aarch64-linux-gnu")
# The largest page size [bytes]. Kernels for aarch64 are built for pages of 4, 16 or 64 KiB.
LARGEST_PAGE = 65536
SEED = "20220822"
FILES = 20
READERS = sorted((HERE.parent / "programs").glob("readers*.c"))
# The cases of the program `readers` that are run. None of them starts another program, because the
# emulator could not run that program.
READ = draws.sized(
    "freopen getline openat pread vectors mmap_private sendfile xstat statx fork_inherit listings "
    "close_range threads",
    "fopen fopen64 freopen fdopen getline open open_2 openat pread vectors mmap_private "
    "mmap_shared fadvise sendfile copy_file_range splice stat xstat fstatat statx fork_inherit "
    "listings close_range threads",
)
OPENS = draws.sized(200, 500)  # the programs must make more opens than this


@dataclass(frozen=True)
class Machine:
    """Programs for aarch64, in one directory."""

    directory: Path

    def path(self, name: str) -> Path:
        return self.directory / name

    def command(self, name: str, *words: str | Path, options: tuple[str, ...] = ()) -> list[str]:
        emulator = [EMULATOR, "-L", str(SYSROOT), *options]
        return [*emulator, str(self.path(name)), *(str(word) for word in words)]

    def check(self, name: str, *words: str | Path) -> str:
        done = subprocess.run(
            self.command(name, *words), capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    for tool, package in PACKAGES.items():
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (package {package})")
    return Machine(tmp_path_factory.mktemp("aarch64"))


@pytest.fixture(scope="module")
def objects(machine: Machine) -> dict[str, Path]:
    """Returns name of a file of csrc -> path of the object that was compiled from the file."""
    names = sorted({*NATIVE, *PRELOAD})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", COMPILER)
        flags = [*CSRC_FLAGS, "-O1", "-Werror", "-fPIC", "-mno-outline-atomics"]
        made = compile_all(machine.directory, [CSRC / name for name in names], flags)
    return dict(zip(names, made, strict=True))


@pytest.fixture(scope="module")
def library(machine: Machine, objects: dict[str, Path]) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", COMPILER)
        library = machine.path("libmonarch.so")
        build(library, [objects[name] for name in PRELOAD], PRELOAD_COMPILED)
        build_program(machine.path("readers"), *READERS, flags=["-pthread"])
    return library


def build_stress(
    machine: Machine, objects: dict[str, Path], name: str, files: Iterable[str], *flags: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", COMPILER)
        needed = [objects[file] for file in files]
        source = HERE / f"stress_{name}.c"
        build_program(machine.path(name), source, *needed, flags=[*flags, "-pthread"])


# --- the library ------------------------------------------------------------------------------


def test_it_has_the_functions_of_this_machines_library(library: Path) -> None:
    assert newest_glibc(library) <= OLDEST_GLIBC
    assert exported(library) == exported(LIBRARY)


@pytest.fixture(scope="module")
def session(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    directory = tmp_path_factory.mktemp("session")
    source = directory / "source"
    (source / "read" / "few").mkdir(parents=True)
    for i in range(FILES):
        (source / "read" / "few" / f"f_00{i}").write_bytes(bytes(range(i, 256)) * 97 * i)
    # With so many files, the catalog is larger than a huge page.
    for i in range(12_000):
        (source / f"{i}").touch()
    with Session(directory, source, preload=library) as session:
        session.start().wait_scanned()
        yield session


def preloaded(session: Session) -> tuple[str, ...]:
    """Returns the emulator's options that load the library into the program, and not into the
    emulator itself."""
    return ("-E", f"LD_PRELOAD={session.preload}", "-E", f"MONARCH_CONFIG={session.config}")


def test_programs_read_what_they_read_without_it(machine: Machine, session: Session) -> None:
    def transcript(name: str, *options: str) -> str:
        command = machine.command("readers", name, session.source / "read", options=options)
        done = session.run(command, preload=False)
        assert done.returncode == 0 and not done.stderr, (name, done.stderr)
        return done.stdout

    plain = {name: transcript(name) for name in READ.split()}
    session.forget()
    for fills in (FILES, 0):
        before = session.totals()
        for name, expected in plain.items():
            assert transcript(name, *preloaded(session)) == expected, name
        session.wait_idle()
        after = session.totals()
        assert after["fills"] - before["fills"] == fills
    opens, hits = (after[key] - before[key] for key in ("opens", "hits"))
    assert hits == opens > OPENS


def test_it_assumes_no_size_of_a_page(machine: Machine, session: Session) -> None:
    """Every address at which the library unmaps, protects or replaces memory is a multiple of the
    page size, even if pages have 64 KiB."""
    options = ("-strace", "-p", str(LARGEST_PAGE), *preloaded(session))
    command = machine.command("readers", "open", session.source / "read", options=options)
    done = session.run(command, preload=False)
    assert done.returncode == 0, done.stderr
    call = r"(?:munmap|mprotect|madvise)\(0x(\w+),|mmap\(0x(\w+),.*MAP_FIXED"
    found = [int(one or other, 16) for one, other in re.findall(call, done.stderr)]
    assert re.search(r"mmap\(.*MAP_SHARED\|MAP_FIXED", done.stderr), "no catalog of a huge page"
    assert [hex(at) for at in found if at % LARGEST_PAGE] == []


# --- the daemon's part --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", ["hashes", "headers", "lookups", pytest.param("paths", marks=pytest.mark.long)]
)
def test_random_input(
    machine: Machine, objects: dict[str, Path], what: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    files = {*NATIVE, *PRELOAD} - {"preload/session/segments.c"}
    build_stress(machine, objects, "segments", files, "-DINSIDE")
    assert int(machine.check("segments", what, source, SEED)), "nothing was found"


@pytest.mark.long
def test_engine_scanner_and_catalog(
    machine: Machine, objects: dict[str, Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    build_stress(machine, objects, "engine", NATIVE)
    with Mounts(tmp_path) as mounts:
        said = machine.check("engine", source, mounts.tmpfs("tier", 3 * MIB), "2", "8")
    counts = [int(word) for word in said.split()]
    assert all(counts[: len(JobStatus)])
    assert counts[-1] > 100, "the lookup threads found too few copies"


@pytest.mark.long
def test_no_work_waits_for_a_thread_that_sleeps(
    machine: Machine, objects: dict[str, Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    build_stress(machine, objects, "wakes", NATIVE)
    with Mounts(tmp_path) as mounts:
        said = machine.check("wakes", source, mounts.tmpfs("tier", 16 * MIB), SEED, "400", "8000")
    assert min(map(int, said.split())) > 500
