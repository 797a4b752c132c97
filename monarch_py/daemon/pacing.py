"""Decides how long the daemon's loop pauses after an iteration, and how far the scan may go."""

import math
import time
from collections.abc import Callable

from monarch_py.daemon.fill.directory_prefetch import DirectoryPrefetch
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.plans.manager import PlanManager
from monarch_py.daemon.scan.pace import LEAST, ScanPace
from monarch_py.scan.walk import ALL_NAMES

# Clients ring the doorbell, a futex in shared memory, to wake the daemon's loop. If it does not
# ring, the loop sleeps for TURN_MS [ms]. So TURN_MS is also the interval of the heartbeat, and of
# the checks of switch files and of recently changed files.
TURN_MS = 250
# How long the loop sleeps [ms] after QUIET_TURNS iterations in which the doorbell did not ring. An
# iteration after a sleep is expensive, because the processor caches are cold. On a node that only
# sent files to others, four iterations per second took a fifth of the processor time of sending.
QUIET_TURN_MS = 1000
QUIET_TURNS = 8
# How long the loop sleeps while anything is filled or checked [ms]. Each iteration then adapts the
# number of concurrent reads to the sources' throughput. It finds the files that readers wait for: a
# waiting reader wakes the engine, but not the loop. It also records the copies that the engine has
# published.
BUSY_TURN_MS = 50
# Up to FEW fills of files in use do not shorten the loop's sleep. The reason is that programs hand
# over the descriptors of most small files. The engine copies these files without the loop.
FEW = 16
# How long the loop sleeps [ms] while programs open files of a plan, or while fills in advance will
# soon need more files from the scan. The loop must soon notice what programs open, and what the
# scan has found.
FOLLOWING_TURN_MS = 10
# While the scan waits for a program's first open, the loop checks for that open at this interval
# [ms]. The open itself rings no doorbell.
FIRST_OPEN_MS = 5
# After each iteration the loop rests, to leave the processors to programs.
# REST : the rest lasts this many times as long as the iteration, up to a maximum. If `may_rest_on`
#     allows it, the loop then rests once more for the same time.
# MOST_REST_S : the usual maximum of the rest [s]. With a longer rest, readers might consider the
#     daemon dead.
# SHORT_REST_S : the maximum if work is left, or if programs follow a plan [s].
# NAMES_REST : used while fills in advance must wait for the scan, because almost all files that it
#     has found are filled. Let t be the time until all of these are filled. The maximum of the rest
#     is then t, but not less than SHORT_REST_S, and not more than MOST_REST_S. The minimum is
#     NAMES_REST * t, but not more than LONG_REST_S. Without a minimum, each batch of files from the
#     scan would start an iteration.
# REST_BACK, LONG_REST_S : these replace REST and MOST_REST_S [s] if an iteration costs programs
#     more time than it saves. There are three such cases. First, the engine runs fewer background
#     fills (`Engine.stands_back`). Second, programs hardly wait for the sources. Third, during the
#     rest so far, programs have opened only copies, and no file was filled. The second and third
#     case apply only if no work is left and no plan is followed.
# NAP_S : the first part of the rest, which is never cut short [s]. The other part ends early if the
#     engine has work for the loop, for example a fill that a reader waits for.
REST, MOST_REST_S, SHORT_REST_S, NAP_S = 9, 0.05, 0.01, 0.001
REST_BACK, LONG_REST_S, NAMES_REST = 30, 0.1, 1 / 4
# If an open at the sources takes longer than this on average [s], programs are regarded as waiting
# for the sources. Only then does the loop shorten its rest to fill files in advance. With fast
# sources, such as a local disk, programs need the processors more.
WORTH_HASTE_S = 100e-6


def _is_waiting(opens: int, open_s: float) -> bool:
    """Whether programs wait for the sources.

    opens, open_s : how many files programs have opened at the sources, and the total duration of
        these opens [s]
    """
    return open_s > WORTH_HASTE_S * opens


def rest_after(took_s: float, names_last_s: float, *, is_short: bool) -> float:
    """Returns how long [s] the loop rests after an iteration while programs wait for the sources.

    took_s : duration of the iteration [s]
    names_last_s : how soon all files that the scan has found will be filled [s]; infinite if fills
        in advance do not wait for the scan
    is_short : whether work is left, or programs follow a plan
    """
    if is_short:
        return min(REST * took_s, SHORT_REST_S)
    rest_s = min(REST * took_s, MOST_REST_S, max(names_last_s, SHORT_REST_S))
    if names_last_s < math.inf:
        rest_s = max(rest_s, min(NAMES_REST * names_last_s, LONG_REST_S))
    return rest_s


def may_rest_on(
    rest_s: float, names_last_s: float, orders: int, filled: int, *, is_more: bool
) -> bool:
    """Returns whether the loop may rest once more for the same time. It must not rest if the engine
    would then run out of orders, or would fill all files that the scan has found.

    rest_s : duration of the rest that has just ended [s];  names_last_s : as in `rest_after`
    orders : the engine's number of orders when that rest began
    filled : how many files were filled during that rest
    is_more : whether more files are to be filled in advance, whose fills are not ordered yet
    """
    return 2 * rest_s <= names_last_s and not (is_more and orders < 2 * filled)


class Pacing:
    """The pace of the daemon's loop and of its scan.

    awaits_s : how long the scan waits for a program's first open (see ScanPace) [s]
    is_stopping : a function that returns whether the loop is to end; if so, the loop does not sleep
    """

    def __init__(
        self,
        filler: Filler,
        ahead: DirectoryPrefetch,
        plans: PlanManager,
        *,
        awaits_s: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._filler, self._engine, self._shared = filler, filler.engine, filler.shared
        self._scanner, self._ahead, self._plans = filler.scanner, ahead, plans
        self._is_stopping = is_stopping
        self._scan_pace = ScanPace(time.monotonic(), awaits_s=awaits_s)
        # Whether the scan runs without a limit, whatever programs do.
        self._is_urgent = False
        # How soon all files that the scan has found will be filled [s]. Infinite if fills in
        # advance do not wait for the scan.
        self._names_last_s = math.inf
        # Whether the last iteration has left work: more than FEW fills of files in use, or any
        # other unfinished work.
        self._has_work = True

    # --- the scan ----------------------------------------------------------------------------

    def pace_scan(self) -> None:
        """Limits how far the scan may run ahead of the job. There is no limit in three cases: a
        plan, a command or a cluster needs the complete scan; `prefetch: auto` is off; the scan
        finds copies of earlier sessions."""
        ahead, totals = self._ahead, self._shared.totals()
        allowed = self._scan_pace.step(
            time.monotonic(),
            opens=totals["source_opens"],
            filled=ahead.ordered - ahead.waiting,
            waiting=ahead.waiting,
            found=self._scanner.found,
            size_bytes=ahead.mean_bytes,
            opened_bytes=totals["bytes_from_source"] / max(totals["misses"], 1),
        )
        is_in_cluster = self._filler.nodes is not None
        needs_all = is_in_cluster or self._scanner.is_in_a_hurry or self._plans.is_active
        self._is_urgent = needs_all or not ahead.is_on or self._scanner.finds_copies
        lacks_names = self._scan_pace.lacks_names or 0 < ahead.waiting <= LEAST
        is_waiting = _is_waiting(totals["source_opens"], totals["source_open_ns"] / 1e9)
        is_limited = allowed != ALL_NAMES and self._is_scan_paced()
        awaits_names = is_limited and lacks_names and is_waiting
        self._names_last_s = self._scan_pace.lasts_s(ahead.waiting) if awaits_names else math.inf
        self._scanner.allow(*(ALL_NAMES if self._is_urgent else allowed))

    def _awaits_open(self) -> bool:
        """Whether the scan waits for the first open of a program that is about to begin."""
        return self._is_scan_paced() and self._scan_pace.awaits_open(time.monotonic())

    def _is_scan_paced(self) -> bool:
        return not (self._is_urgent or self._scanner.scanned)

    # --- the loop ----------------------------------------------------------------------------

    def rest(self, took_s: float, *, busy: bool) -> bool:
        """Sleeps after an iteration, to leave the processors to programs. Clients regard the loop
        as awake meanwhile, so they do not ring the doorbell. If the engine has work for the loop
        (see `Engine.rest`), the sleep ends early. Returns whether there is such work.

        took_s : duration of the last iteration [s]
        busy : whether the last iteration has left work undone
        """
        is_short = busy or self._plans.is_awake
        opens, open_s = self._shared.source_opens()
        hardly_wait = opens > 0 and not _is_waiting(opens, open_s) and not is_short
        engine = self._engine
        is_long = (engine.stands_back or hardly_wait) and not self._is_urgent
        rest_s = long_s = min(REST_BACK * took_s, LONG_REST_S)
        if not is_long:
            rest_s = rest_after(took_s, self._names_last_s, is_short=is_short)
        orders, in_use = engine.pending(in_use=False), engine.pending(in_use=True)
        waiting = self._filler.pending - in_use + self._filler.copies.dropping
        self._has_work = waiting > 0 or in_use > FEW
        before, files = self._shared.totals(), engine.files_from_source
        time.sleep(min(rest_s, NAP_S))
        self._shared.beat()
        if engine.rest(max(0.0, rest_s - NAP_S)):
            return True
        if is_short or is_long:
            return False
        filled, is_more = engine.files_from_source - files, len(self._filler.requests.ahead) > 0
        opened = {name: total - before[name] for name, total in self._shared.totals().items()}
        if opened["hits"] and not opened["source_opens"] and not filled and not self._is_urgent:
            more_s = long_s - rest_s  # programs opened only copies
        elif may_rest_on(rest_s, self._names_last_s, orders, filled, is_more=is_more):
            more_s = rest_s
        else:
            return False
        self._shared.beat()
        return engine.rest(max(0.0, more_s))

    def wait(self, rung: int, wait_ms: int) -> int:
        """Sleeps until the doorbell has rung more often than `rung` times, but for at most wait_ms
        [ms]. Returns how often the doorbell has rung by now.

        While the scan waits for a program's first open (`_awaits_open`), the sleep ends early if
        programs wait for the sources. If the first opens show that programs hardly wait, the sleep
        lasts longer. An iteration would then cost programs more time than it saves.

        rung : how often the doorbell had rung at the last call
        """
        while wait_ms > FIRST_OPEN_MS and self._awaits_open():
            rings = self._shared.wait(rung, FIRST_OPEN_MS)
            opens, open_s = self._shared.source_opens()
            if self._is_stopping() or _is_waiting(opens, open_s):
                return rings
            if rings != rung:
                if opens > 0:
                    self._engine.rest(LONG_REST_S)
                return rings
            wait_ms -= FIRST_OPEN_MS
        return self._shared.wait(rung, wait_ms)

    def pause_ms(self, quiet: int) -> int:
        """Returns how long the loop may sleep before its next iteration [ms].

        quiet : iterations since the doorbell last rang
        """
        if self._plans.is_awake or self._names_last_s < math.inf:
            return FOLLOWING_TURN_MS
        if self._ahead.is_awake or (self._has_work and not self._engine.idle):
            return BUSY_TURN_MS
        if quiet < QUIET_TURNS or self._plans.is_active:
            return TURN_MS
        return QUIET_TURN_MS
