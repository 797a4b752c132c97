"""Several nodes with a plan, which says who keeps what: the source is read once all the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from support.epoch import Reader, make_files
from support.nodes import Node, Nodes
from support.session import MIB, wait_until
from torch.utils.data import DistributedSampler

from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler as Planned

RANKS, FILES, SIZE, EPOCHS, SEED = 3, 120, 100_000, 3, 7


def follows(node: Node) -> bool:
    return bool(node.status()["plans"][0]["state"] == "following")


def planned(source: SlowSource, ranks: int, to: Path) -> tuple[list[str], Path]:
    """Files, by name, and the plan of a training on them with a rank on each node."""
    make_files(source.backing, FILES, SIZE)
    names = sorted(path.name for path in source.backing.iterdir())
    index = Index.of("files", source.mountpoint, names, [SIZE] * FILES)
    loader = Loader(Planned(FILES, ranks, SEED), ranks, 2)
    Plan((index,), (PlanPart("training", 0, loader),), EPOCHS, ranks).save(to)
    return names, to


def test_a_plan_shares_the_files_out_and_the_source_is_read_once(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
    tmp_path: Path,
) -> None:
    """Each node has room for half of the files: each file has an owner, and a half of them another
    holder, which has no copy before the owner has. What is read again in later epochs would come
    from the source where that is faster."""
    (source,) = mounts(1)
    names, plan = planned(source, RANKS, tmp_path / "plan.npz")
    quota = FILES * (SIZE + 8192) // 2 + MIB
    staging = {"mount_point": str(tmp_path / "area"), "max_storage_quota": 4 * MIB}
    (tmp_path / "area").mkdir()
    once = {"plan": str(plan), "staging": staging, "peers": {"fetch": "holders"}}
    nodes = nodes_factory([source] * RANKS, [quota] * RANKS, **once)
    source.reset()
    nodes.start()
    for node in nodes.all:
        wait_until(partial(follows, node), what="a plan")
    assert sum(node.nodes()["own_files"] for node in nodes.all) == FILES
    for epoch in range(EPOCHS):
        with ExitStack() as stack:
            readers = []
            for rank, node in enumerate(nodes.all):
                sampler: DistributedSampler[int] = DistributedSampler(
                    range(FILES),  # type: ignore[arg-type]  # its length is what it wants
                    RANKS,
                    rank,
                    seed=SEED,
                )
                sampler.set_epoch(epoch)
                order = [int(names[i]) for i in sampler]
                readers.append(
                    stack.enter_context(
                        Reader(epoch_reader, node, "read", MIB, 1, source.mountpoint, order)
                    )
                )
            for reader in readers:
                reader.end()
    nodes.wait_idle()
    totals = [node.totals() for node in nodes.all]
    assert all(map(follows, nodes.all))
    assert sum(each["source_bytes_read_by_fills"] for each in totals) == FILES * SIZE
    assert sum(each["fallbacks"] for each in totals) == 0
    # The plan keeps more at home than the half that anybody would who knew nothing.
    assert sum(each["bytes_from_peers"] for each in totals) > 0
    assert all(node.nodes()["kept_files"] > FILES // RANKS for node in nodes.all)


def test_who_is_there_first_reads_nothing_for_the_others(
    nodes_factory: Callable[..., Nodes], mounts: Callable[[int], list[SlowSource]], tmp_path: Path
) -> None:
    """It fetches ahead, and the other node's daemon does not serve yet."""
    (source,) = mounts(1)
    _, plan = planned(source, 2, tmp_path / "plan.npz")
    staging = {"mount_point": str(tmp_path / "area"), "max_storage_quota": 2 * MIB}
    (tmp_path / "area").mkdir()
    quota = FILES * (SIZE + 8192) // 2 + MIB
    nodes = nodes_factory([source] * 2, [quota] * 2, plan=str(plan), staging=staging)
    first, late = nodes.all
    with first.start(), late:
        first.wait_scanned()
        wait_until(lambda: late.seen_by(first)["last_failure"] != "ok", what="an attempt")
        late.start()
        late.wait_scanned()
        wait_until(partial(follows, late), what="a plan")
        nodes.wait_idle()
        assert first.totals()["bytes_from_peers"] > 0
        read = sum(node.totals()["source_bytes_read_by_fills"] for node in nodes.all)
        assert read == FILES * SIZE
