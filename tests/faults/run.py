"""Faults in `monarch run`, which starts a daemon, runs the program and ends the daemon."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from trials.reading import Reading

from faults.scenario import (
    END_LIMIT_S,
    LAPS_LIMIT_S,
    SIZES,
    TRACER,
    Outcome,
    Site,
    noted_in,
)

__all__ = ["RunSite"]


class RunSite(Site):
    """A site with one role, `run`: `monarch run` and the processes that it starts."""

    def _run(self, role: str, words: Sequence[str]) -> Outcome:
        outcome = Outcome()
        self.log.unlink(missing_ok=True)
        session = self._session()
        prefix = [*self._prefix(words), *session.command("run"), "--"]
        state = self.directory / "state"
        with (
            noted_in(outcome, "the run"),
            Reading(
                self._reader, session, self.source, SIZES, state,
                seed=7, threads=2, prefix=prefix, preload=False,
            ) as reading,
        ):  # fmt: skip
            self._read(reading, words, outcome)
        if self.log.exists() and "lingered" in self.log.read_text(errors="replace"):
            outcome.broken.append("a process that `monarch run` started did not end")
        self._look_at_what_is_left(outcome)
        return outcome

    def _read(self, reading: Reading, words: Sequence[str], outcome: Outcome) -> None:
        """Lets the program read and end. If `monarch run` fails, it must print the reason. In no
        case may the program have read wrong bytes."""
        try:
            reading.wait_laps(2, LAPS_LIMIT_S)
            self._change()
            reading.wait_laps(1, LAPS_LIMIT_S)
            said = reading.finish(2 * END_LIMIT_S)
        except AssertionError:
            # A program may have skipped some of its laps only if it has ended with an error. It
            # must then have printed the reason, unless the fault has killed it.
            if not reading.process.poll():
                raise
            said = reading.finish(2 * END_LIMIT_S)
        status = reading.process.returncode
        outcome.ended = f"status {status}"
        is_killed = words[:1] == ["kill"] and status == -signal.SIGKILL
        has_said_why = 0 < status < TRACER and re.search(r"^monarch: ", said, re.M)
        assert "Traceback" not in said, said[-600:]
        assert status == 0 or is_killed or has_said_why, f"status {status}: {said[-300:]}"
