"""Processes of one node share the samples that they have read, and leave no memory behind."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from loaders.staged_data import Labelled, Records, Rows, read_samples
from support.draws import cases

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.ipc.session import kept_directory
from monarch_py.loaders.memory.kept import JOBS, KeptDataset
from monarch_py.loaders.memory.shared import _locked
from monarch_py.loaders.staged.loader import StagedLoader
from monarch_py.native import ffi, lib
from monarch_py.util.processes import Identity

LIMIT_S = 5.0


@pytest.fixture(autouse=True)
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setenv("MONARCH_SHM", str(place))
    yield place
    assert [path for path in place.rglob("*") if not path.is_dir()] == []


@pytest.fixture
def keep() -> Iterator[Callable[..., KeptDataset]]:
    made = []

    def one(*arguments: Any, **settings: Any) -> KeptDataset:
        made.append(KeptDataset(*arguments, **settings))
        return made[-1]

    yield one
    for dataset in made:
        dataset.close()


def dataset_of(kind: str, place: Path) -> Any:
    if kind == "bytes":
        return Records(place / "records", [5, 0, 7000, *range(9)])
    return Rows(place / "rows", [48] * 12) if kind == "rows" else Labelled(12)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return bool(np.array_equal(one["image"], other["image"])) and one["more"] == other["more"]
    return type(one) is type(other) and bool(np.all(one == other))


@pytest.mark.parametrize("kind", ["bytes", "rows", "objects"])
def test_a_sample_is_what_the_dataset_has_and_is_read_once(
    tmp_path: Path, keep: Callable[..., KeptDataset], kind: str
) -> None:
    plain = dataset_of(kind, tmp_path)
    kept = keep(plain, quota="1MiB")
    for _ in range(2):
        assert all(same(kept[i], plain[i]) for i in range(12))
        assert all(map(same, kept.__getitems__([3, 1, 3]), [plain[3], plain[1], plain[3]]))
    assert kept.sources() == {"memory": 18, "source": 12}


@pytest.mark.parametrize(
    ("kind", "method", "workers"),
    [
        ("bytes", "fork", 2),
        ("objects", "fork", 2),
        # This case needs --long, because test_a_spawned_process_shares_it below tests a spawned
        # process in every run.
        pytest.param("bytes", "spawn", 1, marks=pytest.mark.long),
    ],
)
def test_workers_of_a_plain_dataloader_share_it(
    tmp_path: Path, keep: Callable[..., KeptDataset], kind: str, method: str, workers: int
) -> None:
    torch = pytest.importorskip("torch")
    plain = dataset_of(kind, tmp_path)
    kept = keep(plain, quota="1MiB")
    loader = torch.utils.data.DataLoader(
        kept,
        3,
        num_workers=workers,
        collate_fn=list,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for epoch in range(2):
        got = [sample for batch in loader for sample in batch]
        assert all(same(got[i], plain[i]) for i in range(12))
        assert kept.sources()["source"] == 12, epoch
    assert kept.sources()["memory"] == 12


def test_a_spawned_process_shares_it(keep: Callable[..., KeptDataset]) -> None:
    kept = keep(Labelled(12), quota="1MiB")
    kept[4]
    context: Any = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=read_samples, args=(kept, [4, 5], there))
    child.start()
    try:
        assert here.poll(60)
        assert here.recv() == [4, 5]
    finally:
        child.join(60)
    assert kept[5]["more"][0] == 5
    assert kept.sources() == {"memory": 2, "source": 2}


@pytest.mark.parametrize("workers", [0, 2])
def test_staged_loader_reads_it_in_place(
    tmp_path: Path, keep: Callable[..., KeptDataset], workers: int
) -> None:
    plain = Records(tmp_path / "records", [100 * i for i in range(12)])
    kept = keep(plain, [i for i in range(12) if i % 3], quota="1MiB")
    batches = [[5, 1, 3, 5], [0, 2, 9], [4, 7], [6, 8, 10, 11]]
    loader = StagedLoader(kept, batch_sampler=batches, workers=workers)
    for _ in range(2):
        got = [[part.numpy().tobytes() for part in batch] for batch in loader]
        assert got == [[plain[i] for i in batch] for batch in batches]
    loader.close()
    sources = loader.statistics()["sources"]
    assert sources["memory"] + sources["source"] == 26
    assert sources["source"] == 8 + 2 * 4 + 1  # + 1: a batch has sample 5 twice
    assert kept.kept_bytes() <= 1 << 20


@pytest.mark.parametrize("is_flat", [True, False])
def test_a_sampler_says_what_this_node_keeps(
    tmp_path: Path, keep: Callable[..., KeptDataset], is_flat: bool
) -> None:
    holders = np.array([[0, -1], [1, 0], [1, -1], [-1, -1], [0, 1]], dtype=np.int32)
    sampler = SimpleNamespace(
        holders=holders[:, 0] if is_flat else holders, ranks=SimpleNamespace(node=1)
    )
    kept = keep(Records(tmp_path / "records", [100] * 5), sampler, quota="1MiB")
    for _ in range(2):
        for i in range(5):
            kept[i]
    assert kept.sources()["memory"] == (2 if is_flat else 3)


OTHER = """
import sys
from pathlib import Path
from loaders.staged_data import Labelled
from monarch_py.loaders.memory.kept import KeptDataset
kept = KeptDataset(Labelled(12), quota="1MiB")
for line in sys.stdin:
    sample = kept[int(line)]
    print(sample["more"][0], *kept.sources().values(), flush=True)
"""


class Other:
    """Another rank of the node, whose process is not forked from this one."""

    def __init__(self) -> None:
        tests, root = Path(__file__).parents[1], Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{root}:{tests}"},
        )

    def read(self, sample: int) -> list[int]:
        """Makes the other rank read a sample. Returns the sample's number, and how many samples
        that rank has so far got from memory and from the source."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{sample}\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]

    def end(self, number: int | None = None) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        if number is not None:
            self.process.send_signal(number)
        self.process.stdin.close()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()


# Without --long, only ranks that are killed are tested here. The test
# test_other_datasets_and_jobs_have_memory_of_their_own covers ranks that end normally.
@pytest.mark.parametrize("number", cases([None, signal.SIGKILL], short=[signal.SIGKILL]))
def test_ranks_share_whoever_of_them_ends(
    keep: Callable[..., KeptDataset], number: int | None
) -> None:
    first = Other()
    assert first.read(4) == [4, 0, 1]
    kept = keep(Labelled(12), quota="1MiB")
    assert kept[4]["more"][0] == 4
    assert kept.sources() == {"memory": 1, "source": 1}
    first.end(number)
    second = Other()
    assert second.read(4) == [4, 2, 1]
    assert second.read(5) == [5, 2, 2]
    second.end(number)


def test_when_all_are_killed_the_next_start_removes_the_rest(
    keep: Callable[..., KeptDataset],
) -> None:
    ranks = [Other(), Other()]
    for rank in ranks:
        rank.read(1)
    for rank in ranks:
        rank.end(signal.SIGKILL)
    (left,) = kept_directory().iterdir()
    assert left.stat().st_size < 200
    keep(Labelled(5), quota="1MiB")
    assert not left.exists()


def test_what_exceeds_the_quota_stays_at_the_source(
    tmp_path: Path, keep: Callable[..., KeptDataset]
) -> None:
    plain = Records(tmp_path / "records", [1000] * 8)
    kept = keep(plain, quota=3500)
    for _ in range(2):
        assert [kept[i] for i in range(8)] == [plain[i] for i in range(8)]
    assert kept.kept_bytes() == 3000
    assert kept.sources() == {"memory": 3, "source": 13}


def entry(kept: KeptDataset, place: int) -> Any:
    store = kept._store()
    return ffi.cast("struct monarch_kept_sample *", store + 1) + place


def test_a_sample_that_is_being_written_is_read_from_the_source(
    tmp_path: Path, keep: Callable[..., KeptDataset]
) -> None:
    plain = Records(tmp_path / "records", [100] * 3)
    kept = keep(plain, quota="1MiB")
    entry(kept, 1).state = os.getpid() << 8 | lib.MONARCH_KEPT_WRITING
    assert [kept[1], kept[1]] == [plain[1], plain[1]]
    assert kept.sources() == {"memory": 0, "source": 2}


def test_a_writer_that_was_killed_counts_for_nothing(
    tmp_path: Path, keep: Callable[..., KeptDataset]
) -> None:
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    plain = Records(tmp_path / "records", [100] * 3)
    kept = keep(plain, quota="1MiB")
    assert child.pid is not None
    entry(kept, 1).state = child.pid << 8 | lib.MONARCH_KEPT_WRITING
    assert [kept[1], kept[1]] == [plain[1], plain[1]]
    assert kept.sources() == {"memory": 1, "source": 1}


def test_other_datasets_and_jobs_have_memory_of_their_own(
    keep: Callable[..., KeptDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keep(Labelled(12), quota="1MiB")
    first[1]
    assert keep(Labelled(13), quota="1MiB").sources()["source"] == 0
    assert keep(Labelled(12), [1], quota="1MiB").sources()["source"] == 0
    assert keep(Labelled(12), quota="1MiB").sources()["source"] == 1
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert keep(Labelled(12), quota="1MiB").sources()["source"] == 0


def test_jobs_without_a_launcher_are_known_by_their_session(
    keep: Callable[..., KeptDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in JOBS:
        monkeypatch.delenv(variable, raising=False)
    keep(Labelled(12), quota="1MiB")[1]
    assert keep(Labelled(12), quota="1MiB").sources()["source"] == 1
    monkeypatch.setattr(os, "getsid", lambda pid: 4711)
    assert keep(Labelled(12), quota="1MiB").sources()["source"] == 0
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-1")
    keep(Labelled(12), quota="1MiB")[1]
    monkeypatch.setattr(os, "getsid", lambda pid: 4712)
    assert keep(Labelled(12), quota="1MiB").sources()["source"] == 1


def test_nothing_is_written_beyond_the_callers_buffer(
    tmp_path: Path, keep: Callable[..., KeptDataset]
) -> None:
    plain = Records(tmp_path / "records", [100, 200])
    kept = keep(plain, quota="1MiB")
    for _ in range(2):
        with pytest.raises(ConfigError, match="out: 299 bytes, but the samples have 300"):
            kept.read_into([0, 1], bytearray(299))
        longer = bytearray(310)
        kept.read_into([0, 1], longer)
        assert bytes(longer) == plain[0] + plain[1] + bytes(10)
    entry(kept, 0).length = 250  # not the length that the dataset states
    out = bytearray(b"x" * 110)
    kept.read_into([0], memoryview(out)[:100])
    assert bytes(out) == plain[0] + b"x" * 10


def test_one_name_for_other_sizes_is_another_memory(
    tmp_path: Path, keep: Callable[..., KeptDataset]
) -> None:
    for place, sizes in (("a", [100, 200]), ("b", [200, 100]), ("c", [100, 200])):
        kept = keep(Records(tmp_path / place, sizes), quota="1MiB", name="train")
        assert kept.sources()["source"] == (2 if place == "c" else 0)
        kept.__getitems__([0, 1])


def test_an_empty_batch_has_no_samples(tmp_path: Path, keep: Callable[..., KeptDataset]) -> None:
    for kind in ("bytes", "rows", "objects"):
        assert keep(dataset_of(kind, tmp_path), quota="1MiB").__getitems__([]) == []


@pytest.mark.parametrize("said", ["\udcff", "ME", "ME 5", "ME x y", "ME 5 6 7"])
def test_a_line_of_no_process_hinders_no_start(keep: Callable[..., KeptDataset], said: str) -> None:
    first = keep(Labelled(12), quota="1MiB")
    first[1]
    (path,) = kept_directory().iterdir()
    line = os.fsencode(said.replace("ME", str(Identity.of(os.getpid()))))
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert keep(Labelled(12), quota="1MiB").sources()["source"] == 1


def test_a_full_directory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    gc.collect()
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(MonarchError, match=r"No space left on device; free"):
            KeptDataset(Labelled(12), quota="1MiB")
    assert os.listdir("/proc/self/fd") == before
    for path in kept_directory().iterdir():
        path.unlink()


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with _locked(path):
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    try:
        with _locked(path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def come_and_go(seed: int) -> None:
    random = np.random.RandomState(seed)
    for _ in range(60):
        length = int(random.randint(5, 7))
        kept = KeptDataset(Labelled(length), quota="64KiB")
        assert kept[4]["more"][0] == 4
        kept.close()


def test_processes_that_come_and_go_at_once() -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=come_and_go, args=(seed,)) for seed in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * 4


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    plain = Records(tmp_path / "records", [100] * 8)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        kept = KeptDataset(plain, quota="1MiB")
        loader = StagedLoader(kept, batch_sampler=[[1, 2], [3]], workers=1, tensors=False)
        assert len(list(loader)) == 2
        loader.close()
        del loader, kept
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"quota": "much"}, "quota"),
        ({"quota": 0}, "quota"),
        ({"keeps": [12]}, "keeps"),
        ({"keeps": [True]}, "keeps"),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        KeptDataset(Labelled(12), **arguments)


def test_a_dataset_without_identity_needs_a_name(keep: Callable[..., KeptDataset]) -> None:
    class Local(Labelled):
        pass

    with pytest.raises(ConfigError, match="name"):
        KeptDataset(Local(12))
    assert len(keep(Local(12), quota="1MiB", name="train")) == 12


def test_a_directory_of_others_is_refused(shm: Path) -> None:
    place = kept_directory()
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    with pytest.raises(MonarchError, match="not a directory of this user alone"):
        KeptDataset(Labelled(12), quota="1MiB")
    place.rmdir()
