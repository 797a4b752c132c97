"""The transport under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from csrc.building import NATIVE
from csrc.sanitizing import SANITIZERS, Built, Program, build_sanitized
from support.draws import sized

PLACES = ("peers/", "testing/peer_table.c", "shared/xxh3.c")
FILES = [name for name in NATIVE if name.startswith(PLACES)]
SECONDS, SEED = sized(0.6, 1.5), 20210914


@pytest.fixture(scope="module", params=SANITIZERS)
def stress(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    program = Program(Path(__file__).with_name("stress_peers.c"), FILES)
    name = request.param
    return build_sanitized(name, tmp_path_factory.mktemp(f"peers_{name}"), {"peers": program})


def test_traffic_of_all_kinds(stress: Built) -> None:
    came, missed, connections = map(int, stress.check("peers", "traffic", SECONDS, SEED).split())
    assert came > 100, "too few ranges arrived"
    assert missed, "every range arrived"
    assert connections > 20


def test_files_that_come_later(stress: Built) -> None:
    stress.check("peers", "later")
