"""Simulates training jobs under policies: scenarios, the performance model, and the engine."""

from monarch_py.simulator.keys import load_scenario, shipped_scenarios
from monarch_py.simulator.rates import Curve
from monarch_py.simulator.scenario import (
    Checkpoint,
    Dataset,
    NodeOverride,
    Rates,
    Scenario,
    SizeLaw,
    StorageClass,
)

__all__ = [
    "Checkpoint",
    "Curve",
    "Dataset",
    "NodeOverride",
    "Rates",
    "Scenario",
    "SizeLaw",
    "StorageClass",
    "load_scenario",
    "shipped_scenarios",
]
