"""Runs the library, linked into programs, and the C code of the daemon under AddressSanitizer,
UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import HERE, NATIVE, PRELOAD, SETUP
from csrc.sanitizing import (
    OPTIONS,
    RUN_LIMIT_S,
    SANITIZERS,
    Built,
    Program,
    assert_clean,
    build_sanitized,
    with_names,
)
from support import draws
from support.mounts import Mounts
from support.session import MIB, Session, wait_until

from monarch_py.native import JobStatus

# The stress programs, and the files of csrc that each needs.
PROGRAMS = {
    name: Program(HERE / f"stress_{name}.c", files, flags)
    for name, files, flags in (
        ("planted", SETUP["SHARED"], ()),
        ("reader", PRELOAD, ()),
        # The program includes wait.c itself, with another WHOLE_BYTES, so that mmap does not wait.
        ("mappings", [file for file in PRELOAD if file != "preload/fill/wait.c"], ["-DINSIDE"]),
        ("engine", NATIVE, ()),
        ("wakes", NATIVE, ()),
        # The program includes segments.c itself, to reach the static functions that check a
        # segment.
        (
            "segments",
            sorted({*PRELOAD, *NATIVE} - {"preload/session/segments.c"}),
            ["-DINSIDE"],
        ),
    )
}
# Programs that are run with only one sanitizer, because the other one can find no bug in them.
ONLY = {"segments": "address", "wakes": "thread"}
SEED = 20220822


@pytest.fixture(scope="module", params=SANITIZERS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    name = request.param
    programs = {one: PROGRAMS[one] for one in PROGRAMS if ONLY.get(one, name) == name}
    return build_sanitized(name, tmp_path_factory.mktemp(f"sanitizer_{name}"), programs)


# --- the sanitizers see bugs -----------------------------------------------------------------

PLANTED = {
    "address,undefined": {
        "heap": "AddressSanitizer: heap-buffer-overflow",
        "heap_in_csrc": r"heap-buffer-overflow .*/csrc/shared/xxh3\.c",
        "leak": "LeakSanitizer: detected memory leaks",
        "undefined": r"stress_planted\.c.*runtime error: signed integer overflow",
        "undefined_in_csrc": r"csrc/shared/catalog\.[ch].*runtime error: .* misaligned address",
    },
    "thread": {
        "race": r"ThreadSanitizer: data race .*stress_planted\.c",
        "race_in_csrc": r"ThreadSanitizer: data race .*xxh3\.c",
    },
}


def test_a_planted_bug_is_seen(built: Built) -> None:
    for bug, expected in PLANTED[built.sanitizer].items():
        done = built.run("planted", bug)
        said = with_names(done.stderr, built.program("planted"))
        assert re.search(expected, said), (bug, said)
        with pytest.raises(AssertionError, match="status"):
            assert_clean(done.returncode, done.stderr, built.program("planted"))
        assert done.returncode != 0
    built.check("planted", "none")


# --- the library in a program that reads -----------------------------------------------------

FILES, NEW_FILES = draws.sized((400, 80), (1500, 150))
# The readers' pause after each file [us]. It leaves processor time to the daemon. With --long, the
# readers do not pause.
PAUSE_US = draws.sized(1000, 0)
# how many times copies are dropped, and how many times the daemon is killed
FORGOTTEN, KILLED = draws.sized((1, 1), (3, 2))
SOME = draws.sized(100, 200)  # number of files that are read before the test goes on
MAPPING_S = draws.sized(1.0, 3.0)


class Reader:
    """Runs `stress_reader loop` on a session. When the context is left, the program is killed if it
    has not ended."""

    def __init__(self, built: Built, session: Session, directory: Path) -> None:
        self._program = built.program("reader")
        self._count, self._errors = directory / "count", directory / "errors"
        env = session.env(preload=False, MONARCH_CONFIG=str(session.config), **OPTIONS)
        with self._count.open("wb") as count, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                built.command("reader", "loop", session.source, FILES, FILES + NEW_FILES, PAUSE_US),
                env=env,
                stdin=subprocess.PIPE,
                stdout=count,
                stderr=errors,
            )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        # The program's children are killed with it (PR_SET_PDEATHSIG).
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def said(self) -> str:
        return with_names(self._errors.read_text(errors="replace"), self._program)

    def files_read(self) -> int:
        return int(self._count.read_text() or 0)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        def met() -> object:
            if self.process.poll() is not None:
                raise AssertionError(f"the reader ended: {self.said()}")
            return condition()

        wait_until(met, timeout=RUN_LIMIT_S, what=what, every=0.05)

    def wait_files(self, count: int = SOME) -> None:
        """Waits until the program has read `count` more files."""
        target = self.files_read() + count
        self.wait(lambda: self.files_read() >= target, f"{count} more files")

    def wait_hits(self, session: Session, count: int = SOME) -> None:
        target = session.totals()["hits"] + count
        self.wait(lambda: session.totals()["hits"] >= target, f"{count} more hits")

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=RUN_LIMIT_S)
        assert_clean(self.process.returncode, self.said(), self._program)


def test_readers_while_everything_comes_and_goes(
    built: Built, session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    source, switch = tmp_path / "source", tmp_path / "off"
    source.mkdir()
    built.check("reader", "make", source, 0, FILES)
    # The scan is so slow that the first files are read before it has found them.
    session = session_factory(source, scan_rate=FILES * 2 // 5, switch_file=str(switch)).start()
    with Reader(built, session, tmp_path) as reader:
        reader.wait_hits(session, 10)
        assert not session.status()["scanned"], "the scan was over before anything was read"
        reader.wait(lambda: session.status()["scanned"], "the scan")
        known = session.status()["catalog_entries"]
        built.check("reader", "make", source, FILES, NEW_FILES)
        reader.wait(
            lambda: session.status()["catalog_entries"] >= known + NEW_FILES // 2,
            "files that readers told of",
        )
        for _ in range(FORGOTTEN):
            session.forget()
            reader.wait_hits(session)
        switch.touch()
        reader.wait(lambda: session.status()["switched_off"], "the switch")
        reader.wait_files()
        switch.unlink()
        reader.wait_hits(session)
        for _ in range(KILLED):
            session.kill()
            reader.wait_files()
            session.start()
            reader.wait_hits(session)
        session.stop()
        reader.wait_files()
        reader.end()


def test_mappings_that_move(
    built: Built, session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    built.check("mappings", "make", files)
    session = session_factory(files, promote_mappings=True).start()
    session.wait_scanned()
    env = session.env(preload=False, MONARCH_CONFIG=str(session.config), **OPTIONS)
    with subprocess.Popen(
        built.command("mappings", "stress", files, MAPPING_S, SEED),
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while process.poll() is None:
                session.forget()
                try:
                    process.wait(0.3)
                except subprocess.TimeoutExpired:
                    continue
            stderr = process.communicate()[1]
        finally:
            process.kill()
    assert_clean(process.returncode, stderr, built.program("mappings"))
    assert session.totals()["promotions"]


# --- the daemon's part -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "grants"), [(1, 8), pytest.param(6, 20, marks=pytest.mark.long)]
)
def test_engine_scanner_and_catalog(built: Built, tmp_path: Path, rounds: int, grants: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with Mounts(tmp_path) as mounts:
        # The files take 5 MB. The fills of a quarter of the files are withdrawn, but even the other
        # three quarters do not fit into the tier.
        tier = mounts.tmpfs("tier", 3 * MIB)
        counts = [int(word) for word in built.check("engine", source, tier, rounds, grants).split()]
    statuses, present = dict(zip(JobStatus, counts, strict=False)), counts[-1]
    assert [status for status, count in statuses.items() if not count] == []
    assert present > 100, "the lookup threads found too few copies"


WAKES = draws.sized((50, 1000), (400, 8000))  # ROUNDS and PINGS of stress_wakes.c


@pytest.mark.parametrize("built", ["thread"], indirect=True)
def test_no_work_waits_for_a_thread_that_sleeps(built: Built, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with Mounts(tmp_path) as mounts:
        tier = mounts.tmpfs("tier", 16 * MIB)
        counts = built.check("wakes", source, tier, SEED, *WAKES).split()
    demanded, read_ahead = map(int, counts)
    assert demanded > 1.25 * WAKES[0]
    assert read_ahead > 1.25 * WAKES[0]


# --- paths and damaged segments --------------------------------------------------------------


# These programs have one thread, so ThreadSanitizer has nothing to check.
@pytest.mark.parametrize("built", ["address"], indirect=True)
@pytest.mark.parametrize("what", ["paths", "hashes", "headers", "lookups"])
def test_random_input(built: Built, what: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    assert int(built.check("segments", what, source, SEED)), "nothing was found"
