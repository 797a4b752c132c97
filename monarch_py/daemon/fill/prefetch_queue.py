"""The queues of files that are to be filled before programs read them."""

from collections import deque
from collections.abc import Callable

import numpy as np

from monarch_py.arrays import NO_IDS, Bools, Ids, Uints

# With `prefetch: eager`, at most this many entries of the catalog are examined in one iteration of
# the daemon's loop.
MEETS = 65536


class PrefetchQueue:
    """The files to be filled in advance. First come the files that `monarch warm` commands have
    requested, in the sequence of the commands. With `prefetch: eager`, all other files that the
    scan finds follow.

    eager : whether the configuration contains `prefetch: eager`
    entries_met : how many entries of the catalog `meet` has returned so far
    """

    def __init__(self, *, eager: bool) -> None:
        self.eager = eager
        # `_asked` contains the files that commands have requested, `_met` all others. The elements
        # of both queues are (ticket, files). A ticket is a string that identifies a command; "" if
        # no command has requested the files.
        self._asked: deque[tuple[str, Ids]] = deque()
        self._met: deque[tuple[str, Ids]] = deque()
        # Files that `next` has returned and whose fill has not ended: they are still WANTED or
        # FILLING.
        self._given: list[tuple[str, Ids]] = []
        self.entries_met = 0

    def __len__(self) -> int:
        return sum(map(len, self.waiting()))

    def meet(self, entries: int) -> tuple[Ids, bool]:
        """If `eager`, returns an array (n,) of the catalog's next entries, and whether more entries
        follow. Otherwise returns no entries, and False.

        entries : the length of the catalog
        """
        if not self.eager:
            return NO_IDS, False
        first, last = self.entries_met, min(entries, self.entries_met + MEETS)
        self.entries_met = last
        return np.arange(first, last, dtype=np.uint64), last < entries

    def add(self, ids: Ids, ticket: str = "") -> None:
        """Appends files to one of the two queues: with a ticket to the files of commands, without
        one to the others. The ticket identifies the command, so that the command can cancel its
        fills (`take_back`)."""
        (self._asked if ticket else self._met).append((ticket, ids))

    def add_first(self, ids: Ids) -> None:
        """Puts files back at the head of their queue (see `add`). `next` has returned these files
        before."""
        for ticket, given in self._given:
            mine = np.isin(ids, given)
            if ticket and mine.any():
                self._asked.appendleft((ticket, ids[mine]))
                ids = ids[~mine]
        if len(ids):
            self._met.appendleft(("", ids))

    def next(self, least: int, most: int, sizes: Uints, most_bytes: float) -> Ids:
        """Takes the next files from the queues and returns them as an array (n,): at most `most`
        files, with at most `most_bytes` [bytes] together. The first `least` files may exceed
        `most_bytes`. Returns an empty array if both queues are empty.

        sizes : the sizes of all entries of the catalog [bytes]
        """
        queue = self._asked or self._met
        if not queue:
            return NO_IDS
        ticket, ids = queue.popleft()
        fit = int((np.cumsum(sizes[ids[:most]], dtype=np.float64) <= most_bytes).sum())
        taken = min(most, max(0, least, fit))
        if len(ids) > taken:
            queue.appendleft((ticket, ids[taken:]))
        self._given.append((ticket, ids[:taken]))
        return ids[:taken]

    def settle(self, is_open: Callable[[Ids], Bools]) -> Ids:
        """Forgets those files returned by `next` whose fill has ended, with or without success.
        Returns an array (n,) of the others.

        is_open : a function that returns an array (n,): for each file, whether it is WANTED or
            FILLING
        """
        given: dict[str, list[Ids]] = {}
        for ticket, ids in self._given:
            given.setdefault(ticket, []).append(ids)
        together = ((ticket, np.concatenate(parts)) for ticket, parts in given.items())
        left = [(ticket, ids[is_open(ids)]) for ticket, ids in together]
        self._given = [(ticket, ids) for ticket, ids in left if len(ids)]
        return np.concatenate([NO_IDS, *(ids for _, ids in self._given)])

    def had_turn(self, ids: Ids) -> Bools:
        """Returns an array (n,): for each file, whether `next` has returned it and its fill has not
        ended."""
        return np.isin(ids, np.concatenate([NO_IDS, *(given for _, given in self._given)]))

    def take_back(self, ticket: str) -> Ids:
        """Removes a command's files from the queues, and returns them as an array (n,). Includes
        the files that `next` has returned and whose fill has not ended."""
        back = [ids for owner, ids in (*self._asked, *self._given) if owner == ticket]
        self._asked = deque((owner, ids) for owner, ids in self._asked if owner != ticket)
        self._given = [(owner, ids) for owner, ids in self._given if owner != ticket]
        return np.concatenate([NO_IDS, *back])

    def waiting(self) -> list[Ids]:
        return [ids for _, ids in (*self._asked, *self._met)]

    def meant(self) -> list[Ids]:
        """Returns the queued files, and those that `next` has returned and whose fill has not
        ended."""
        return [*self.waiting(), *(ids for _, ids in self._given)]
