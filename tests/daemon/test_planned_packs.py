"""If the files of a plan are in a pack, the daemon makes their copies from the pack, in the plan's
order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from daemon.following import plan_of, train
from daemon.planned_site import Factory, wait_followed
from support.files import Files, age
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import Kind, State
from monarch_py.packs.tar import write_pack
from monarch_py.plan import Plan

FILES, SIZE = 400, 8 << 10
# Bound on the number of bytes read, relative to the total size of the files. The pack's index and
# the bytes between its members are read too.
MOST_BYTES = 1.35


def copied(session: Session) -> list[str]:
    """Returns the names of the files that have copies, in the order in which the copies were
    begun."""
    generation = int(session.connection.ask("where")["generation"])
    catalog = CatalogReader.open(session.paths, generation)
    words = catalog.words
    there = (word.state(words) == State.PRESENT) & (catalog.entries["kind"] == Kind.FILE)
    found = np.flatnonzero(there)
    # Copies are numbered in the order in which they are begun.
    begun = np.argsort(word.copy(words[found]))
    return [catalog.path(int(at)) for at in found[begun]]


def test_members_are_filled_in_the_plans_order_through_the_pack(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> None:
    mounted = slow_factory()
    root = mounted.mountpoint / "data"
    files = Files(mounted.backing / "data").add_many(FILES, SIZE)
    age(files.root)
    write_pack(files.root, mounted.backing / "train.tar")
    plan = plan_of(files, root, tmp_path / "plan.npz", epochs=2)
    names = sorted(files.digests)
    order = [names[at] for at in Plan.load(plan).timeline().section(0).node(0).tolist()]
    assert sorted(order) == names != order

    mounted.latency(read=0.005)
    source = {"path": str(root), "pack": str(mounted.mountpoint / "train.tar")}
    session = session_factory([source], plan=str(plan)).start()
    wait_followed(session)
    wait_until(lambda: len(copied(session)) == FILES, what="copies of all files", every=0.1)
    assert copied(session) == order
    counts = mounted.counts()
    # Only the pack and its index are opened.
    assert counts["open"] == 2
    assert FILES * SIZE <= counts["bytes_read"] <= MOST_BYTES * FILES * SIZE

    mounted.reset()
    train(session, root, epochs=2)
    assert (mounted.counts()["open"], mounted.counts()["bytes_read"]) == (0, 0)
    done = session.monarch("verify", "--source")
    assert done.stdout == f"{FILES} copies checked, 0 damaged, 0 outdated\n"
