"""The rates of a file that `monarch calibrate` has written: a scenario, of which this reads the
source's rate and the network's."""

from __future__ import annotations

from pathlib import Path

import yaml

from monarch_py.config.schema import Performance
from monarch_py.document import Spot, load_document, values

__all__ = ["load_performance"]


def load_performance(file: Path) -> Performance:
    """ConfigError, one sentence that names file, line and key, if it is none."""
    root, spot = load_document(file, "calibration", "'pfs' and 'rates'")
    mend = "write it with `monarch calibrate -o`"
    found = _entries(root, spot, mend)
    if "pfs" not in found or "rates" not in found:
        raise spot.error("has no 'pfs' and 'rates'", mend)
    return Performance(_for_one(*found["pfs"], mend), _link(*found["rates"], mend))


def _entries(node: yaml.Node, spot: Spot, mend: str) -> dict[str, tuple[yaml.Node, Spot]]:
    if not isinstance(node, yaml.MappingNode):
        raise spot.wrong_type(node, "a mapping", mend)
    return {str(key.value): (value, spot.at_key(key, str(key.value))) for key, value in node.value}


def _for_one(node: yaml.Node, spot: Spot, mend: str) -> float:
    """The share of one client of the fewest that are told (NoPFS 4: t(g) / g)."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise spot.error("has no rate", mend)
    rates: dict[int, float] = {}
    for key, value in node.value:
        here = spot.at_key(key, str(key.value))
        rates[values.integer(1)(key, here)] = values.rate(value, here)
    return rates[min(rates)] / min(rates)


def _link(node: yaml.Node, spot: Spot, mend: str) -> float:
    found = _entries(node, spot, mend)
    if "network" not in found:
        raise spot.error("has no 'network'", mend)
    return values.rate(*found["network"])
