"""Two processes under the library change files in turn, and a third process without the library
checks the results (turns.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from trials.turns import PLACES, grounds, take_turns

# Speed of the source -> the number of changes. On a slow source, a check of all files takes ten
# times as long.
SHORT, LONG = {"local": 80, "slow": 20}, {"local": 4000, "slow": 1000}


@pytest.mark.parametrize(
    ("seed", "counts"), [(1, SHORT), pytest.param(2, LONG, marks=pytest.mark.long)], ids=["1", "2"]
)
@pytest.mark.parametrize("place", PLACES)
def test_everybody_sees_every_change(
    tmp_path: Path, slowsource_binary: Path, place: str, seed: int, counts: dict[str, int]
) -> None:
    with grounds(tmp_path, place, slowsource_binary) as session:
        take_turns(session, seed, counts[place.split(", ")[0]])
