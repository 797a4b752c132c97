"""Tests the order in which waiting readers are served. Ranks are served in proportion to their
shares. No reader starves. As long as any reader waits, a reader is served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.arrays import pointer
from monarch_py.native import lib

RANKS: int = lib.MONARCH_RANKS
PLACES: int = lib.MONARCH_DEMANDS
NOBODY = -1
Shares = dict[int, int]


def serve(
    shares: Shares, ranks: Sequence[int], places: Sequence[int], since: Sequence[int], rounds: int
) -> list[int]:
    """Returns the reader that each round serves, or NOBODY if no reader waits. A reader that was
    served waits again at once.

    ranks, places, since : for each reader, its rank, the slot in which it waits, and the first
        round in which it waits
    """
    share = np.zeros(RANKS, dtype=np.uint32)
    share[list(shares)] = list(shares.values())
    of, at = np.array(ranks, dtype=np.uint8), np.array(places, dtype=np.uint8)
    first, served = np.array(since, dtype=np.uint64), np.zeros(rounds, dtype=np.uint32)
    lib.monarch_serve_in_order(
        pointer(share),
        pointer(of),
        pointer(at),
        pointer(first),
        len(of),
        rounds,
        pointer(served),
    )
    return [int(reader) - 1 for reader in served]


@st.composite
def waiting(draw: st.DrawFn, *, late: int = 0) -> tuple[Shares, list[int], list[int], list[int]]:
    """Draws shares and readers. Readers belong to a rank with a share, to a rank without one, or to
    no rank (0).

    late : the last round in which a reader begins to wait
    """
    shares = draw(st.dictionaries(st.integers(1, 6), st.integers(1, 40), max_size=5))
    places = draw(st.lists(st.integers(0, PLACES - 1), min_size=1, max_size=24, unique=True))
    n = len(places)
    ranks = draw(st.lists(st.integers(0, 7), min_size=n, max_size=n))
    since = draw(st.lists(st.integers(0, late), min_size=n, max_size=n))
    return shares, ranks, places, since


@settings(max_examples=examples(80), deadline=None)
@given(waiting(late=300))
def test_as_long_as_somebody_waits_somebody_is_served(
    case: tuple[Shares, list[int], list[int], list[int]],
) -> None:
    served = serve(*case, rounds=400)
    since = case[-1]
    for number, reader in enumerate(served):
        assert (reader == NOBODY) == (number < min(since)), number
        assert reader == NOBODY or since[reader] <= number


@settings(max_examples=examples(80), deadline=None)
@given(waiting())
def test_nobody_waits_for_ever(case: tuple[Shares, list[int], list[int], list[int]]) -> None:
    """Every reader is served again within a bounded number of rounds.

    The bound follows from three facts. First, between two turns of rank A, rank B gets at most
    (share of B) / (share of A) + 1 turns. Second, the readers of a rank are served one after the
    other. Third, in one pass over all slots, the search serves each reader without a rank once, and
    gives all other turns to ranks.
    """
    shares, ranks, places, since = case
    members = Counter(rank for rank in ranks if rank in shares)
    longest = {
        rank: (sum(shares[other] / shares[rank] + 2 for other in members) + 1)
        * (members[rank] + 1)
        * len(ranks)
        for rank in members
    }
    rounds = int(max([*longest.values(), len(ranks)])) * 2 + 2
    served = np.array(serve(shares, ranks, places, since, rounds))
    for reader, rank in enumerate(ranks):
        at = [-1, *np.flatnonzero(served == reader).tolist(), rounds]
        bound = longest.get(rank, len(ranks))
        assert max(b - a for a, b in pairwise(at)) <= bound, (reader, at)


@settings(max_examples=examples(80), deadline=None)
@given(waiting())
def test_ranks_are_served_in_proportion(
    case: tuple[Shares, list[int], list[int], list[int]],
) -> None:
    """Readers of two ranks with the shares a and b wait all the time. After any number of rounds,
    in which one rank had n turns and the other m, n / a and m / b differ by at most 1 / a + 1 / b
    (Goyal et al., 1996, theorem 1)."""
    shares, ranks, _, _ = case
    served = serve(*case, rounds=600)
    done: Counter[int] = Counter()
    present = {rank for rank in ranks if rank in shares}
    for reader in served:
        done[ranks[reader]] += 1
        for a, b in combinations(sorted(present), 2):
            ahead = abs(done[a] / shares[a] - done[b] / shares[b])
            assert ahead <= (1 / shares[a] + 1 / shares[b]) * 1.001, (a, b, done)


@settings(max_examples=examples(80), deadline=None)
@given(waiting(late=100))
def test_who_belongs_to_no_rank_is_served_as_if_there_were_none(
    case: tuple[Shares, list[int], list[int], list[int]],
) -> None:
    shares, ranks, places, since = case
    # All readers wait from the first round on. If a reader came later, the two runs could differ,
    # because their searches might then be at different slots.
    with_ranks = serve(shares, ranks, places, [0] * len(since), rounds=300)
    without = serve({}, ranks, places, [0] * len(since), rounds=300)
    for here, there in zip(with_ranks, without, strict=True):
        if ranks[here] not in shares or ranks[there] not in shares:
            assert here == there


@settings(max_examples=100, deadline=None)
@given(waiting(), st.integers(0, 6))
def test_one_rank_alone_is_served_as_none(
    case: tuple[Shares, list[int], list[int], list[int]], rank: int
) -> None:
    _, ranks, places, since = case
    ranks = [rank] * len(ranks)
    alone = serve({rank: 3} if rank else {}, ranks, places, since, rounds=200)
    assert alone == serve({}, ranks, places, since, rounds=200)
    # The readers are served slot by slot, from the lowest slot on.
    order = sorted(range(len(places)), key=places.__getitem__)
    assert alone == [order[number % len(order)] for number in range(200)]


@settings(max_examples=examples(80), deadline=None)
@given(waiting())
def test_everybody_is_met_where_nobody_can_be_served(
    case: tuple[Shares, list[int], list[int], list[int]],
) -> None:
    """If no reader can be served, the search looks at every waiting reader before it ends. The
    thread that searches then goes to sleep, so it must not miss a reader."""
    shares, ranks, places, _ = case
    share = np.zeros(RANKS, dtype=np.uint32)
    share[list(shares)] = list(shares.values())
    of, at = np.array(ranks, dtype=np.uint8), np.array(places, dtype=np.uint8)
    met = np.zeros(len(ranks), dtype=np.uint32)
    count = lib.monarch_meet_all(
        pointer(share),
        pointer(of),
        pointer(at),
        len(of),
        pointer(met),
    )
    assert (count, sorted(met.tolist())) == (len(ranks), list(range(len(ranks))))


def test_a_rank_that_comes_late_has_saved_up_nothing() -> None:
    served = serve({1: 1, 2: 1}, [1, 2], [0, 1], [0, 500], rounds=600)
    assert served[:500] == [0] * 500
    assert served[500:520].count(0) in (9, 10, 11)


def test_threes_and_ones() -> None:
    """A rank with three shares and two readers is served three times as often as a rank with one
    share and one reader."""
    served = serve({1: 3, 2: 1}, [1, 1, 2], [10, 11, 200], [0, 0, 0], rounds=400)
    assert (served.count(0), served.count(1), served.count(2)) == (150, 150, 100)
