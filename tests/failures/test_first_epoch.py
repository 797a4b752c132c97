"""While files are read and filled, something happens to the daemon, the tier or a reader. Even so,
every byte must be right, and no read may be short, fail or wait forever."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from csrc.building import build_program
from support.draws import cases
from support.epoch import Reader, make_files
from support.mounts import Mounts
from support.session import IN_UNITS, MIB, Session, wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.storage.tiers import tier_root

UNIT = 256 << 10
FILES, SIZE = 8, 2 * MIB + 17
# The rate of the source [bytes/s]. An epoch then takes about a second, which is long enough for a
# change in the middle, and short enough for a test.
RATE = 24e6
# The longest time [s] that a read may wait while the daemon shows no sign of life.
LONGEST_S = 2.0
# The longest time [s] that a reader may take in total, even on a busy machine.
LIMIT_S = 60.0
Factory = Callable[..., Session]


@pytest.fixture
def source(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    return slow_factory()


@pytest.fixture
def files(source: SlowSource) -> dict[int, Path]:
    return make_files(source.backing, FILES, SIZE)


@pytest.fixture
def session(session_factory: Factory, source: SlowSource, files: dict[int, Path]) -> Session:
    made = session_factory(
        source.mountpoint, switch_file=str(source.backing.parent / "off"), **IN_UNITS
    )
    made.start().wait_scanned()
    return made


@pytest.fixture
def reading(
    epoch_reader: Path, session: Session, source: SlowSource, files: dict[int, Path]
) -> Iterator[Callable[..., Reader]]:
    """Yields the function `start`. `start(ways)` starts a reader with eight threads, which read all
    files in the way that `ways` names."""
    with ExitStack() as stack:

        def start(ways: str) -> Reader:
            words = (epoch_reader, session, ways, UNIT, FILES, source.mountpoint, files)
            return stack.enter_context(Reader(*words))

        yield start


def wait_served(source: SlowSource, more: int) -> None:
    """Waits until the source has served another `more` bytes."""
    before = source.counts()["bytes_read"]
    wait_until(lambda: source.counts()["bytes_read"] >= before + more, what="some reads")


def wait_in_the_middle(source: SlowSource, session: Session) -> None:
    wait_served(source, FILES * SIZE // 4)
    # A wait is counted when it ends. The reader's threads share the source's rate, so their first
    # waits all end at about the same time.
    wait_until(lambda: session.totals()["waits"] > 0, what="a reader that has waited")
    assert session.totals()["fills"] < FILES


def check_copies(epoch_reader: Path, session: Session, root: Path, files: dict[int, Path]) -> None:
    """Reads all files once more, and verifies all copies."""
    session.wait_idle()
    with Reader(epoch_reader, session, "pread", MIB, 2, root, files) as reader:
        reader.end(LIMIT_S)
    session.wait_idle()
    done = session.monarch("verify")
    assert done.returncode == 0, done.stdout + done.stderr


# --- the daemon ---------------------------------------------------------------------------------


def stand_still(session: Session) -> None:
    assert session.daemon is not None
    session.daemon.send_signal(signal.SIGSTOP)
    process = psutil.Process(session.daemon.pid)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, what="the standstill")


def go_on(session: Session) -> None:
    assert session.daemon is not None
    session.daemon.send_signal(signal.SIGCONT)


def kill_and_restart(session: Session) -> None:
    session.kill()
    session.start(wait=False)


def stop_and_restart(session: Session) -> None:
    session.stop()
    session.start(wait=False)


ENDS = [Session.kill, Session.stop, kill_and_restart, stop_and_restart, stand_still]


@pytest.mark.parametrize(
    "end",
    # The cases that need --long are `Session.kill`, which is the first half of `kill_and_restart`,
    # and two cases in which the daemon is stopped. A daemon that is stopped leaves less behind than
    # a daemon that is killed.
    cases(ENDS, [kill_and_restart, stand_still]),
    ids=[end.__name__ for end in ENDS],
)
def test_the_daemon_goes_in_the_middle(
    session: Session,
    source: SlowSource,
    epoch_reader: Path,
    files: dict[int, Path],
    reading: Callable[..., Reader],
    end: Callable[[Session], None],
) -> None:
    source.rate(RATE)
    readers = [reading(way) for way in ("read", "pread", "random")]
    wait_in_the_middle(source, session)
    end(session)
    assert all(reader.runs() for reader in readers)
    for reader in readers:
        assert reader.end(LIMIT_S)["longest_s"] <= LONGEST_S
    source.rate(0)
    if session.daemon is None:
        session.start()
    go_on(session)
    wait_until(lambda: session.connection.serves() and session.connection.runs(), what="a daemon")
    session.wait_all_present()
    check_copies(epoch_reader, session, source.mountpoint, files)
    assert session.status()["sources"][0]["present"] == FILES


def test_the_daemon_stands_still_for_a_while(
    session: Session, source: SlowSource, reading: Callable[..., Reader]
) -> None:
    """While the daemon is suspended, readers read the source. When the daemon continues, they use
    the copies again."""
    source.rate(RATE)
    readers = [reading("read"), reading("pread")]
    wait_in_the_middle(source, session)
    stand_still(session)
    wait_served(source, 2 * MIB)
    go_on(session)
    before = session.totals()["bytes_while_filling"]
    for reader in readers:
        assert reader.end(LIMIT_S)["longest_s"] <= LONGEST_S
    assert session.totals()["fallbacks"] > 0
    assert session.totals()["bytes_while_filling"] > before


def test_everything_is_switched_off_in_the_middle(
    session: Session,
    source: SlowSource,
    epoch_reader: Path,
    files: dict[int, Path],
    reading: Callable[..., Reader],
) -> None:
    source.rate(RATE)
    readers = [reading("read"), reading("random")]
    wait_in_the_middle(source, session)
    switch = source.backing.parent / "off"
    switch.touch()
    wait_served(source, 4 * MIB)
    switch.unlink()
    for reader in readers:
        assert reader.end(LIMIT_S)["longest_s"] <= LONGEST_S
    session.wait_all_present()
    check_copies(epoch_reader, session, source.mountpoint, files)


# --- room ---------------------------------------------------------------------------------------


def test_the_tier_is_full_in_the_middle(
    session_factory: Factory,
    source: SlowSource,
    epoch_reader: Path,
    files: dict[int, Path],
    mounts: Mounts,
) -> None:
    small = mounts.tmpfs("small", 32 * MIB)
    tier = {"mount_point": small, "max_storage_quota": 28 * MIB}
    session = session_factory(source.mountpoint, tiers=[tier], **IN_UNITS).start()
    session.wait_scanned()
    source.rate(RATE)
    words = (UNIT, FILES, source.mountpoint, files)
    with (
        Reader(epoch_reader, session, "read", *words) as one,
        Reader(epoch_reader, session, "random", *words) as two,
    ):
        wait_in_the_middle(source, session)
        with (small / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError) as full:
            while True:
                ballast.write(bytes(UNIT))
        assert full.value.errno == errno.ENOSPC
        one.end(LIMIT_S)
        two.end(LIMIT_S)
    source.rate(0)
    check_copies(epoch_reader, session, source.mountpoint, files)
    told = session.status()["sources"][0]
    assert told["bypass"].get("no_room", 0) > 0
    assert told["present"] + sum(told["bypass"].values()) == FILES
    # The daemon has removed the incomplete copies of fills that it gave up.
    copies = list((tier_root(small) / "c").iterdir())
    assert len(copies) == told["present"]


def test_no_descriptor_is_free(
    session: Session, source: SlowSource, reading: Callable[..., Reader]
) -> None:
    """A reader without a free descriptor cannot open copies, so it must read the source."""
    source.rate(RATE * 4)
    for way in ("read,full", "pread,full", "readv,full"):
        session.forget()
        assert reading(way).end(LIMIT_S)["bytes"] == FILES * SIZE


@pytest.mark.parametrize("ways", cases(["read,late", "pread,late"], ["read,late"]))
def test_more_files_are_read_at_once_than_can_be_filled_at_once(
    session_factory: Factory, source: SlowSource, epoch_reader: Path, ways: str
) -> None:
    """Programs can read more files at once than there are slots for fills (256). In this test, all
    300 reads begin before any fill can be complete. All bytes must be right, and in the end all
    files must have copies."""
    size = 2 * UNIT + 8
    files = make_files(source.backing, 300, size)
    session = session_factory(source.mountpoint, shared_tpool_size=8, **IN_UNITS).start()
    session.wait_scanned()
    source.latency(read=0.002)
    with Reader(epoch_reader, session, ways, UNIT // 2, 300, source.mountpoint, files) as reader:
        assert reader.end(LIMIT_S)["bytes"] == 300 * size
    check_copies(epoch_reader, session, source.mountpoint, files)
    assert session.status()["sources"][0]["present"] == 300


@pytest.mark.parametrize(
    "reads", cases([(300, UNIT), (100, 2 * UNIT + 100)], [(100, 2 * UNIT + 100)]), ids=str
)
def test_more_readers_wait_than_can_tell_what_they_wait_for(
    session_factory: Factory, source: SlowSource, epoch_reader: Path, reads: tuple[int, int]
) -> None:
    """A read makes a demand for each unit for which it waits, and there is room for 256 demands.
    All reads succeed even if readers wait for more units than that."""
    threads, chunk = reads
    size = threads * chunk - 5
    files = make_files(source.backing, 1, size)
    session = session_factory(source.mountpoint, **IN_UNITS).start()
    session.wait_scanned()
    source.rate(100e6)
    with Reader(
        epoch_reader, session, "spread", chunk, threads, source.mountpoint, files
    ) as reader:
        assert reader.end(LIMIT_S)["bytes"] == size
    source.rate(0)
    check_copies(epoch_reader, session, source.mountpoint, files)
    assert session.status()["sources"][0]["present"] == 1


# --- readers ------------------------------------------------------------------------------------


def test_a_reader_is_killed_while_it_waits(
    session: Session,
    source: SlowSource,
    epoch_reader: Path,
    files: dict[int, Path],
    reading: Callable[..., Reader],
) -> None:
    source.rate(RATE)
    victims = [reading("pread"), reading("read"), reading("random")]
    other = reading("read")
    wait_in_the_middle(source, session)
    # At this rate all readers wait.
    source.rate(RATE / 100)
    waits = session.totals()["waits"]
    for victim in victims:
        assert victim.runs()
        victim.process.kill()
        victim.process.wait()
    source.rate(RATE)
    other.end(LIMIT_S)
    assert session.totals()["waits"] > waits
    source.rate(0)
    assert reading("random").end(LIMIT_S)["bytes"] == FILES * SIZE
    check_copies(epoch_reader, session, source.mountpoint, files)
    assert session.status()["sources"][0]["present"] == FILES


@pytest.mark.parametrize("alarm", cases(["alarm", "alarm0"], ["alarm0"]))
def test_signals_arrive_during_waits(
    session: Session, source: SlowSource, reading: Callable[..., Reader], alarm: str
) -> None:
    """A read of a regular file is neither interrupted nor cut short by a signal."""
    source.rate(RATE)
    readers = [reading(f"{way},{alarm}") for way in ("read", "pread", "readv", "preadv")]
    for reader in readers:
        found = reader.end(LIMIT_S)
        assert found["alarms"] > 20
        assert found["bytes"] == FILES * SIZE
    totals = session.totals()
    assert totals["waits"] > 0
    assert totals["fallbacks"] == 0


# A program whose signal handler interrupts a read. The handler reads from the same descriptor or,
# if the program has a third argument, jumps out of the read. After that, reads must still work.
HANDLER = """
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
static int fd, jumps, calls;
static sigjmp_buf back;
static char seen[100];
static void handler(int s) {
    (void)s;
    calls++;
    if (jumps)
        siglongjmp(back, 1);
    if (pread(fd, seen, sizeof seen, 1000) != sizeof seen)
        _exit(3);
}
int main(int argc, char **argv) {
    struct itimerval every = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    static char data[1 << 18];
    FILE *out = fopen(argv[2], "wb");
    off_t volatile at = 0;
    ssize_t n = 1;
    jumps = argc > 3;
    fd = open(argv[1], O_RDONLY);
    if (!out || fd < 0)
        return 2;
    signal(SIGALRM, handler);
    while (n > 0) {
        if (sigsetjmp(back, 1) == 0)
            setitimer(ITIMER_REAL, &every, NULL);
        else if (calls > 30)
            jumps = 0;
        n = pread(fd, data, sizeof data, at);
        setitimer(ITIMER_REAL, &never, NULL);
        if (n > 0 && fwrite(data, 1, (size_t)n, out) != (size_t)n)
            return 4;
        at += n > 0 ? n : 0;
    }
    if (fwrite(seen, 1, sizeof seen, out) != sizeof seen || fclose(out) != 0)
        return 5;
    /* The handler runs often if it jumps out of the reads. Otherwise it waits in its own read, and
     * may run only once. */
    return calls < (argc > 3 ? 5 : 1);
}
"""


@pytest.mark.parametrize("jumps", [False, True], ids=["reads", "jumps"])
def test_a_handler_that_reads_or_never_returns(
    session: Session, source: SlowSource, files: dict[int, Path], tmp_path: Path, jumps: bool
) -> None:
    (tmp_path / "handler.c").write_text(HANDLER)
    program = build_program(tmp_path / "handler", tmp_path / "handler.c")
    source.rate(3e6)
    out = tmp_path / "out"
    words: list[str | Path] = [program, source.mountpoint / "1", out]
    words += ["jumps"] if jumps else []
    done = session.run(words, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    known, found = files[1].read_bytes(), out.read_bytes()
    assert found[: len(known)] == known
    if not jumps:
        assert found[len(known) :] == known[1000:1100]
    # The handler has jumped out of some reads. These reads must not disturb later readers.
    source.rate(0)
    script = "import sys; print(len(open(sys.argv[1], 'rb').read()))"
    assert session.python(script, source.mountpoint / "1") == f"{SIZE}\n"
