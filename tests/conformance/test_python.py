"""Every regression test of the running CPython interpreter has the same outcome with and without
the library.

The test modules, and the archives and texts that they read, are in the source and have copies. The
working directory and the directory for temporary files are in the source too, next to files that
are being filled.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from conformance.ground import Ground
from conformance.outcomes import Outcomes, read_junit, unlike
from support import draws

FAST = """
    test_posix test_fileio test_file test_mmap test_largefile test_fcntl test_shutil test_tempfile
    test_glob test_os test_genericpath test_posixpath test_stat
"""
# Slow tests of the modules in FAST. They run only with --long. Most of them are slow because they
# start Python processes. Other tests call the same functions.
SLOW = """
    *_many_open_files test_fd_leak test_register_at_fork ForkTests.* *_on_shutdown*
    test_unpack_archive_* test_warnings_on_cleanup .SpawnTests.* .PidTests.* .TestPosixSpawnP.*
    PosixCommonTest.test_import test_find_does_not_access_beyond_buffer
"""
# Directories of the package `test` that the modules of FAST need.
NEEDED = ("libregrtest", "support")
LONG = """
    test_bufio test_pathlib test_io test_tarfile test_zipfile test_subprocess
    test_multiprocessing_fork test_multiprocessing_spawn test_multiprocessing_forkserver
    test_concurrent_futures test_fileinput test_filecmp test_linecache test_gzip test_bz2
    test_lzma test_dbm_dumb test_shelve test_mailbox test_importlib test_zipimport test_import
    test_runpy test_compileall test_py_compile test_sqlite3 test_dbm test_dbm_gnu test_dbm_ndbm
    test_pickle test_codecs test_tokenize test_email test_netrc test_configparser test_logging
    test_select test_poll test_epoll test_selectors test_threading test_fork1 test_wait3
    test_wait4 test_pty test_resource test_venv test_site test_cmd_line test_cmd_line_script
    test_faulthandler test_tracemalloc test_unicode_file test_unicode_file_functions
    test_hashlib test_wave test_array test_memoryio test_univnewlines
"""
# The daemon fills 32 files per second, and must be busy until the end of the run under the library.
# BALLAST: the least number of files to fill, enough for a minute. BALLAST_A_SECOND: the number of
# files for each second that the run without the library took. These files keep the daemon busy
# three times as long as that run took, because the run under the library may be slower on a busy
# machine.
BALLAST = 2000
BALLAST_A_SECOND = 32 * 3
# The packages test_multiprocessing_* only select tests of the module _test_multiprocessing. Some
# installations lack these packages. `plant` then writes them, with the texts LOAD and TAKE.
STARTS = ("fork", "spawn", "forkserver")
TAKE = """\
from test._test_multiprocessing import install_tests_in_module_dict
install_tests_in_module_dict(globals(), {!r})
"""
LOAD = """\
from test.support import load_package_tests
def load_tests(*args):
    return load_package_tests(__path__[0], *args)
"""


def plant(root: Path, others: bool) -> None:
    """Copies the interpreter's regression tests to lib/test below `root`.

    others : whether to copy all tests instead of only those in FAST
    """
    spec = find_spec("test.regrtest")
    # Every Python has the package `test`, but a Linux distribution may have moved most of its
    # modules to a separate package.
    if spec is None or spec.origin is None or not find_spec("test.test_posix"):
        debian = f"libpython{sys.version_info.major}.{sys.version_info.minor}-testsuite"
        pytest.skip(f"this interpreter has no regression tests: install {debian}")
    package, tests = Path(spec.origin).parent, root / "lib/test"
    fast = {f"{name}.py" for name in FAST.split()}

    def is_apart(path: Path) -> bool:
        is_test = path.name.startswith("test_") and path.name not in fast
        return is_test or (path.is_dir() and path.name not in NEEDED)

    def ignored(folder: str, names: list[str]) -> list[str]:
        is_top = not others and Path(folder) == package
        return [
            name
            for name in names
            if name == "__pycache__" or (is_top and is_apart(Path(folder, name)))
        ]

    shutil.copytree(package, tests, symlinks=True, ignore=ignored)
    for start in STARTS if others else ():
        package = tests / f"test_multiprocessing_{start}"
        if not package.exists() and not package.with_suffix(".py").exists():
            package.mkdir()
            (package / "__init__.py").write_text(LOAD)
            (package / "test_all.py").write_text(TAKE.format(start))


@pytest.fixture(scope="module")
def ground(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Ground]:
    planted = partial(plant, others=request.config.getoption("--long"))
    with Ground(tmp_path_factory.mktemp("python"), planted) as ground:
        yield ground


def outcomes(ground: Ground, library: bool, *words: str) -> Outcomes:
    """Runs the tests and returns how each of them ended."""
    root = ground.root(library)
    report = root / "outcomes.xml"
    run = ground.run(
        # Do not use -j, because it would start a process for each test module. For most modules,
        # the start of a process takes as long as the tests.
        [sys.executable, "-m", "test", "--junit-xml", report, "--tempdir", root / "tmp", *words],
        library=library,
        PYTHONPATH=str(root / "lib"),
    )
    ground.sweep(library)
    if not report.exists() and re.search("NO TESTS RAN|Total tests: run=0", run.stdout):
        pytest.skip(next(line for line in run.stdout.splitlines() if "skipped -- " in line))
    assert report.exists(), f"{run.stdout}\n{run.stderr}"
    found = read_junit(report, root)
    report.unlink()
    return found


def compare(ground: Ground, *words: str) -> None:
    started = time.monotonic()
    without = outcomes(ground, False, *words)
    took = time.monotonic() - started
    if "passed" not in without.values():
        pytest.skip(f"{words[-1]} has nothing to run here: {set(without.values())}")
    ground.load(max(BALLAST, round(took * BALLAST_A_SECOND)))
    before = ground.hits()
    library = outcomes(ground, True, *words)
    assert unlike(without, library) == []
    assert ground.hits() > before, "no copy was read"
    assert ground.is_filling(), "the fills ended before the tests did"


def test_of_files_and_names(ground: Ground) -> None:
    ignored = draws.sized([f"--ignore=*{name}" for name in SLOW.split()], [])
    compare(ground, *ignored, *FAST.split())


@pytest.mark.long
@pytest.mark.parametrize("name", LONG.split())
def test_of(ground: Ground, name: str) -> None:
    if not list((ground.source / "lib/test").glob(f"{name}*")):
        pytest.skip(f"this interpreter's regression tests have no {name}")
    compare(ground, name)
    ground.unload()


@pytest.mark.long
def test_of_files_larger_than_two_gib(ground: Ground) -> None:
    compare(ground, "-u", "largefile", "test_largefile", "test_mmap", "test_zipfile64")
    ground.unload()
