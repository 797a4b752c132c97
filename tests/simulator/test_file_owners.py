"""Several nodes that share a source: what reading it once, and what a plan, is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.draws import sized

from benchmarks.simulator.figures import TOGETHER, divided
from monarch_py.simulator.comparison import compare
from monarch_py.simulator.keys import load_scenario, shipped_scenarios
from monarch_py.simulator.result import Result
from monarch_py.simulator.scenario import Scenario

SOURCE_ONLY = "staging-buffer"


def four_nodes(part: int = 4) -> Scenario:
    """Four nodes with a quarter of the dataset each, a source of 200 MB/s, links of 1 Gbit/s.

    part : by which number the dataset is divided
    """
    return divided(load_scenario(shipped_scenarios()["four_nodes"]), part)


def runs(epochs: int, part: int = 4) -> dict[str, Result]:
    return simulated(replace(four_nodes(part), epochs=epochs))


def simulated(scenario: Scenario) -> dict[str, Result]:
    results = compare(scenario, TOGETHER)
    return {name: result for name, result in results.items() if isinstance(result, Result)}


@pytest.fixture(scope="module")
def five() -> dict[str, Result]:
    return runs(5)


def later(result: Result) -> float:
    return float(np.mean(result.epoch_seconds[1:]))


def test_nodes_that_share_read_the_source_once(five: dict[str, Result]) -> None:
    dataset = sum(five["hash"].bytes.values()) / 5
    for name in ("hash", "planned"):
        assert five[name].details["bytes_from_pfs"] == dataset
    # Of NoPFS's nodes each reads until a copy is there.
    assert five["nopfs"].details["bytes_from_pfs"] > 1.5 * dataset


def test_what_sharing_saves_from_the_second_epoch_on(five: dict[str, Result]) -> None:
    assert later(five[SOURCE_ONLY]) >= 2.6 * later(five["hash"])
    assert later(five[SOURCE_ONLY]) >= 4 * later(five["planned"])
    # And before: nobody is slower than the source.
    for name in ("hash", "planned"):
        assert five[name].epoch_seconds[0] <= 1.02 * five[SOURCE_ONLY].epoch_seconds[0]


def test_a_plan_puts_files_where_they_are_used(five: dict[str, Result]) -> None:
    """In 5 epochs the node of four that uses a file most often uses it 2.48 times (multinomial), so
    that 0.504 of the bytes come over links; with a hash it is three quarters."""
    assert five["hash"].share["remote"] == pytest.approx(0.75, abs=0.01)
    assert five["planned"].share["remote"] == pytest.approx(1 - 2.48 / 5, abs=0.005)
    assert later(five["hash"]) >= 1.25 * later(five["planned"])


def test_in_many_epochs_a_plan_is_worth_less() -> None:
    """Of 90 uses the node that uses a file most often has 27 or so."""
    many = runs(90, sized(16, 4))
    seconds = {name: sum(result.epoch_seconds) for name, result in many.items()}
    assert seconds["hash"] >= 1.05 * seconds["planned"]


@pytest.mark.parametrize("compute", [200e6, 25e6])
def test_two_nodes_with_room_for_everything(compute: float) -> None:
    """NoPFS, built and run so, reads the source 1.88 times; with owners it is once, in an epoch as
    long as the source or compute takes."""
    scenario = replace(four_nodes(sized(8, 4)), nodes=2)
    dataset = int(scenario.sizes().sum())
    staging, ram = scenario.classes
    rates = replace(scenario.rates, compute=compute)
    roomy = (staging, replace(ram, capacity_bytes=dataset))
    results = simulated(replace(scenario, classes=roomy, rates=rates))
    assert results["nopfs"].details["bytes_from_pfs"] / dataset == pytest.approx(1.92, abs=0.05)
    least = max(dataset / 200e6, dataset / 2 / compute)
    for name in ("hash", "planned"):
        assert results[name].details["bytes_from_pfs"] == dataset
        assert results[name].epoch_seconds[0] <= 1.15 * least
