"""The number of lines of code is limited, so that the product does not grow unnoticed.

A change that needs more lines than a limit allows raises the limit and says why.
"""

from __future__ import annotations

from collections import Counter

import pytest
from support import lines

# The limits on the numbers of lines of code, which `PYTHONPATH=tests python -m support.lines`
# counts. Reasons for which the limits were raised:
# - Loaders and packs take 4,550 lines of Python and 900 of C. 270 of these lines let ranks compare
#   the values by which they divide the samples, check states and arguments, and make errors full
#   sentences.
# - 80 lines are for users of a site's module: hints that are valid for them, and output on narrow
#   terminals.
# - 75 lines of C compute checksums with AVX2 and in registers. The processor time of a
#   copy is mostly spent on its pages, its bytes and its checksum.
# - With 70 lines of Python, commands start without loading numpy. Most of these lines are the
#   second line of an import statement.
# - With 35 lines, each tier's directory is in a block group of its own. In a group from which many
#   files were just removed, ext4 takes twenty times as long to create a file.
# - With 20 lines, the daemon's loop handles new names sooner. A first epoch of small files takes a
#   third less time.
# - 41 lines of C are includes and declarations of functions that were moved to other files.
# - 10 lines of Python and 5 of C are second lines of statements in which a name became longer.
# - With 27 lines of Python and 19 of C, the engine stages files itself. Before, if the tiers did
#   not hold all files, the loop took more processor time than everything else together.
# - With 6 lines, the loop lets the engine order fills only when that is due. A first epoch of four
#   nodes takes a twelfth less time.
# - One line is for a command that a daemon of an older version answers.
# - With 4 lines, the loop takes a quarter less processor time from programs that hardly wait for
#   the sources.
# - With 31 lines of C and 5 of Python, the library merely counts most opens of files that the scan
#   has not found yet, if the page cache serves these files. With a warm page cache, a first epoch
#   takes a tenth less time.
# - With 16 lines of Python, the loop rests longer if it has names for fills ahead. This takes an
#   eighth less processor time. If the scan finds no names, the loop searches for names again and
#   again. When it searched only once, a first epoch of 600 files sometimes took a third more time.
# - With 2 lines, the loop rests longer in the first 0.4 s of fills. It then takes an eighth less
#   processor time.
# - With 131 lines of C, a program sees its own changes even to files and directories that a process
#   without the library has replaced, also through a link outside the sources.
# - With 32 lines of C, a program that repeatedly opens a file outside all sources for writing asks
#   the kernel only once for the file's path. Also, once the program has noticed that another
#   process has renamed or removed a file, a listing shows this at once.
# - With 12 lines of C, threads that make copies take no lock to wake peers if no peer waits, and a
#   peer's request is not left waiting by a fill that ends at the same moment.
# - With 17 lines of Python, the loop rests twice as long while the engine has enough orders. In a
#   first epoch of four nodes, the loops take a quarter less processor time.
# - With 36 lines of C and 2 of Python, small files that are filled ahead are read with O_DIRECT,
#   which takes an eighth less processor time.
# - With 17 lines of C, a job that reads only through links is noticed at its first open.
# - With 219 lines of Python, no output replaces an input, `config check` finds packs and plans that
#   cannot be used, odd names are quoted, and messages name a shell's limit that is too low.
# - With 219 lines of Python, starts with low limits and failures of the daemon's threads are
#   reported, messages say when other people's files take a tier's room, and a job uses, from its
#   beginning, the copies of an earlier job.
# - 20 lines of C ask for SCHED_BATCH and short time slices. Where programs use all processors, a
#   first epoch takes up to a third less time. Otherwise, the daemon uses a tenth less CPU.
# - 6 lines of Python let the daemon's loop rest longer while the scan is far enough ahead of a job.
# - 33 lines of Python are longer messages, for example with the range of valid values.
# - With 88 lines of C, a demand wakes one thread instead of three, a file from a peer answers its
#   readers once, and threads wait for a link before they connect another one. In a first epoch of
#   four nodes, the daemons take a twelfth less processor time.
# - With 42 lines of Python and 5 of C, daemons connect links to each other when they start. A first
#   epoch of four nodes takes a twentieth less time.
# - One line lets the scan of a daemon that rejoins a cluster run without a limit.
# - With 22 lines of Python, neither the end of a scan nor the loop takes processor time from a
#   program that reads copies only, or files of a source that answers at once.
# - With 9 lines of C, a thread that fetches a small file from a peer waits for the answer in one
#   system call instead of three, and a peer's request wakes no such thread in vain.
# - With 16 lines of C instead of `os.stat`, neither the start of a daemon nor a look at open files
#   waits for a file system that hangs.
# - With 62 lines of C, a thread that receives descriptors polls for them instead of being woken
#   for each one. A program takes 10 us less for each file that its own reads fill.
# - 25 lines of Python are the borders of a module that was cut out of the daemon's largest one.
# - With 7 lines of Python and 13 of C, the loop no longer looks at files at the source after a
#   directory was renamed. On a mount without cached attributes, it was silent for over 15 s.
# - With 2 lines of C, a claim holds too if it is younger than the time that it is compared with.
# - With 24 lines of Python, a daemon, a sampler and `plan show` read plan.yaml themselves, so that
#   a user need not make a plan from it.
# - With 4 lines of Python, the loop runs a third as often while programs fill the files that they
#   read. A file then takes an eighth less of the daemon's processor time.
# - With 40 lines of Python, threads look up files that have changed. Before, the loop did so, and
#   was silent for as long as the source took for all of them.
# - With 45 lines of Python, the next job of a daemon is found in a plan with short epochs.
# - With 25 lines of Python, `plan index` refuses options of other kinds, and the log says that
#   a plan for several nodes is followed on one.
MOST_PYTHON = 26_533
MOST_C = 20_451

PYTHON = '''\
"""A docstring
of two lines."""

# a comment
x = """not a docstring

but three lines"""


class Point: "a docstring behind code"


def f() -> None:
    """One

    more."""
    "no docstring: a second string"
    return (  # a comment behind code
        1,

        2,
    )
'''
C = r"""
/* a comment
 * of two lines */
#define X 1 /* a macro */
// a comment \
that goes on
char *s = "/* no comment */"; // one behind code
char quote = '"'; /* a character
*/ char c; /* */
int /* inside
       */ n = 1;
"""


def test_lines_of_python() -> None:
    assert lines.of_python(PYTHON) == 3 + 1 + 1 + 1 + 4


def test_lines_of_c() -> None:
    assert lines.of_c(C) == 6


@pytest.fixture(scope="module")
def counted() -> dict[str, Counter[str]]:
    """Returns the product's lines of code in each language, by folder."""
    return {"python": lines.python(), "c": lines.c()}


def test_the_product_is_counted(counted: dict[str, Counter[str]]) -> None:
    assert {"monarch_py", "monarch_py/daemon/fill"} < set(counted["python"])
    assert "csrc/preload/fill" in counted["c"]
    assert "csrc/testing" not in counted["c"]


@pytest.mark.parametrize(("language", "most"), [("python", MOST_PYTHON), ("c", MOST_C)])
def test_the_product_stays_within_its_limits(
    counted: dict[str, Counter[str]], language: str, most: int
) -> None:
    assert counted[language].total() <= most
