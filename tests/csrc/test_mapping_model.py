"""A model of the promotion of mappings, in which the library replaces a mapping of a file in the
source by a mapping of the file's copy. The model tries every order of the steps.

Comments in csrc/preload/mappings (mapping_table.c, mappings.c, move.c) mark the steps by [names];
the labels here are the same. A state describes one process: two pages of a mapping of the source,
the table of slots, the page that a fork clears, and the step at which each thread is. The model
visits all states that can be reached.

Each page of memory has one of five values. "S": a page of the source's file, as it was mapped.
"C": a page of the copy. "D": a page of the source's file that the program has changed in its
private mapping; /proc/self/maps does not show the difference from "S". "O": a page of another
mapping. "-": not mapped, so that any mmap may get this page at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support import draws

SLOTS = 3


class Slot(NamedTuple):
    state: str  # "WAITING" or "REPLACING"; for a free slot, the table has None instead of a Slot
    number: int
    begin: int
    end: int
    advice: int = 0


class Thread(NamedTuple):
    name: str  # "A" or "B"; "V": the child of a vfork, which uses the same memory as "A" and "B"
    script: tuple[tuple[str, int], ...]
    at: str = "next"
    op: tuple[str, int] = ("", 0)
    # The ranges (begin, end, advice) that the step "carve" cuts out of a slot. Until the step "put"
    # writes them into the table, only this thread has them.
    pieces: tuple[tuple[int, int, int], ...] = ()


class State(NamedTuple):
    memory: str
    slots: tuple[Slot | None, ...]
    threads: tuple[Thread, ...]
    # The next step of the helper, the thread that replaces mappings; None if there is no helper.
    helper: str | None
    seen: Slot | None = None  # the slot as the helper read it
    place: int = 0  # the index of the slot `seen` in the table
    done: str = ""
    entry: str = "FILLING"
    edits: int = 0  # the number is odd while a thread changes the table
    numbers: int = 1
    waiting: int = 1
    given_up: bool = False
    # The fields from here to `forking` are in the page that a fork clears in the child.
    lock: str | None = None
    adopted: bool = True  # whether `pid` is not 0
    has_helper: bool = True
    opened: bool = False
    forking: int = 0
    # Only the invariants use these fields.
    touched: frozenset[int] = frozenset()
    disturbed: bool = False
    forked: bool = False
    leaked: bool = False


class Broken(NamedTuple):
    """Errors that the tests plant in the model."""

    no_lock: bool = False
    no_check: bool = False
    no_wait: bool = False  # bug: a call does not wait while its range is being replaced
    no_number: bool = False
    no_adopt: bool = False
    no_second_look: bool = False  # bug: the helper does not check `given_up` a second time
    no_say: tuple[str, ...] = ()  # bug: the library does not wrap these calls
    # Not a bug of the library: a raw munmap may also come between the helper's check of a mapping
    # and the replacement.
    raw_any_time: bool = False
    jump_with_lock: bool = False
    no_start: bool = False  # bug: the child of a fork starts no helper


SOUND = Broken()

Step = tuple[str, State]


def overlaps(slot: Slot | None, page: int) -> bool:
    return slot is not None and slot.begin <= page < slot.end


def count(slots: tuple[Slot | None, ...]) -> int:
    return sum(slot is not None for slot in slots)


def with_slot(s: State, place: int, slot: Slot | None) -> tuple[Slot | None, ...]:
    return (*s.slots[:place], slot, *s.slots[place + 1 :])


def put(s: State, slot: Slot) -> State:
    """Puts the slot into the first free place. If no place is free, the mapping stays on the
    source."""
    for place, old in enumerate(s.slots):
        if old is None:
            fresh = slot._replace(number=s.numbers + 1, state="WAITING")
            return s._replace(slots=with_slot(s, place, fresh), numbers=s.numbers + 1)
    return s._replace(disturbed=True)


def recount(s: State) -> State:
    return s._replace(waiting=0 if s.given_up else count(s.slots))


def locked(s: State, who: str, broken: Broken) -> Iterator[State]:
    """[lock] Yields the state after an attempt to take the lock. If another thread holds the lock,
    the process stops using the lock for good, as the library does when its bounded wait ends.
    Yields nothing if the process has already stopped using it."""
    if s.given_up:
        return
    if s.lock is None or broken.no_lock:
        yield (s if s.adopted or broken.no_adopt else adopt(s))._replace(lock=who, adopted=True)
    else:
        yield s._replace(given_up=True, disturbed=True)


def adopt(s: State) -> State:
    if s.edits:
        return recount(s._replace(slots=(None,) * len(s.slots), edits=0, disturbed=True))
    slots = tuple(slot and slot._replace(state="WAITING") for slot in s.slots)
    return recount(s._replace(slots=slots))


def unlock(s: State) -> State:
    return s._replace(lock=None)


# the steps at which the helper has the copy open
OPEN = {"take", "mark", "taken", "check", "map", "release", "recount"}

# --- the threads of the program ---------------------------------------------------------------

SAYS = {"munmap", "fixed", "write", "advise", "remap"}


def acted(s: State, op: str, page: int) -> State:
    """Returns the state after the system call itself, which changes the page."""
    if s.memory[page] in "-O" and op in {"munmap", "remap", "write", "raw_munmap"}:
        return s
    what = {"munmap": "-", "remap": "-", "raw_munmap": "-", "fixed": "O", "write": "D", "map": "S"}
    after = what.get(op, s.memory[page])
    touched = s.touched if op == "advise" else s.touched | {page}
    return s._replace(memory=s.memory[:page] + after + s.memory[page + 1 :], touched=touched)


def carved(s: State, page: int, op: str) -> State:
    """[carve] Changes the slot whose range contains the page. If the call gives advice, the slot
    shrinks to this page and stores the advice. Any other call frees the slot."""
    for place, slot in enumerate(s.slots):
        if slot is not None and overlaps(slot, page):
            middle = slot._replace(number=s.numbers + 1, begin=page, end=page + 1, advice=1)
            fresh = middle if op == "advise" else None
            touched = s.touched if op == "advise" else s.touched | {page}
            slots = with_slot(s, place, fresh)
            return s._replace(slots=slots, numbers=s.numbers + 1, touched=touched)
    return s


def pieces_of(old: Slot | None, page: int) -> tuple[tuple[int, int, int], ...]:
    """Returns the parts of the old slot's range before and after the page, as (begin, end, advice).
    Each part gets a slot of its own."""
    if old is None:
        return ()
    sides = ((old.begin, page, old.advice), (page + 1, old.end, old.advice))
    return tuple(side for side in sides if side[0] < side[1])


def call(s: State, i: int, broken: Broken) -> Iterator[Step]:
    """Yields the possible next steps of thread i."""
    t = s.threads[i]
    op, page = t.op

    def to(s: State, at: str, **more: object) -> State:
        moved = s.threads[i]._replace(at=at, **more)  # type: ignore[arg-type]
        return s._replace(threads=(*s.threads[:i], moved, *s.threads[i + 1 :]))

    if t.at == "next" and t.script:
        op, page = t.script[0]
        s = to(s, "", script=t.script[1:], op=(op, page))
        says = op in SAYS or op == "map"
        if op in {"fork", "raw_fork"}:
            yield "fork", to(s, "before_fork" if op == "fork" else "forks")
        elif op == "raw_munmap" or op in broken.no_say or not says or not s.waiting:
            yield "no_wait", to(s, "act")
        else:
            yield "say", to(s, "quiet")
    elif t.at == "quiet":
        busy = s.edits or any(overlaps(slot, page) for slot in s.slots)
        yield "quiet", to(s, "lock" if busy else "act")
    elif t.at == "lock":
        for fresh in locked(s, t.name, broken):
            yield "lock", to(fresh, "lost" if fresh.given_up else "busy")
        if s.given_up:
            yield "lock", to(s, "lost")
    elif t.at == "busy":
        replacing = any(overlaps(x, page) and x and x.state == "REPLACING" for x in s.slots)
        if replacing and not broken.no_wait:
            yield "busy", to(unlock(s), "quiet")
        else:
            yield "busy", to(s._replace(edits=1), "carve")
    elif t.at == "carve":
        old = next((x for x in s.slots if x is not None and overlaps(x, page)), None)
        yield "carve", to(carved(s, page, op), "put", pieces=pieces_of(old, page))
    elif t.at == "put":
        for begin, end, advice in t.pieces:
            s = put(s, Slot("WAITING", 0, begin, end, advice))
        yield "put", to(s, "end_edit", pieces=())
    elif t.at == "end_edit":
        yield "end_edit", to(s._replace(edits=0), "recount")
    elif t.at == "recount":
        yield "unlock", to(unlock(recount(s)), "act")
    elif t.at == "lost":
        if any(overlaps(x, page) and x and x.state == "REPLACING" for x in s.slots):
            yield "lost", to(s, "quiet")
        else:
            idle = not any(x and x.state == "REPLACING" for x in s.slots)
            yield "lost", to(s._replace(waiting=0 if idle else s.waiting), "act")
    elif t.at == "act":
        # The library does not see a raw munmap. If it comes between the helper's check of a mapping
        # and the replacement, the result is wrong. This race is known (test_what_remains), so it is
        # left out here.
        if op == "raw_munmap" and not broken.raw_any_time and s.helper in {"map", "check"}:
            return
        yield "act", to(acted(s, op, page), "add_lock" if op == "map" else "next")
    elif t.at == "add_lock":
        for fresh in locked(s, t.name, broken):
            # The child of a vfork has no helper, so nothing would promote the mapping.
            if not fresh.given_up and t.name == "V":
                yield "lock", to(unlock(fresh), "next")
            else:
                yield "lock", to(fresh, "next" if fresh.given_up else "add_edit")
        if s.given_up:
            yield "lock", to(s, "next")
    elif t.at == "add_edit":
        yield "edit", to(s._replace(edits=1), "add_put")
    elif t.at == "add_put":
        fresh = put(s, Slot("WAITING", 0, page, page + 1))
        yield "put", to(fresh, "add_end")
    elif t.at == "add_end":
        fresh = s._replace(edits=0, touched=s.touched - {page})
        yield "end_edit", to(unlock(recount(fresh)), "start")
    elif t.at == "start":
        for fresh in locked(s, t.name, broken):
            if fresh.given_up:
                yield "start", to(fresh, "next")
                continue
            needed = fresh.waiting and not fresh.has_helper and t.name != "V"
            if needed and fresh.helper is None:
                runs = fresh._replace(has_helper=True, helper="look")
                yield "start", to(unlock(runs), "next")
            else:
                yield "start", to(unlock(fresh), "next")
        if s.given_up:
            yield "start", to(s, "next")
    elif t.at == "before_fork":
        yield "before_fork", to(s._replace(forking=s.forking + 1), "wait_opened")
    elif t.at == "wait_opened":
        # A fork waits while the helper has the copy open, but only for a limited time. If the copy
        # is still open then, the fork goes on, and its child may inherit the helper's descriptor.
        if not s.opened:
            yield "wait_opened", to(s, "forks")
        else:
            yield "wait_opened", to(s._replace(disturbed=True), "forks")
    elif t.at == "forks":
        waited = op == "fork" and s.forking > 0
        parent = s._replace(forking=s.forking - 1) if waited else s
        yield "parent", to(parent, "next")
        # Only this thread exists in the child, and the page that a fork clears is all zeros there.
        child = s._replace(
            lock=None, adopted=False, has_helper=False, opened=False, forking=0, helper=None,
            forked=True, leaked=op == "fork" and not s.disturbed and s.helper in OPEN,
            disturbed=s.disturbed or op == "raw_fork",
        )  # fmt: skip
        child = to(child, "start" if waited and s.waiting and not broken.no_start else "next")
        yield "child", child._replace(threads=(child.threads[i],))


# JUMPS: steps at which a signal handler may jump out of the call, because signals are not blocked.
# HOLDS: steps at which the thread has the lock, and signals are blocked.
JUMPS = {"quiet", "act", "wait_opened"}
HOLDS = {"busy", "carve", "put", "end_edit", "recount", "add_edit", "add_put", "add_end"}


def interrupted(s: State, i: int, jumps: bool, broken: Broken) -> Iterator[Step]:
    t = s.threads[i]
    if jumps and (t.at in JUMPS or (broken.jump_with_lock and t.at in HOLDS)):
        moved = t._replace(at="next", op=("", 0), pieces=())
        threads = (*s.threads[:i], moved, *s.threads[i + 1 :])
        yield "jump", s._replace(threads=threads, disturbed=True)
    # The child of a vfork may be killed at any step, also while it has the lock.
    if t.name == "V" and t.at != "dead" and (t.script or t.at != "next"):
        moved = t._replace(at="dead", script=(), op=("", 0), pieces=())
        threads = (*s.threads[:i], moved, *s.threads[i + 1 :])
        yield "killed", s._replace(threads=threads, disturbed=True)


# --- the helper ---------------------------------------------------------------------------------


def helper(s: State, broken: Broken) -> Iterator[Step]:
    at, seen = s.helper, s.seen
    slot = s.slots[s.place] if seen is not None else None
    same = (
        slot is not None
        and seen is not None
        and slot.state == "WAITING"
        and (broken.no_number or slot.number == seen.number)
    )
    if at == "look":
        found = False
        for place, slot in enumerate(s.slots):
            if slot is not None and slot.state == "WAITING":
                found = True
                for fresh in locked(s, "H", broken):
                    if fresh.given_up:
                        yield "look", fresh._replace(helper="leave")
                    else:
                        yield (
                            "look",
                            unlock(fresh)._replace(
                                helper="judge", seen=fresh.slots[place], place=place
                            ),
                        )
        if not found or s.given_up:
            yield "look", s._replace(helper="leave")
    elif at == "judge":
        if s.entry == "BYPASS":
            yield "judge", s._replace(helper="drop")
        elif s.entry == "PRESENT":
            yield "judge", s._replace(helper="open", opened=True)
        else:  # FILLING: the helper sleeps and looks again later
            yield "judge", s._replace(helper="leave", seen=None)
    elif at == "drop":
        for fresh in locked(s, "H", broken):
            slots = with_slot(fresh, s.place, None) if same else fresh.slots
            after = fresh if fresh.given_up else unlock(recount(fresh._replace(slots=slots)))
            yield "drop", after._replace(helper="leave", seen=None, disturbed=True)
        if s.given_up:
            yield "drop", s._replace(helper="leave", seen=None)
    elif at == "open":
        if s.forking:
            yield "open", s._replace(helper="close")
            # The helper waits for the end of the fork only for a bounded time, because the end is
            # never reported if a signal handler has left fork with longjmp.
            yield "expired", s._replace(helper="take", disturbed=True)
        else:
            yield "open", s._replace(helper="take")
    elif at == "take":
        for fresh in locked(s, "H", broken):
            yield "take", fresh._replace(helper="close" if fresh.given_up else "mark")
        if s.given_up:
            yield "take", s._replace(helper="close")
    elif at == "mark" and seen is not None:
        if same:
            s = s._replace(slots=with_slot(s, s.place, seen._replace(state="REPLACING")))
        yield "mark", unlock(s)._replace(helper="taken" if same else "close")
    elif at == "taken" and slot is not None:
        if s.given_up and not broken.no_second_look:
            back = with_slot(s, s.place, slot._replace(state="WAITING"))
            yield "given_up", s._replace(helper="close", slots=back)
        else:
            yield "given_up", s._replace(helper="check")
    elif at == "check" and seen is not None:
        there = s.memory[seen.begin : seen.end]
        right = s.entry == "PRESENT" and (broken.no_check or set(there) <= {"S", "D"})
        yield "check", s._replace(helper="map" if right else "release", done="wrong")
    elif at == "map" and seen is not None:
        copies = "C" * (seen.end - seen.begin)
        memory = s.memory[: seen.begin] + copies + s.memory[seen.end :]
        yield "map", s._replace(helper="release", memory=memory, done="done")
    elif at == "release":
        fresh = s._replace(slots=with_slot(s, s.place, None), helper="recount")
        yield "release", fresh._replace(disturbed=s.disturbed or s.done != "done", done="")
    elif at == "recount":
        for fresh in locked(s, "H", broken):
            after = fresh if fresh.given_up else unlock(recount(fresh))
            yield "recount", after._replace(helper="close")
        if s.given_up:
            yield "recount", s._replace(helper="close")
    elif at == "close":
        yield "close", s._replace(helper="leave", opened=False, seen=None, place=0)
    elif at == "leave":
        s = s._replace(seen=None, place=0)
        for fresh in locked(s, "H", broken):
            if fresh.given_up:
                yield "leave", fresh._replace(helper=None)
                continue
            after = unlock(recount(fresh))
            if after.waiting:
                yield "sleep", after._replace(helper="look")
            else:
                yield "leave", after._replace(helper=None, has_helper=False)
        if s.given_up:
            yield "leave", s._replace(helper=None)


# --- the search through all states ----------------------------------------------------------------


def around(s: State) -> Iterator[Step]:
    """Yields the steps that no thread of the process makes: the fill ends, or a page that is not
    mapped becomes part of another mapping."""
    if s.entry == "FILLING":
        yield "filled", s._replace(entry="PRESENT")
        yield "bypass", s._replace(entry="BYPASS", disturbed=True)
    for page, what in enumerate(s.memory):
        if what == "-":
            yield "reuse", s._replace(memory=s.memory[:page] + "O" + s.memory[page + 1 :])


def steps(s: State, broken: Broken, jumps: bool) -> Iterator[Step]:
    yield from around(s)
    for i in range(len(s.threads)):
        yield from call(s, i, broken)
        yield from interrupted(s, i, jumps, broken)
    if s.helper is not None:
        yield from helper(s, broken)


def is_over(s: State) -> bool:
    return all(t.at in {"next", "dead"} and not t.script for t in s.threads) and s.helper is None


class WrongError(Exception):
    """An invariant does not hold. The message lists the steps that lead to the wrong state."""


def judge_step(s: State, label: str, after: State) -> str | None:
    if label == "map" and s.seen is not None:
        there = s.memory[s.seen.begin : s.seen.end]
        if set(there) != {"S"}:
            return f"{there!r} is replaced"
    if after.leaked:
        return "a child inherits the helper's descriptor"
    return None


def judge_end(s: State, raw: bool) -> str | None:
    if s.slots.count(None) != len(s.slots) and s.adopted and not s.given_up and not s.forked:
        return "something waits and nobody promotes it"
    if s.disturbed or raw or s.entry != "PRESENT":
        return None
    left = [page for page in range(len(s.memory)) if page not in s.touched]
    if any(s.memory[page] != "C" for page in left):
        return "what nobody touched is not on the copy"
    return None


def explore(*scripts: tuple[str, str], broken: Broken = SOUND, jumps: bool = False) -> int:
    """Visits all states, and returns their number. Raises WrongError if an invariant does not hold.

    scripts : for each thread, its name, and its calls with their pages: ("A", "munmap 0, advise 1")
    """
    threads = tuple(
        Thread(name, tuple((w.split()[0], int(w.split()[1])) for w in words.split(", ")))
        for name, words in scripts
    )
    raw = any("raw" in words for _, words in scripts)
    first = State("SS", (Slot("WAITING", 1, 0, 2), *[None] * (SLOTS - 1)), threads, "look")
    came: dict[State, tuple[State, str] | None] = {first: None}
    before: dict[State, list[State]] = {}
    queue, ends = deque([first]), []

    def wrong(what: str, s: State, label: str = "") -> WrongError:
        path = [label]
        while (step := came[s]) is not None:
            s, label = step
            path.append(label)
        return WrongError(f"{what}: {' '.join(reversed(path))}")

    while queue:
        s = queue.popleft()
        found = False
        for label, after in steps(s, broken, jumps):
            found = True
            if what := judge_step(s, label, after):
                raise wrong(what, s, label)
            before.setdefault(after, []).append(s)
            if after not in came:
                came[after] = (s, label)
                queue.append(after)
        if is_over(s):
            ends.append(s)
            if what := judge_end(s, raw):
                raise wrong(what, s)
        elif not found:
            raise wrong("it hangs", s)
    # From every state, an end state must be reachable. Otherwise, some thread would wait forever.
    reached, queue = set(ends), deque(ends)
    while queue:
        for earlier in before.get(queue.popleft(), []):
            if earlier not in reached:
                reached.add(earlier)
                queue.append(earlier)
    if len(reached) != len(came):
        raise wrong("it never ends", next(s for s in came if s not in reached))
    return len(came)


# --- what holds ----------------------------------------------------------------------------------

CALLS = ["munmap 0", "munmap 1", "fixed 0", "write 1", "remap 0", "advise 1", "map 0"]
# The first of these calls frees a slot, the second splits a slot, and the third adds a slot. All
# other calls take the same steps as the first one.
DIFFERENT = ["munmap 0", "advise 1", "map 0"]


# The threads are alike, so exchanging the calls of two threads leads to the same states.
@pytest.mark.parametrize("first", draws.cases(CALLS, short=["munmap 0", "map 0"]))
def test_two_threads_change_the_two_pages(first: str) -> None:
    page = first[-1]
    for second in CALLS:
        if second[-1] != page:
            assert explore(("A", first), ("B", second), jumps=True) > 1000


@pytest.mark.parametrize("words", ["munmap 0, map 0", "write 0, munmap 0", "advise 0, munmap 1"])
def test_one_after_the_other(words: str) -> None:
    assert explore(("A", words), jumps=True) > 500


@pytest.mark.parametrize("kind", ["fork", "raw_fork"])
@pytest.mark.parametrize("after", draws.cases(CALLS, short=DIFFERENT))
def test_forks_at_any_point(kind: str, after: str) -> None:
    explore(("A", f"{kind} 0, {after}"), jumps=True)
    explore(("A", f"{kind} 0"), ("B", after))
    explore(("A", f"{kind} 0, {kind} 0"))


@pytest.mark.parametrize("call_", draws.cases(CALLS, short=DIFFERENT))
def test_the_child_of_a_vfork_is_killed_at_any_point(call_: str) -> None:
    """If the child of a vfork is killed, perhaps while it has the lock, no thread waits forever,
    and no wrong page is replaced."""
    other = "munmap 1" if call_.endswith("0") else "munmap 0"
    assert explore(("V", call_), ("A", other)) > 1000


def test_calls_that_nobody_sees() -> None:
    explore(("A", "raw_munmap 0"), ("B", "munmap 1"))
    explore(("A", "raw_munmap 0, map 0"))


def test_it_is_promoted() -> None:
    """A mapping that nothing disturbs is promoted, also in the child of a fork (judge_end checks
    this)."""
    assert explore(("A", "advise 0")) > 20
    assert explore(("A", "fork 0")) > 20


# --- the check finds errors ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "scripts", "what"),
    [
        (Broken(no_check=True), [("A", "raw_munmap 0")], "is replaced"),
        (Broken(no_wait=True), [("A", "munmap 0")], "is replaced"),
        (
            Broken(no_lock=True),
            [("A", "munmap 0"), ("B", "munmap 1")],
            "is replaced|copy|nobody promotes",
        ),
        (Broken(no_number=True), [("A", "write 0")], "is replaced"),
        (Broken(no_say=("write",)), [("A", "write 0")], "'D.*is replaced"),
        (Broken(no_say=("munmap",)), [("A", "munmap 0")], "is replaced"),
        (Broken(no_adopt=True), [("A", "fork 0")], "never ends|on the copy|nobody promotes"),
        (Broken(no_second_look=True), [("V", "munmap 1"), ("A", "munmap 0")], "is replaced"),
        (Broken(no_start=True), [("A", "fork 0")], "on the copy|nobody promotes"),
    ],
    ids=str,
)
def test_a_planted_error_is_found(
    broken: Broken, scripts: list[tuple[str, str]], what: str
) -> None:
    with pytest.raises(WrongError, match=what):
        explore(*scripts, broken=broken)


def test_what_remains() -> None:
    """The library does not see a raw munmap. If such a call comes between the helper's check of a
    mapping and the mapping's replacement, the wrong memory is replaced. This race is known and
    documented."""
    with pytest.raises(WrongError, match="is replaced"):
        explore(("A", "raw_munmap 0"), broken=Broken(raw_any_time=True))
