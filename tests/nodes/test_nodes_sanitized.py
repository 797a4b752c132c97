"""Engines that fill from each other under AddressSanitizer, UndefinedBehaviorSanitizer and
ThreadSanitizer, while links are cut and everything changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from csrc.building import CSRC, NATIVE, build_program
from csrc.test_sanitizers import SANITIZERS, Built, flags_of, skip_without

SECONDS, SEED = 4, 20220829


@pytest.fixture(scope="module", params=SANITIZERS)
def stress(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    sanitizer = SANITIZERS[request.param]
    directory = tmp_path_factory.mktemp(f"nodes_{request.param}")
    prefix = skip_without(sanitizer, directory)
    sources = [Path(__file__).with_name("stress_nodes.c"), *(CSRC / name for name in NATIVE)]
    # The files of csrc say _GNU_SOURCE themselves.
    flags = ["-U_GNU_SOURCE", "-pthread", *flags_of(sanitizer)]
    build_program(directory / "nodes", *sources, flags=flags)
    return Built(sanitizer, directory, prefix)


def test_nodes_that_fill_from_each_other(stress: Built, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("source", "tier0", "tier1", "tier2")]
    for place in places:
        place.mkdir()
    said = stress.check("nodes", *places, SECONDS, SEED)
    filled, from_peers, whole_reads, part_reads, links, moved = map(int, said.split())
    assert filled > 200, "hardly any copy was made"
    assert from_peers > 1 << 20, "hardly anything came from the other node"
    assert whole_reads > 100
    assert part_reads > 20
    assert links > 20
    assert moved > 20
