"""`monarch calibrate`: what this machine's tiers and source give, as a scenario for the simulator.

Rates are measured as the performance model has them (NoPFS, section 4): of all threads together, at
some numbers of threads. What cannot be measured on one node is written with a question mark.
"""

from __future__ import annotations

import json
import os
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

from monarch_py.config import Config, PathFilter
from monarch_py.errors import ConfigError, TierError
from monarch_py.util.units import GIB, MIB

__all__ = ["THREADS", "Calibration", "calibrate", "scenario_text"]

# The numbers of threads that are tried.
THREADS = (1, 2, 4, 8)
# One measurement ends after so many bytes, or so long: enough for a rate, little for a user [s].
MOST_BYTES = 256 * MIB
MOST_SECONDS = 5.0
PIECE_BYTES = 1 * MIB
# A tier is measured with files of this size, of which there are as many as threads; smaller where
# its quota is.
SCRATCH_BYTES = 32 * MIB
# Source files that are looked at to choose those that are read.
LISTED_FILES = 100_000

Curve = dict[int, float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Rates [bytes/s] by the number of threads: of the source, and of each tier, both ways.

    source_bytes : of the files that were read of the source for the last of its rates
    """

    source: Curve
    read: tuple[Curve, ...]
    write: tuple[Curve, ...]
    source_bytes: int


def _drop_pages(fd: int) -> None:
    """Of a file that was written to disk: what is read next comes from there."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path, until: float, most: int = MOST_BYTES) -> int:
    """Reads a file, but no longer than `until` and no more than `most`; returns how many bytes."""
    buffer = bytearray(PIECE_BYTES)
    done = 0
    with open(path, "rb", buffering=0) as file:
        _drop_pages(file.fileno())
        while done < most and time.monotonic() < until and (n := file.readinto(buffer)):
            done += n
        _drop_pages(file.fileno())
    return done


def _write(path: Path, piece: bytes, size: int, until: float) -> int:
    """Writes a file of `size` bytes, but no longer than `until`; returns how many bytes."""
    done = 0
    with open(path, "wb", buffering=0) as file:
        while done < size and time.monotonic() < until:
            done += file.write(piece[: size - done])
        os.fsync(file.fileno())
    return done


def _rate(work: Callable[[Path, float], int], paths: Sequence[Path], threads: int) -> float:
    """Bytes per second of `work` on each path, so many at a time; OSError of the first failure."""
    begun = time.monotonic()
    until = begun + MOST_SECONDS
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(lambda path: work(path, until), paths))
    return done / (time.monotonic() - begun)


def _source_files(config: Config) -> list[tuple[Path, int]]:
    """Files of the first source that a fill would take, with their sizes [bytes]."""
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
    """Rates by the number of threads, and the bytes that were read for the last of them.

    Every number of threads reads files of its own, where there are enough: what was read once may
    be in some cache. A number of which there are not as many files cannot be measured.
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
    """A directory in the tier for `size` bytes, gone afterwards."""
    needed = 2 * size
    try:
        with tempfile.TemporaryDirectory(prefix=".monarch-calibrate-", dir=tier) as made:
            state = os.statvfs(made)
            if (free := state.f_bavail * state.f_frsize) < needed:
                raise TierError(
                    f"tier {tier} has {free / MIB:.0f} MiB free, and measuring it takes "
                    f"{needed / MIB:.0f} MiB; make room, or measure later"
                )
            yield Path(made)
    except OSError as error:
        raise TierError(f"tier {tier} cannot be measured: {error}; check its mount point") from None


def _measure_tier(tier: Path, quota_bytes: int) -> tuple[Curve, Curve]:
    size = max(1, min(SCRATCH_BYTES, quota_bytes // max(THREADS)))
    # Not all zeros: there are file systems that do not write those.
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

    It reads 256 MiB of the source for each number of threads, drops their pages, and writes up to
    256 MiB, and never more than the quota, to a directory of its own in every tier.
    tell : is called with what is measured next. Raises TierError where a tier has no room,
    ConfigError where the source has no files.
    """
    tell(f"source {config.sources[0].path}")
    files = _source_files(config)
    try:
        source, source_bytes = _measure_source(files)
    except OSError as error:
        raise ConfigError(
            f"{config.file}: the source cannot be read: {error}; check its permissions"
        ) from None
    read, write = [], []
    for tier in config.tiers:
        tell(f"tier {tier.mount_point}")
        r, w = _measure_tier(tier.mount_point, tier.quota_bytes)
        read.append(r)
        write.append(w)
    return Calibration(source, tuple(read), tuple(write), source_bytes)


def _rate_text(rate: float) -> str:
    """In whole bytes where a rate is small: the scenario takes none that is rounded to 0."""
    return f"{rate / MIB:.1f}MiB/s" if rate >= MIB else f"{max(1.0, rate):.0f}B/s"


def _size_text(size: int) -> str:
    whole, rest = divmod(size, MIB)
    return f"{size}B" if rest else f"{whole}MiB"


def _curve_text(curve: Curve) -> str:
    return "{" + ", ".join(f"{n}: {_rate_text(rate)}" for n, rate in curve.items()) + "}"


def scenario_text(config: Config, measured: Calibration) -> str:
    """The scenario (YAML): what was measured, and what only the user knows, marked.

    The staging buffer is the memory that readers hold, at the rate of the fastest tier.
    """
    quotas = [tier.quota_bytes for tier in config.tiers]
    staging = min(GIB, max(64 * MIB, quotas[0] // 8))
    # Whether more threads than were tried would give more nobody knows: the daemon finds that out.
    threads = min(config.copy_threads, max(THREADS))
    names = ["staging", *(f"{tier.kind}{number}" for number, tier in enumerate(config.tiers))]
    lines = _job_lines(config) + _source_lines(measured) + ["classes:"]
    for name, capacity, read, write in zip(
        names,
        [staging, *quotas],
        [measured.read[0], *measured.read],
        [measured.write[0], *measured.write],
        strict=True,
    ):
        lines += [
            f"  - name: {name}",
            f"    capacity: {_size_text(capacity)}",
            f"    threads: {threads}",
            f"    read: {_curve_text(read)}",
            f"    write: {_curve_text(write)}",
        ]
    return "\n".join(lines) + "\n"


def _job_lines(config: Config) -> list[str]:
    # A dollar begins a variable in a path.
    dataset = json.dumps(str(config.sources[0].real_path).replace("$", "$$"))
    return [
        f"# Measured by `monarch calibrate` with {config.file}.",
        "# Lines with a question mark were not measured: write what your job has.",
        "name: this machine",
        "nodes: 1",
        "epochs: 5                 # ?",
        "batch_per_rank: 32        # ?",
        "drop_last: false          # ?",
        "seed: 0",
        f"dataset: {{scan: {dataset}}}",
        "rates:",
        "  compute: 100MiB/s       # ? samples that a rank trains on, in bytes",
        "  preprocess: 200MiB/s    # ? of one loading thread",
        "  network: 1GiB/s         # ? to other nodes, if there are any",
    ]


def _source_lines(measured: Calibration) -> list[str]:
    best = max(measured.source.values())
    lines = [
        "# One node is one client; this is what all its threads got together, by their number:",
        f"# {_curve_text(measured.source)}",
        f"pfs: {{1: {_rate_text(best)}}}",
    ]
    if measured.source_bytes < SCRATCH_BYTES:
        lines[2] += f"   # ? {measured.source_bytes} bytes are too few for a rate"
    return lines
