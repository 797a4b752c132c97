"""The staging buffers of the nodes: which samples are prefetched, when, and from where.

Samples are prefetched ("staged") in the order in which the node will read them, as long as the
buffer has room (NoPFS, section 5.2.2). A sample is identified by its index in this order.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection

from benchmarks.published.behaviours import Behaviour
from benchmarks.published.clients import ClientLog
from benchmarks.published.holders import Holders
from benchmarks.published.inputs import LOCAL, PFS, REMOTE, Inputs, floats, numbers

__all__ = ["Buffer", "Staging"]

NOT_STAGED = float("inf")


class Buffer:
    """One node's staging buffer.

    order : (samples,) the file of each sample
    ready : (samples,) the time at which the sample reaches the buffer [s]; NOT_STAGED if it never
        does
    source : (samples,) the origin of the sample. Samples that were fetched directly, without the
        buffer, have an origin too
    """

    def __init__(self, order: array[int], files: int, threads: int) -> None:
        self.order = order
        self.ready = array("d", [NOT_STAGED]) * len(order)
        self.source = bytearray(len(order))
        self.ahead = 0  # the next sample to stage
        self.freed = 0  # the next sample to free
        self.asked = 0  # the next sample that will be read
        self.used = 0.0  # [bytes]
        self.known = bytearray(files)  # 1 for each file that takes no room when it is staged again
        self.threads = [0.0] * threads  # the time [s] at which each thread becomes free
        self.turn = 0


class Staging:
    """The staging buffers of all nodes, and the methods that fill the buffers and free room.

    from_peers : whether samples may be prefetched from other nodes
    from_pfs : whether samples may be prefetched from the PFS
    """

    def __init__(
        self,
        inputs: Inputs,
        holders: Holders,
        log: ClientLog,
        from_peers: bool,
        from_pfs: bool,
    ) -> None:
        self.buffers = [
            Buffer(numbers(order), inputs.files, inputs.scenario.staging.threads)
            for order in inputs.orders
        ]
        self.sizes = floats(inputs.sizes)
        self._capacity = float(inputs.scenario.staging.capacity_bytes)
        self._speeds = inputs.speeds
        self._fastest_pfs = max(inputs.speeds.pfs)
        self._holders = holders
        self._log = log
        self._from_peers = from_peers
        self._from_pfs = from_pfs
        self._set(inputs.on)

    def _set(self, on: Collection[Behaviour]) -> None:
        self._is_past_staged = Behaviour.STAGES_THE_PAST in on
        self._is_counted_once = Behaviour.RETURNING_FILES_TAKE_NO_ROOM in on
        if Behaviour.ONE_TURN_FOR_ALL in on:
            self._turns = [self.buffers[0]] * len(self.buffers)
        else:
            self._turns = self.buffers

    def free(self, node: int, until: int) -> None:
        """Removes the samples before index `until` from the buffer of `node`."""
        buffer, sizes = self.buffers[node], self.sizes
        order, ready = buffer.order, buffer.ready
        for at in range(buffer.freed, until):
            if ready[at] != NOT_STAGED:
                buffer.used -= sizes[order[at]]
        buffer.freed = max(buffer.freed, until)

    def fill(self, node: int, now: float) -> None:
        """Stages samples until the buffer has no room for the next sample. Idle threads begin at
        the time `now` [s]."""
        buffer, sizes, capacity = self.buffers[node], self.sizes, self._capacity
        threads, order, known = buffer.threads, buffer.order, buffer.known
        for at, time in enumerate(threads):
            if time < now:
                threads[at] = now
        if not self._is_past_staged:
            buffer.ahead = max(buffer.ahead, buffer.asked)
        used, turn, place = buffer.used, self._turns[node].turn, buffer.ahead
        while place < len(order):
            file = order[place]
            size = sizes[file]
            if used + size > capacity:
                break
            begin = threads[turn]
            source, end = self._fetch(node, file, size, begin)
            if source:
                threads[turn] = buffer.ready[place] = end
                if place >= buffer.asked:
                    buffer.source[place] = source
                if not known[file]:
                    used += size
                    known[file] = self._is_counted_once
                if source == PFS:
                    self._log.prefetch(node, begin)
            place += 1
            turn = turn + 1 if turn + 1 < len(threads) else 0
        buffer.used, self._turns[node].turn, buffer.ahead = used, turn, place

    def _fetch(self, node: int, file: int, size: float, begin: float) -> tuple[int, float]:
        """Returns the origin from which a thread of `node` reads a file, and the time at which the
        file has reached the buffer [s]. Returns (0, 0) if there is no allowed origin.

        begin : the time at which the thread is free [s]
        """
        speeds, holders = self._speeds, self._holders
        source, rate, since = 0, 0.0, 0.0
        if level := holders.level[node][file]:
            source, rate, since = LOCAL, speeds.local[level], holders.since[node][file]
        if self._from_peers:
            other = holders.elsewhere(node, file)
            if other >= 0:
                elsewhere = speeds.remote[holders.level[other][file]]
                if elsewhere > rate and self._is_of_use(other, file, begin):
                    source, rate, since = REMOTE, elsewhere, holders.since[other][file]
        write = size / speeds.write
        if self._from_pfs and (since > begin or rate <= self._fastest_pfs):
            pfs = write + size / speeds.pfs[self._log.clients(begin, node)]
            if not source or since > begin or pfs < write + size / rate:
                return PFS, begin + pfs
        if not source:
            return 0, 0.0
        return source, max(since, begin) + (write + size / rate)

    def _is_of_use(self, other: int, file: int, begin: float) -> bool:
        # A thread waits for an unfinished copy of another node only if it cannot read from the PFS
        # instead.
        return not self._from_pfs or self._holders.since[other][file] <= begin
