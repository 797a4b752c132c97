"""The rates of a file that `monarch calibrate` has written: a scenario, of which this reads the
source's rate and the network's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from monarch_py.document import Keys, load_document, read_as
from monarch_py.document.values import Rate

__all__ = ["Performance", "load_performance"]


@dataclass(frozen=True, slots=True)
class Performance:
    """Rates of one node, all its threads together [bytes/s]; None = not known.

    source : what the sources give it;  link : its link to other nodes
    """

    source: float | None = None
    link: float | None = None

    def of(self, *, is_source: bool) -> float | None:
        return self.source if is_source else self.link


@dataclass(frozen=True, slots=True)
class _Links(Keys):
    """network : `monarch calibrate -o` writes it"""

    OPEN: ClassVar[bool] = True
    network: Rate


@dataclass(frozen=True, slots=True)
class _Measured(Keys):
    """pfs : `monarch calibrate -o` writes it
    rates : `monarch calibrate -o` writes it"""

    OPEN: ClassVar[bool] = True
    pfs: dict[Annotated[int, Meta(ge=1, title="clients")], Rate]
    rates: _Links


def load_performance(file: Path) -> Performance:
    """ConfigError, one sentence that names file, line and key, if it is none."""
    measured = read_as(*load_document(file, "calibration", "'pfs' and 'rates'"), _Measured)
    # The share of one client of the fewest that are told (NoPFS 4: t(g) / g).
    fewest = min(measured.pfs)
    return Performance(measured.pfs[fewest] / fewest, measured.rates.network)
