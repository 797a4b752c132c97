"""Reads the rates of source and network from a scenario that `monarch calibrate` has written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from monarch_py.yaml_files.keys import Keys, read_as
from monarch_py.yaml_files.nodes import load_document
from monarch_py.yaml_files.values import Rate


@dataclass(frozen=True, slots=True)
class Performance:
    """Rates of one node, with all its threads together [bytes/s]; None if a rate is not known.

    source : the rate at which the node reads the sources
    link : the rate of the node's link to other nodes
    """

    source: float | None = None
    link: float | None = None

    def of(self, *, is_source: bool) -> float | None:
        return self.source if is_source else self.link


@dataclass(frozen=True, slots=True)
class _Links(Keys):
    """network : the rate of a node's link; `monarch calibrate -o` writes it"""

    OPEN: ClassVar[bool] = True
    network: Rate


@dataclass(frozen=True, slots=True)
class _Measured(Keys):
    """pfs : the source's rate for each number of clients; `monarch calibrate -o` writes it
    rates : the other rates; `monarch calibrate -o` writes them"""

    OPEN: ClassVar[bool] = True
    pfs: dict[Annotated[int, Meta(ge=1, title="clients")], Rate]
    rates: _Links


def load_performance(file: Path) -> Performance:
    """Returns the rates in a scenario. If the file is not a scenario, raises ConfigError, which
    names the file, the line and the key."""
    measured = read_as(*load_document(file, "calibration", "'pfs' and 'rates'"), _Measured)
    # The rate of one client: the total rate in the measurement with the fewest clients, divided by
    # the number of these clients (NoPFS, section 4: t(g) / g).
    fewest = min(measured.pfs)
    return Performance(measured.pfs[fewest] / fewest, measured.rates.network)
