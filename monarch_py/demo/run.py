"""``monarch demo``: a small training reads a slow source, first without and then with Monarch.

The same script trains twice for three epochs, with the same dataset and seed. The slow source
(demo/slowsource.py), not Monarch, counts the operations and bytes.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from monarch_py.demo.dataset import make_dataset
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable
from monarch_py.errors import MonarchError
from monarch_py.util.processes import end
from monarch_py.util.units import GIB, MIB, format_size

EPOCHS = 3
SEED = 0

# The rate and the latencies of the slow source, as one of many jobs sees them on a busy parallel
# file system.
SOURCE_RATE = 60e6  # [bytes/s]
SOURCE_LATENCY_S = {"open": 0.002, "getattr": 0.001, "read": 0.0003}

# The first tier's quota. It is smaller than a dataset of the default size, so that the second tier
# is used too.
RAM_QUOTA_BYTES = 32 * MIB
DISK_QUOTA_BYTES = 1 * GIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
# A Python program that runs the command `monarch` of this package. Its first argument must be
# PACKAGE_PARENT, which replaces the working directory in sys.path[0]. Otherwise the program would
# import a `monarch_py` in the working directory instead of this package.
RUN_MONARCH = (
    "import sys; sys.path[0] = sys.argv.pop(1); from monarch_py.__main__ import main; main()"
)

# How long [s] an interrupted training run may take to end before it is killed. During this time,
# Monarch's daemon removes the run's copies.
END_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """The cost and the results of one epoch.

    n_operations, n_bytes : the operations and bytes that reached the source; None if they are not
        counted
    result : the numbers that must be the same with and without Monarch
    """

    seconds: float
    n_operations: int | None
    n_bytes: int | None
    result: tuple[float, ...]


def run_demo(console: Console, *, size_bytes: int, workdir: Path | None, keep: bool) -> int:
    """Creates a dataset of `size_bytes`, trains on it without and with Monarch, and prints the
    comparison.

    All files except the copies in memory are written below `workdir`, by default the directory for
    temporary files. The file system of `workdir` must have two and a half times `size_bytes` free.
    The files are removed afterwards, unless `keep` is set. Returns 0 if both training runs produced
    the same numbers. Returns 1 otherwise, which would be a bug in Monarch. Raises MonarchError if a
    run fails, or if the size is too small or too large.
    """
    with _workdir(workdir, size_bytes, keep) as directory:
        if keep:
            console.print(f"Everything stays in {directory}.")
        with console.status(f"Making a dataset of {format_size(size_bytes)} ..."):
            made = make_dataset(directory / "dataset", size_bytes=size_bytes, seed=SEED)
        console.print(
            f"Dataset: {made.n_images} images in {made.n_files} files, {format_size(made.n_bytes)}."
        )
        binary = _slow_source(console)
        source = directory / ("dataset" if binary is None else "source")
        if binary is not None:
            console.print(
                f"Source: {SOURCE_RATE / 1e6:.0f} MB/s for all readers; "
                + ", ".join(f"{s * 1e3:g} ms per {kind}" for kind, s in SOURCE_LATENCY_S.items())
                + "."
            )
        with console.status(f"Training {EPOCHS} epochs without Monarch ..."):
            without = _train(directory, source, binary, "without", prefix=[])
        with (
            console.status(f"Training {EPOCHS} epochs with Monarch ..."),
            _monarch(directory, source, made.n_bytes) as prefix,
        ):
            gained = _train(directory, source, binary, "with", prefix)
        console.print(_table(without, gained, is_plain=not console.is_terminal))
        return _compare(without, gained, console)


@contextmanager
def _workdir(workdir: Path | None, size_bytes: int, keep: bool) -> Iterator[Path]:
    """Creates a directory for the demo's files. Removes it at the end, unless `keep` is set.

    workdir : the parent of the new directory, created if necessary; None for the directory for
        temporary files
    """
    try:
        if workdir is not None:
            workdir.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="monarch-demo-", dir=workdir)).resolve()
    except OSError as error:
        raise MonarchError(
            f"{workdir or tempfile.gettempdir()}: cannot create a directory there"
            f" ({error.strerror}); name another one with --workdir"
        ) from None
    try:
        free = shutil.disk_usage(directory).free
        if free < 2.5 * size_bytes:
            raise MonarchError(
                f"{directory.parent} has {format_size(free)} free, too little for a dataset of"
                f" {format_size(size_bytes)} and its copies; name another --workdir or --size"
            )
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _slow_source(console: Console) -> Path | None:
    """Returns the path of the slow source's program. If the slow source cannot be used here, prints
    why and returns None."""
    binary = find_slowsource()
    reason = why_unavailable(binary)
    if reason is None:
        return binary
    console.print(
        "The dataset lies in a plain directory: reads are not slowed down or counted, and the"
        f" table has no columns for the source. The slow source cannot be used: {reason}."
    )
    return None


def _train(
    directory: Path, path: Path, binary: Path | None, name: str, prefix: list[str]
) -> list[Epoch]:
    """Runs the training script once, and returns the epochs of the run. Mounts the slow source anew
    for each run, so that the kernel has cached none of its files at the start.

    path : the directory in which the training script finds the dataset
    name : the name of the run; the names of the run's files in `directory` contain it
    prefix : the words that precede the training command, for example `monarch run`
    """
    output = directory / f"training-{name}.json"
    script = Path(__file__).with_name("train.py")
    command = [*prefix, sys.executable, str(script), str(path), "--epochs", str(EPOCHS)]
    command += ["--seed", str(SEED), "--json", str(output), "--lockstep"]
    with ExitStack() as stack:
        source = None
        if binary is not None:
            path.mkdir(exist_ok=True)
            source = stack.enter_context(SlowSource(directory / "dataset", path, binary=binary))
            source.rate(SOURCE_RATE)
            source.latency(**SOURCE_LATENCY_S)
        counts = _run_in_lockstep(command, source, directory / f"training-{name}.log")
    return _epochs(json.loads(output.read_text(encoding="utf-8"))["epochs"], counts)


def _run_in_lockstep(
    command: list[str], source: SlowSource | None, log: Path
) -> list[dict[str, int]]:
    """Runs a training command. Returns the counts of `source`, once for the start and once for the
    end of each epoch.

    At the end of each epoch, the training script waits until this function tells it to continue. So
    the counts of an epoch include no operation of the next epoch. Raises MonarchError if the script
    fails.
    """
    counts = [source.counts() if source else {}]
    with (
        log.open("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(),
        ) as process,
    ):
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("end of epoch "):
                    continue
                counts.append(source.counts() if source else {})
                # If the training script has died, the write fails, and the check of the exit status
                # below reports the script's end.
                with suppress(BrokenPipeError):
                    process.stdin.write("go on\n")
                    process.stdin.flush()
                if len(counts) > EPOCHS:
                    break
            status = process.wait()
        except BaseException:
            end(process, END_LIMIT_S)
            raise
        errors.seek(0)
        said = errors.read().strip()
    if status != 0 or len(counts) != EPOCHS + 1:
        last = said.splitlines()[-1] if said else "without a message"
        raise MonarchError(
            f"the training script ended with status {status} after {len(counts) - 1} epochs"
            f" ({last}); see {log} (kept only with --keep)"
        )
    return counts


def _environment() -> dict[str, str]:
    """Returns this process's environment, with PACKAGE_PARENT in PYTHONPATH, because the package
    may be a checkout that is not installed."""
    paths = [str(PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _epochs(records: list[dict[str, Any]], counts: list[dict[str, int]]) -> list[Epoch]:
    epochs = []
    for record, before, after in zip(records, counts[:-1], counts[1:], strict=True):
        # Do not count operations of the kind `release`, because the kernel may send them late, even
        # in the next epoch.
        operations = [kind for kind in after if kind != "release" and "bytes" not in kind]
        gained = {kind: after[kind] - before[kind] for kind in after}
        epochs.append(
            Epoch(
                seconds=record["seconds"],
                n_operations=sum(gained[kind] for kind in operations) if gained else None,
                n_bytes=gained.get("bytes_read"),
                result=(record["loss"], record["accuracy"], record["samples"], record["crc32"]),
            )
        )
    return epochs


@contextmanager
def _monarch(directory: Path, source: Path, dataset_bytes: int) -> Iterator[list[str]]:
    """Creates tiers and a configuration. Yields the beginning of a `monarch run` command line. The
    caller appends the command that is to run under Monarch."""
    with ExitStack() as stack:
        tiers = []
        if _has_room(SHARED_MEMORY, 2 * RAM_QUOTA_BYTES):
            ram = tempfile.TemporaryDirectory(
                prefix="monarch-demo-", dir=SHARED_MEMORY, ignore_cleanup_errors=True
            )
            tiers.append(_tier(Path(stack.enter_context(ram)), RAM_QUOTA_BYTES, "ram"))
        disk = directory / "tier"
        disk.mkdir()
        quota_bytes = max(DISK_QUOTA_BYTES, 2 * dataset_bytes)
        # The quota does not exceed the free space, because Monarch rejects a quota that is larger
        # than the disk.
        tiers.append(_tier(disk, min(quota_bytes, shutil.disk_usage(disk).free), "ssd"))
        config = directory / "monarch.yaml"
        # JSON is valid YAML.
        text = json.dumps({"sources": [str(source)], "hierarchy": tiers}, indent=2)
        config.write_text(text + "\n", encoding="utf-8")
        report = directory / "monarch.json"
        command = [sys.executable, "-c", RUN_MONARCH, str(PACKAGE_PARENT), "run"]
        yield [*command, "-c", str(config), "--json", str(report), "--"]


def _has_room(directory: Path, n_bytes: int) -> bool:
    try:
        return os.access(directory, os.W_OK) and shutil.disk_usage(directory).free >= n_bytes
    except OSError:
        return False


def _tier(directory: Path, quota_bytes: int, kind: str) -> dict[str, Any]:
    return {"mount_point": str(directory), "max_storage_quota": quota_bytes, "type": kind}


def _table(without: list[Epoch], gained: list[Epoch], *, is_plain: bool) -> Table:
    """Returns the table that compares the two training runs.

    is_plain : whether the output goes to a file or a pipe; if so, the table gets no box
    """
    counted = all(epoch.n_bytes is not None for epoch in [*without, *gained])
    of_source = ", and its load on the source" if counted else ""
    table = Table(title=f"Cost of an epoch{of_source}")
    if is_plain:
        table.box, table.pad_edge, table.title_justify = None, False, "left"
    table.add_column("\n\nepoch")
    columns = ["\nseconds"]
    if counted:
        columns += ["source\nbytes", "source\noperations"]
    for column in columns:
        table.add_column(f"{column}\nwithout", justify="right")
        table.add_column(f"{column}\nwith", justify="right")
    for number, (old, new) in enumerate(zip(without, gained, strict=True), start=1):
        cells = [f"{old.seconds:.2f}", f"{new.seconds:.2f}"]
        if counted:
            cells += [format_size(epoch.n_bytes or 0) for epoch in (old, new)]
            cells += [f"{epoch.n_operations:,}" for epoch in (old, new)]
        table.add_row(str(number), *cells)
    return table


def _compare(without: list[Epoch], gained: list[Epoch], console: Console) -> int:
    """Prints whether the two training runs agree, and returns the exit status."""
    for number, (old, new) in enumerate(zip(without, gained, strict=True), start=1):
        if old.result != new.result:
            console.print(
                f"The training runs differ in epoch {number}: (loss, accuracy, samples, checksum)"
                f" is {old.result} without and {new.result} with Monarch. Please report it."
            )
            return 1
    more = (gained[0].n_bytes or 0) - (without[0].n_bytes or 0)
    if more > 0:
        console.print(
            f"With Monarch the first epoch reads {format_size(more)} more from the source: the"
            " program and the daemon began to read some files at the same time."
        )
    losses = ", ".join(f"{epoch.result[0]:.4f}" for epoch in gained)
    console.print(f"Both training runs read the same bytes and had the same losses: {losses}.")
    return 0
