"""Engines fill from each other under AddressSanitizer, UndefinedBehaviorSanitizer and
ThreadSanitizer, while links are cut and files change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from csrc.building import NATIVE
from csrc.sanitizing import SANITIZERS, Built, Program, build_sanitized
from support.draws import sized

SECONDS, SEED, MOST_ROUNDS = sized(0.5, 2.0), 20220829, 32
# The numbers that stress_nodes.c prints, in the order of its output. Each must exceed the value
# that is given here.
LEAST = {
    "copies": sized(50, 200),
    "bytes from the other nodes": sized(1 << 18, 1 << 20),
    "whole reads": sized(25, 100),
    "reads of parts": sized(5, 20),
    "links": sized(5, 20),
    "files that have moved": sized(5, 20),
}


@pytest.fixture(scope="module", params=SANITIZERS)
def stress(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    program = Program(Path(__file__).with_name("stress_nodes.c"), NATIVE)
    name = request.param
    return build_sanitized(name, tmp_path_factory.mktemp(f"nodes_{name}"), {"nodes": program})


def test_nodes_that_fill_from_each_other(stress: Built, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("source", "tier0", "tier1", "tier2")]
    for place in places:
        place.mkdir()
    total = dict.fromkeys(LEAST, 0)
    # On a busy machine, a program with a sanitizer may need several rounds until every number
    # exceeds its value in LEAST.
    for turn in range(MOST_ROUNDS):
        said = stress.check("nodes", *places, SECONDS, SEED + turn)
        for what, count in zip(total, map(int, said.split()), strict=True):
            total[what] += count
        if all(total[what] > least for what, least in LEAST.items()):
            return
        for place in places:
            shutil.rmtree(place)
            place.mkdir()
    raise AssertionError(f"a number is too small: reached {total}, required {LEAST}")
