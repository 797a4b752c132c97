"""Finds a tier's manifest, and the copies that it records."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from monarch_py.storage.tiers import tier_root
from support.session import Session, wait_until


def manifest_of(session: Session, tier: int = 0) -> Path:
    return tier_root(session.tiers[tier]) / "manifest.sqlite"


def copies_in(session: Session, tier: int = 0) -> dict[str, Path]:
    """Returns the recorded copies, by the relative paths of their source files."""
    folder = tier_root(session.tiers[tier]) / "c"
    with closing(sqlite3.connect(f"file:{manifest_of(session, tier)}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT path, copy FROM copies").fetchall()
    return {path.decode(): folder / f"{copy:013x}" for path, copy in rows}


def wait_recorded(session: Session, count: int, tier: int = 0) -> dict[str, Path]:
    """Waits until the manifest records `count` copies. Returns these copies, by the relative paths
    of their source files."""

    def recorded() -> dict[str, Path] | None:
        try:
            found = copies_in(session, tier)
        except sqlite3.OperationalError:
            return None  # the manifest is locked for a moment, or does not exist yet
        return found if len(found) == count else None

    return wait_until(recorded, timeout=20, what=f"{count} rows in the manifest")
