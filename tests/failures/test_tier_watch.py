"""The code that watches tiers must distinguish a temporary error of a file system from a replaced
directory."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from monarch_py.storage import watch as tierwatch
from monarch_py.storage.tiers import Tier
from monarch_py.util.ownership import Doubt


class Config:
    mount_point = Path("/local/me")


class InPlace:
    config = Config()

    def is_in_place(self) -> bool:
        return True


def why(monkeypatch: pytest.MonkeyPatch, found: list[Doubt] | OSError) -> str:
    def doubts(_: Path) -> list[Doubt]:
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(tierwatch, "doubts", doubts)
    tier: Tier = InPlace()  # type: ignore[assignment]
    return tierwatch._why_not_trusted(tier)


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.ENOMEM])
def test_an_error_of_a_moment_takes_no_tier_away(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    assert why(monkeypatch, OSError(error, "not now")) == ""


def test_what_is_certain_does(monkeypatch: pytest.MonkeyPatch) -> None:
    certain, other = (Doubt(i == 1, f"text {i}", f"hint {i}") for i in (1, 2))
    assert why(monkeypatch, [other]) == ""
    assert why(monkeypatch, [other, certain]) == "tier /local/me goes unused: text 1; hint 1"
