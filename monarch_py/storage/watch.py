"""Checks every second whether the tiers' paths still lead to the directories that the daemon has
open.

The daemon uses a descriptor of the tier's directory, but clients open copies by path. If the path
led to another directory, clients would open wrong files. So the daemon stops using such a tier, and
also a tier whose directory another user could replace.
"""

import threading
from collections.abc import Callable, Sequence

from monarch_py.storage.tiers import Tier, why_gone, why_refused
from monarch_py.util.ownership import doubts
from monarch_py.util.threads import note_failure

# Time between two checks of the tiers [s].
LOOK_S = 1.0


class TierWatch:
    """Checks the tiers in a thread of its own, so that a file system that hangs blocks no other
    thread.

    found : the thread calls this once for each tier that can no longer be trusted. The arguments
        are the tier's number and a sentence that gives the reason
    """

    def __init__(self, tiers: Sequence[Tier | None], found: Callable[[int, str], None]) -> None:
        self._left = {number: tier for number, tier in enumerate(tiers) if tier is not None}
        self._found = found
        self._ends = threading.Event()
        threading.Thread(target=self._watch, name="tiers", daemon=True).start()

    def _watch(self) -> None:
        while not self._ends.wait(LOOK_S):
            try:
                self._look()
            except Exception as error:  # the thread continues, because the next check may succeed
                note_failure(error)

    def _look(self) -> None:
        for number, tier in tuple(self._left.items()):
            if (why := _why_not_trusted(tier)) and not self._ends.is_set():
                self._found(number, why)
                del self._left[number]

    def close(self) -> None:
        """Ends the watch, without waiting for a check that hangs. No more calls of `found`
        begin."""
        self._ends.set()


def _why_not_trusted(tier: Tier) -> str:
    if not tier.is_in_place():
        return why_gone(tier.config.mount_point)
    try:
        found = doubts(tier.config.mount_point)
    except OSError:  # the error may be temporary, so the next check decides
        return ""
    certain = (doubt for doubt in found if doubt.is_certain)
    return next((why_refused(tier.config.mount_point, doubt) for doubt in certain), "")
