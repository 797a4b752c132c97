"""Another user of a node takes the address of a daemon that has died. No node accepts him, he gets
no bytes of a file, and no node makes a copy from what he sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodes.test_sums import named_by
from peers.offers import request
from support.epoch import content
from support.epochs import Cluster
from support.nodes import Node
from support.session import wait_until

from monarch_py.native import lib

FILES, SIZE = 24, 300_000
NOBODY, VICTIM, LIVE = 65534, 2, 0
# How many times the impostor is asked for his status: often enough to get each of his four replies
# twice.
ASKED = 8


def endpoint(node: Node) -> str:
    return "{}:{}".format(*node.address)


@contextmanager
def impostor(cluster: Cluster, source: Path) -> Iterator[dict[str, Any]]:
    """Runs the impostor in the victim's place. Yields a dictionary, to which the impostor's counts
    of requests are added when the context ends."""
    live = cluster.nodes[LIVE]
    wanted = named_by(live, str(cluster.files[0]))
    asked = (request(wanted) + bytes(lib.MONARCH_MAC_BYTES)).hex()
    places = [endpoint(cluster.nodes[VICTIM]), endpoint(live), str(source), asked]
    program = Path(__file__).with_name("impostor.py")
    process = subprocess.Popen(
        [sys.executable, str(program), str(NOBODY), *places],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{NOBODY}\n"
        yield seen
        said, _ = process.communicate("", timeout=20)
        seen.update(json.loads(said))
    finally:
        process.kill()
        process.communicate()


def why(cluster: Cluster) -> str:
    told = cluster.nodes[LIVE].connection.ask("all")["nodes"][VICTIM]
    assert not told["answers"]
    return str(told["why"])


def copies_are_right(cluster: Cluster) -> bool:
    """Returns whether all copies in the tiers have the content of their source files. The first
    bytes of a copy show which file it belongs to."""
    known = {content(seed, SIZE)[:16]: content(seed, SIZE) for seed in cluster.files}
    kept = [copy.read_bytes() for node in cluster.nodes for copy in node.copies()]
    return bool(kept) and all(known.get(copy[:16]) == copy for copy in kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nothing_of_him_is_taken_and_nothing_given(
    cluster_factory: Callable[..., Cluster],
) -> None:
    cluster = cluster_factory(3, FILES, SIZE, tier={"persistent": True})
    source = cluster.mounts[0].backing
    source.chmod(0o700)
    victim = cluster.nodes[VICTIM]
    victim.kill()
    with impostor(cluster, source) as seen:
        cluster.epoch(0, 1)
        reasons = [why(cluster) for _ in range(ASKED)]
        for node in cluster.nodes[:VICTIM]:
            assert victim.seen_by(node)["last_failure"] in ("other_node", "refused")
    assert seen["proofs"] >= ASKED
    assert seen["kept_out"]
    assert (seen["trusted"], seen["stolen"], seen["replayed"]) == (0, 0, 0)
    named = f"did not answer at {endpoint(victim)}: rank {LIVE} answered in place of rank {VICTIM}"
    assert named in reasons
    assert {reason for reason in reasons if reason != named} <= {"belongs to another session"}
    victim.start()
    victim.wait_scanned()
    wait_until(lambda: victim.seen_by(cluster.nodes[0])["usable"], timeout=60)
    cluster.epoch()
    assert copies_are_right(cluster)
    for node in cluster.nodes:
        node.stop()
        node.start()
    for node in cluster.nodes:
        node.wait_scanned()
    cluster.epoch()
    assert copies_are_right(cluster)
