"""The transport under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from csrc.building import CSRC, NATIVE, build_program
from csrc.test_sanitizers import SANITIZERS, Built, flags_of, skip_without

PLACES = ("peers/", "testing/peer_table.c", "shared/xxh3.c")
SOURCES = [name for name in NATIVE if name.startswith(PLACES)]
SECONDS, SEED = 1.5, 20210914


@pytest.fixture(scope="module", params=SANITIZERS)
def stress(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    sanitizer = SANITIZERS[request.param]
    directory = tmp_path_factory.mktemp(f"peers_{request.param}")
    prefix = skip_without(sanitizer, directory)
    sources = [Path(__file__).with_name("stress_peers.c"), *(CSRC / name for name in SOURCES)]
    flags = ["-pthread", *flags_of(sanitizer)]
    build_program(directory / "peers", *sources, flags=flags)
    return Built(sanitizer, directory, prefix)


def test_traffic_of_all_kinds(stress: Built) -> None:
    came, missed, connections = map(int, stress.check("peers", "traffic", SECONDS, SEED).split())
    assert came > 100, "hardly anything came"
    assert missed, "no file was ever missing"
    assert connections > 20


def test_files_that_come_later(stress: Built) -> None:
    stress.check("peers", "later")
