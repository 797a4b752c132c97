"""Compares Monarch with widely used loaders.

With each loader, four ranks read the same samples from the same source. Before the measurement, the
samples are stored in the format of each loader: files, tar shards for webdataset, MDS shards for
MosaicML streaming. Each rank of MosaicML streaming has a cache, which is as large as a node's tier
and staging area in Monarch together. A loader that is not installed is left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks.common import Child
from benchmarks.nodes.loaders import CACHE_VARIABLE, LOCAL_VARIABLE, SEED
from benchmarks.nodes.testbed import Dataset, Layout, Testbed
from benchmarks.numbers import Result
from benchmarks.peers.nodes import Nodes
from monarch_py.peers.server import listen
from monarch_py.plan import Loader
from monarch_py.plan.samplers import DistributedSampler

RANKS, WORKERS, BATCH, EPOCHS, SHARDS = 4, 2, 16, 3, 32


class Compared(NamedTuple):
    """A loader, and how it runs.

    loader : the loader's name in loaders.py
    package : the package that must be installed
    form : the format of the samples; the directory of the samples has the same name
    under_monarch : "no" if no daemons run; "hash" if hashes determine the owners of files; "plan"
        if the daemons follow a plan
    """

    loader: str
    package: str
    form: str
    under_monarch: Literal["no", "hash", "plan"]


COMPARED = {
    "PyTorch": Compared("torch", "torch", "files", "no"),
    "DALI": Compared("dali", "nvidia.dali", "files", "no"),
    "webdataset": Compared("webdataset", "webdataset", "tar", "no"),
    "streaming": Compared("streaming", "streaming", "mds", "no"),
    "PyTorch under Monarch": Compared("torch", "torch", "files", "hash"),
    "PyTorch under Monarch with its plan": Compared("torch", "torch", "files", "plan"),
    "LocalFirstSampler under Monarch": Compared("local_first", "torch", "files", "hash"),
    "SolarSampler and StagedLoader under Monarch": Compared("solar", "torch", "files", "hash"),
    "DALI under Monarch": Compared("dali", "nvidia.dali", "files", "hash"),
}
# For some loaders, the limit on the time of each epoch after the first one, relative to the time
# that the source needs to send the dataset.
MOST = {"local_first": 0.10, "solar": 0.041}
# A shell script that runs a program with its own /dev/shm, as on a separate node. $1 is an empty
# directory. $2 is a directory in the old /dev/shm. The program can access $2 at its old path.
OWN_SHM = """
mount --rbind "$2" "$1" && mount -t tmpfs none /dev/shm && mkdir -p "$2" &&
mount --rbind "$1" "$2" && shift 2 && exec "$@"
"""


def make_formats(root: Path, plain: Dataset) -> None:
    """Writes the samples of `plain` again, as tar shards and as MDS shards. The samples already
    exist as files in root/files."""
    files = len(plain.sizes)
    (root / "tar").mkdir()
    each = -(-files // SHARDS)
    for first in range(0, files, each):
        with tarfile.open(root / "tar" / f"{first:06d}.tar", "w") as shard:
            for number in range(first, min(files, first + each)):
                member = tarfile.TarInfo(f"{number:06d}.bin")
                member.size = int(plain.sizes[number])
                content = (root / "files" / Dataset.name(number)).read_bytes()
                shard.addfile(member, BytesIO(content))
    if is_installed("streaming"):
        from streaming import MDSWriter

        limit = plain.bytes // SHARDS
        with MDSWriter(out=str(root / "mds"), columns={"bin": "bytes"}, size_limit=limit) as writer:
            for path in sorted((root / "files").iterdir()):
                writer.write({"bin": path.read_bytes()})


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def with_own_shm(argv: list[str], keep: str, place: Path) -> list[str]:
    """Returns a command line that runs `argv` with its own /dev/shm.

    keep : an empty directory, on which `place` is mounted while /dev/shm is replaced
    place : a directory in the old /dev/shm. The command can access `place` at its old path
    """
    return ["unshare", "--mount", "sh", "-c", OWN_SHM, "sh", keep, str(place), *argv]


@contextmanager
def ranks_of(bed: Testbed, name: str, cache: int) -> Iterator[list[Child]]:
    """Starts a process for each rank, waits until all processes are ready, and yields them."""
    loader = COMPARED[name].loader
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    listener.close()
    with ExitStack() as stack:
        children = []
        for rank in range(RANKS):
            environment = bed.environment(rank) | {
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TMPDIR": str(bed.place / f"tmp{rank}"),
                LOCAL_VARIABLE: str(bed.place / f"local{rank}"),
                CACHE_VARIABLE: str(cache),
                "OMP_NUM_THREADS": "1",
            }
            (bed.place / f"tmp{rank}").mkdir()
            root = bed.mounts[rank].mountpoint
            argv = [sys.executable, "-m", "benchmarks.nodes.loaders", loader, str(root)]
            argv += [str(each) for each in (rank, RANKS, WORKERS, BATCH)]
            if loader == "streaming":
                keep = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
                argv = with_own_shm(argv, keep, bed.place)
            children.append(stack.enter_context(Child(argv, environment)))
        for child in children:
            child.hear()
        yield children


def epochs_of(bed: Testbed, name: str, cache: int) -> list[float]:
    """Runs the epochs. Returns the time of the slowest rank in each epoch [s]."""
    seconds = []
    with ranks_of(bed, name, cache) as children:
        for number in range(EPOCHS):
            before = bed.counts()["served"]
            for child in children:
                child.tell(str(number))
            answers = [child.hear() for child in children]
            seconds.append(max(answer[1] for answer in answers) / 1e9)
            said = {
                "epoch": number,
                "seconds": round(seconds[-1], 3),
                "bytes": sum(answer[0] for answer in answers),
                "served": bed.counts()["served"] - before,
                "load": round(os.getloadavg()[0], 1),
            }
            print(f"  {name}: {json.dumps(said)}", file=sys.stderr, flush=True)
    return seconds


def plan_loader(files: int) -> Loader:
    """Returns the description of the loader `torch_files` (loaders.py) for the access plan."""
    sampler = DistributedSampler(files, RANKS, seed=SEED)
    return Loader(sampler, RANKS, BATCH, workers=WORKERS, prefetch_factor=2)


def compared(
    place: Path, programs: tuple[Path, Path], rate: float, link_bits: float, mib: int, kib: int
) -> list[Result]:
    """Compares all loaders. The time of an epoch is relative to the time that the source needs to
    send the dataset.

    mib : the size of the dataset [MiB]
    kib : the size of a sample [KiB]
    """
    files = (mib << 20) // (kib << 10)
    formats = place / "formats"
    formats.mkdir()
    dataset = Dataset.make(formats / "files", files, kib << 10)
    make_formats(formats, dataset)
    ideal = dataset.bytes / rate
    tier, staging = int(dataset.bytes * 1.05 / RANKS), max(dataset.bytes // 25, 16 << 20)
    results = []
    for name, each in COMPARED.items():
        if not is_installed(each.package):
            print(f"  {name}: not installed", file=sys.stderr)
            continue
        layout = Layout(
            [tier] * RANKS,
            staging,
            planned=EPOCHS if each.under_monarch == "plan" else 0,
            loader=plan_loader(files),
            rank_nodes=[],
            has_daemons=each.under_monarch != "no",
        )
        there = replace(dataset, backing=formats / each.form)
        run = place / "compared" / name.replace(" ", "-")
        run.mkdir(parents=True)
        with (
            Nodes(RANKS, f"{link_bits:.0f}bit") as links,
            Testbed(run, there, programs, layout, rate=rate, links=links) as bed,
        ):
            bed.await_catalogs()
            seconds = epochs_of(bed, name, tier + staging)
        for number, taken in enumerate(seconds):
            what = (
                f"{name}, epoch {number + 1}: time / time to send the dataset at the source's rate"
            )
            most = MOST.get(each.loader) if number else None
            results.append(Result(f"{name}_{number + 1}", what, "", taken / ideal, most))
    return results
