"""The ranks compute the same holders of files as the daemons do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nodes.lone_nodes import Catalog, alone, node
from support.draws import cases

from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.holders import Files, kept_by_daemons, kept_here
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.native import lib
from monarch_py.plan.builders import index_files
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import NONE

KIB, MIB = 1 << 10, 1 << 20
FILES = 200


@pytest.fixture(autouse=True, scope="module")
def without_peers() -> Iterator[None]:
    with alone():
        yield


class Session:
    """A source with files, and the configuration of daemons."""

    def __init__(self, root: Path, quotas: tuple[int, ...], more: str = "") -> None:
        self.quotas, self.source = quotas, root / "source"
        random = np.random.default_rng(len(quotas))
        self.sizes = random.integers(1, 32 * KIB, FILES).tolist()
        for number, size in enumerate(self.sizes):
            path = self.source / f"{number % 7}" / f"{number:03}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(size))
        tiers = ""
        for tier, quota in enumerate(quotas):
            (root / f"tier{tier}").mkdir()
            tiers += f"  - mount_point: {root}/tier{tier}\n    max_storage_quota: {quota}\n"
        self.config = root / "tiers.yaml"
        self.config.write_text(f"sources:\n  - path: {self.source}\n{more}hierarchy:\n{tiers}")
        index = index_files(self.source)
        self.paths = Files(index).paths or []
        names = [path.removeprefix(f"{self.source}/").encode() for path in self.paths]
        hashes = [int(lib.monarch_path_hash(0, name, len(name))) for name in names]
        self.index = index
        self.catalog = Catalog(
            list(zip(hashes, index.sizes.tolist(), strict=True)), list(range(FILES))
        )


# The quotas of each node's tiers [bytes], one tuple per test case. A single node has room for all
# files only with the last tuple.
QUOTAS = [(MIB,), (MIB // 2, MIB), (2 * MIB,), (16 * MIB,)]
CLUSTERS = [(nodes, quotas) for nodes in (1, 2, 3) for quotas in QUOTAS]
SHORT = [(1, QUOTAS[1]), (2, QUOTAS[3]), (3, QUOTAS[0])]


@pytest.mark.parametrize("cluster", cases(CLUSTERS, short=SHORT))
def test_the_daemons_decide_alike(cluster: tuple[int, tuple[int, ...]], tmp_path: Path) -> None:
    nodes, quotas = cluster
    session = Session(tmp_path, quotas)
    found = kept_by_daemons(Files(session.paths), nodes, session.config, extra=True)
    ids = session.catalog.ids()
    for rank in range(nodes):
        daemon = node(rank, (quotas,) * nodes, session.catalog)
        daemon.step(scanned=True)
        assert daemon.policy.owners(ids).tolist() == found[:, 0].tolist()
        assert daemon.policy.keeps(ids).tolist() == (found == rank).any(axis=1).tolist()


def test_an_index_and_the_rest_of_the_sources_lead_to_the_same(tmp_path: Path) -> None:
    session = Session(tmp_path, (MIB,))
    every = kept_by_daemons(Files(session.paths), 2, session.config, extra=False)
    of_index = kept_by_daemons(Files(session.index), 2, session.config, extra=False)
    assert of_index.tolist() == every.tolist()
    half = Files(session.paths[::2])
    alone_there = kept_by_daemons(half, 2, session.config, extra=False)
    beside = kept_by_daemons(half, 2, session.config, session.paths[1::2], extra=False)
    assert beside.tolist() == every[::2].tolist() != alone_there.tolist()


def test_what_the_daemons_leave_out_has_no_holder(tmp_path: Path) -> None:
    more = "    exclude: ['3/*']\n    min_size: 4KiB\n"
    session = Session(tmp_path, (16 * MIB,), more)
    strange = tmp_path / "elsewhere"
    strange.write_bytes(bytes(8 * KIB))
    files = Files([*session.paths, strange])
    found = kept_by_daemons(files, 2, session.config, extra=False)[:, 0]
    out = [
        f"{session.source}/3/" in path or size < 4 * KIB or path == str(strange)
        for path, size in zip(files.paths or [], files.sizes.tolist(), strict=True)
    ]
    assert (found == NONE).tolist() == out


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    session = Session(tmp_path, (MIB,))
    every = kept_by_daemons(Files(session.paths), 2, session.config, extra=False)
    twice = Files([*session.paths, *session.paths[:50]])
    found = kept_by_daemons(twice, 2, session.config, session.paths, extra=False)
    assert found.tolist() == [*every.tolist(), *every[:50].tolist()]


def test_files_are_found_in_the_sources_through_links(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(tmp_path, (MIB,))
    every = kept_by_daemons(Files(session.paths), 2, session.config, extra=False)
    (tmp_path / "link").symlink_to(session.source)
    linked = [path.replace("/source/", "/link/") for path in session.paths]
    found = kept_by_daemons(Files(linked), 2, session.config, extra=False)
    assert found.tolist() == every.tolist()
    assert not caplog.records
    strange = tmp_path / "elsewhere"
    strange.write_bytes(b"1")
    kept_by_daemons(Files([*linked, strange]), 2, session.config, extra=False)
    assert f"1 of {FILES + 1} files are in no source" in caplog.text
    with pytest.raises(ConfigError, match=r"^files: none is in a source of .*/tiers\.yaml"):
        kept_by_daemons(Files([strange]), 2, session.config, extra=False)


def test_samples_of_one_file_share_its_holder(tmp_path: Path) -> None:
    session = Session(tmp_path, (16 * MIB,))
    names = [str(Path(path).relative_to(session.source)) for path in session.paths[:3]]
    where = ([2, 0, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1])
    index = Index.of("fixed", session.source, names, session.index.sizes[:3], where)
    by_file = kept_by_daemons(Files(session.paths[:3]), 3, session.config, extra=False)
    by_sample = kept_by_daemons(Files(index), 3, session.config, extra=False)
    assert by_sample.tolist() == by_file[[2, 0, 0, 1]].tolist()


def test_without_daemons_memory_is_filled_to_97_percent() -> None:
    sizes = np.random.default_rng(0).integers(50, 150, 20_000)
    for share in (0.25, 0.5, 0.8):
        quota = int(sizes.sum() * share / 4)
        owner = kept_here(Files(SimpleNamespace(sizes=sizes)), 4, quota)[:, 0]
        for each in range(4):
            assert 0.97 * quota <= sizes[owner == each].sum() <= quota


def test_what_tells_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONARCH_CONFIG", raising=False)
    file = tmp_path / "a"
    file.write_bytes(b"1")
    with pytest.raises(ConfigError, match=r"^quota: it is not known what a node holds"):
        LocalFirstSampler([file])
    with pytest.raises(ConfigError, match=r"^files: .*/b: No such file"):
        LocalFirstSampler([tmp_path / "b"], quota=1)
    with pytest.raises(ConfigError, match=r"^files: give the paths"):
        LocalFirstSampler(7, quota=1)
    with pytest.raises(ConfigError, match=r"^files: the paths decide which files daemons keep"):
        LocalFirstSampler(SimpleNamespace(sizes=[1, 2]), config=tmp_path / "tiers.yaml")


def test_the_configuration_is_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(tmp_path, (16 * MIB,))
    monkeypatch.setenv("MONARCH_CONFIG", str(session.config))
    sampler = LocalFirstSampler(session.paths, 4, rank=0, world_size=2, ranks_per_node=1)
    assert set(sampler.holders[:, 0].tolist()) == {0, 1}
