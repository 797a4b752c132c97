"""`monarch calibrate`: measures tiers and source, and writes a scenario for the simulator.

Each rate is measured several times, each time with another number of threads. A measured rate is
the rate of all threads together, as in the performance model (NoPFS, section 4). Some values cannot
be measured on one node. The scenario marks these values with a question mark.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from monarch_py.config.patterns import PathFilter
from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError, TierError
from monarch_py.util.units import GIB, MIB

# Numbers of threads to measure with.
THREADS = (1, 2, 4, 8)
# One measurement ends after MOST_BYTES or after MOST_SECONDS, whichever comes first.
MOST_BYTES = 256 * MIB
MOST_SECONDS = 5.0
PIECE_BYTES = 1 * MIB
# A tier is measured with one file per thread. Each file has this size, or less if the tier's quota
# is too small for such files.
SCRATCH_BYTES = 32 * MIB
# At most this many files of the source are listed. The measurement reads some of the listed files.
LISTED_FILES = 100_000

Curve = dict[int, float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured rates. A Curve maps a number of threads to the rate [bytes/s] of these threads.

    source : the rates of reading the source
    read, write : for each tier, the rates of reading and writing
    source_bytes : how many bytes the last measurement of the source has read. If few bytes were
        read, a comment in the scenario warns that the rate is not reliable
    """

    source: Curve
    read: tuple[Curve, ...]
    write: tuple[Curve, ...]
    source_bytes: int


def _drop_pages(fd: int) -> None:
    """Drops a file's clean pages from the kernel's page cache, so that the next read must access
    the disk."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path, until: float, most: int = MOST_BYTES) -> int:
    """Reads a file from its beginning. Stops at the end of the file, at the time `until`, or after
    `most` bytes. Returns how many bytes were read."""
    buffer = bytearray(PIECE_BYTES)
    done = 0
    with open(path, "rb", buffering=0) as file:
        _drop_pages(file.fileno())
        while done < most and time.monotonic() < until and (n := file.readinto(buffer)):
            done += n
        _drop_pages(file.fileno())
    return done


def _write(path: Path, piece: bytes, size: int, until: float) -> int:
    """Writes a file of `size` bytes, but stops at the time `until`. Returns how many bytes were
    written."""
    done = 0
    with open(path, "wb", buffering=0) as file:
        while done < size and time.monotonic() < until:
            done += file.write(piece[: size - done])
        os.fsync(file.fileno())
    return done


def _rate(work: Callable[[Path, float], int], paths: Sequence[Path], threads: int) -> float:
    """Calls `work` for each path, in `threads` threads. Returns the bytes per second of all threads
    together. Raises the first OSError of `work`.

    work : a function that reads or writes a file. Its arguments are the path, and the time
        (time.monotonic) at which it must stop. It returns how many bytes it has read or written
    """
    begun = time.monotonic()
    until = begun + MOST_SECONDS
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(lambda path: work(path, until), paths))
    return done / (time.monotonic() - begun)


def _source_files(config: Config) -> list[tuple[Path, int]]:
    """Returns the files that the patterns of the first source select, with their sizes [bytes]."""
    source = config.sources[0]
    fits = PathFilter(source.include, source.exclude)

    def found() -> Iterator[tuple[Path, int]]:
        for directory, _, names in os.walk(source.real_path):
            for name in names:
                path = Path(directory, name)
                if fits.matches(str(path.relative_to(source.real_path))) and path.is_file():
                    yield path, path.stat().st_size

    files = [(path, size) for path, size in islice(found(), LISTED_FILES) if size]
    if not files:
        raise ConfigError(f"{config.file}: source {source.path} has no file that can be read")
    return files


def _measure_source(files: list[tuple[Path, int]]) -> tuple[Curve, int]:
    """Measures the source with each number of threads. Returns the rates, and how many bytes the
    last measurement has read.

    A file that was read before may be in a cache. So each measurement reads files that no earlier
    measurement has read, if there are enough files. A measurement never uses more threads than
    there are files.
    """
    order = np.random.default_rng(0).permutation(len(files))
    numbers = [threads for threads in THREADS if threads <= len(files)]
    parts = np.array_split(order, len(numbers))
    curve, read = {}, 0
    for threads, part in zip(numbers, parts, strict=True):
        chosen = [files[i] for i in (part if len(part) >= threads else order)]
        total = np.cumsum([size for _, size in chosen])
        enough = 1 + int(np.searchsorted(total, MOST_BYTES))
        chosen = chosen[: max(enough, threads)]
        most = MOST_BYTES // threads
        paths = [path for path, _ in chosen]
        curve[threads] = _rate(partial(_read, most=most), paths, threads)
        read = sum(min(size, most) for _, size in chosen)
    return curve, read


@contextmanager
def _scratch(tier: Path, size: int) -> Iterator[Path]:
    """Yields a temporary directory in the tier, for files with a total size of `size` bytes. Raises
    TierError if the tier has less than twice this size free."""
    needed = 2 * size
    try:
        with tempfile.TemporaryDirectory(prefix=".monarch-calibrate-", dir=tier) as made:
            if (free := shutil.disk_usage(made).free) < needed:
                raise TierError(
                    f"tier {tier} has {free / MIB:.0f} MiB free, and measuring it takes "
                    f"{needed / MIB:.0f} MiB; make room, or measure later"
                )
            yield Path(made)
    except OSError as error:
        raise TierError(f"tier {tier} cannot be measured: {error}; check its mount point") from None


def _measure_tier(tier: Path, quota_bytes: int) -> tuple[Curve, Curve]:
    size = max(1, min(SCRATCH_BYTES, quota_bytes // max(THREADS)))
    # Write random bytes, because some file systems do not store blocks of zeros.
    piece = os.urandom(min(PIECE_BYTES, size))
    read, write = {}, {}

    def fill(path: Path, until: float) -> int:
        return _write(path, piece, size, until)

    with _scratch(tier, size * max(THREADS)) as scratch:
        for threads in THREADS:
            paths = [scratch / f"{threads}-{i}" for i in range(threads)]
            write[threads] = _rate(fill, paths, threads)
            read[threads] = _rate(_read, paths, threads)
            for path in paths:
                path.unlink()
    return read, write


def calibrate(config: Config, tell: Callable[[str], None] = lambda _: None) -> Calibration:
    """Measures the tiers and the first source of a configuration.

    For each number of threads, reads up to 256 MiB from the source. The pages of each file are
    dropped from the kernel's page cache before and after the file is read. In each tier, writes up
    to 256 MiB to a temporary directory, but not more than the tier's quota.

    tell : a function that this function calls before each measurement. Its argument is a text that
        names what is measured next

    Raises TierError if a tier has no room, and ConfigError if the source has no files or cannot be
    read.
    """
    tell(f"source {config.sources[0].path}")
    files = _source_files(config)
    try:
        source, source_bytes = _measure_source(files)
    except OSError as error:
        raise ConfigError(
            f"{config.file}: the source cannot be read: {error}; check its permissions"
        ) from None
    tiers = []
    for tier in config.tiers:
        tell(f"tier {tier.mount_point}")
        tiers.append(_measure_tier(tier.mount_point, tier.quota_bytes))
    read, write = zip(*tiers, strict=True)
    return Calibration(source, read, write, source_bytes)


def _rate_text(rate: float) -> str:
    """Returns the rate in the notation of a scenario. Rates below 1 byte/s become 1 byte/s, because
    a scenario does not accept a rate of 0."""
    return f"{rate / MIB:.1f}MiB/s" if rate >= MIB else f"{max(1.0, rate):.0f}B/s"


def _size_text(size: int) -> str:
    whole, rest = divmod(size, MIB)
    return f"{size}B" if rest else f"{whole}MiB"


def _curve_text(curve: Curve) -> str:
    return "{" + ", ".join(f"{n}: {_rate_text(rate)}" for n, rate in curve.items()) + "}"


def scenario_text(config: Config, measured: Calibration) -> str:
    """Returns the scenario (YAML) with the measured values. A question mark in the scenario marks
    each value that only the user knows.

    The scenario has a staging buffer, which models the memory of the programs that read. The
    staging buffer gets the rates of the first tier.
    """
    staging = min(GIB, max(64 * MIB, config.tiers[0].quota_bytes // 8))
    # The scenario has at most max(THREADS) threads, because the rates of more threads were not
    # measured.
    threads = min(config.copy_threads, max(THREADS))
    classes = [("staging", staging, measured.read[0], measured.write[0])]
    for n, (tier, read, write) in enumerate(
        zip(config.tiers, measured.read, measured.write, strict=True)
    ):
        classes.append((f"{tier.kind}{n}", tier.quota_bytes, read, write))
    lines = _job_lines(config) + _source_lines(measured) + ["classes:"]
    for name, capacity, read, write in classes:
        lines += [
            f"  - name: {name}",
            f"    capacity: {_size_text(capacity)}",
            f"    threads: {threads}",
            f"    read: {_curve_text(read)}",
            f"    write: {_curve_text(write)}",
        ]
    return "\n".join(lines) + "\n"


def _job_lines(config: Config) -> list[str]:
    # Double each dollar sign in the path, because a single one would begin a variable's name.
    dataset = json.dumps(str(config.sources[0].real_path).replace("$", "$$"))
    return [
        f"# Measured by `monarch calibrate` with {config.file}.",
        "# Lines with a question mark were not measured: fill in the values of your job.",
        "name: this machine",
        "nodes: 1",
        "epochs: 5                 # ?",
        "batch_per_rank: 32        # ?",
        "drop_last: false          # ?",
        "seed: 0",
        f"dataset: {{scan: {dataset}}}",
        "rates:",
        "  compute: 100MiB/s       # ? how fast a rank trains, in bytes of samples",
        "  preprocess: 200MiB/s    # ? how fast one loading thread prepares samples",
        "  network: 1GiB/s         # ? the rate of the link to other nodes, if there are any",
    ]


def _source_lines(measured: Calibration) -> list[str]:
    best = max(measured.source.values())
    lines = [
        "# One node is one client. Its total rate, for each number of threads:",
        f"# {_curve_text(measured.source)}",
        f"pfs: {{1: {_rate_text(best)}}}",
    ]
    if measured.source_bytes < SCRATCH_BYTES:
        lines[2] += f"   # ? measured on only {measured.source_bytes} bytes, too few for a rate"
    return lines
