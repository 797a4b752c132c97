"""Runs steps on all ranks together. If a step fails on any rank, all ranks end with the same error.

A rank is an MPI process; one of them runs on each node. At the end of each step, every rank
receives the outcomes of all ranks.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from monarch_py.cluster.ranks import Ranks
from monarch_py.errors import MonarchError

T = TypeVar("T")

# A message lists the names of at most this many nodes. If there are more nodes, the message says
# how many more.
MOST_NAMES = 4


class EndError(MonarchError):
    """A step has failed on at least one rank, so all ranks end. Each rank raises this error with
    the same words."""

    def __init__(self, words: list[str], exit_status: int) -> None:
        super().__init__("\nmonarch: ".join(words))
        self.exit_status = exit_status  # type: ignore[misc]


@dataclass(slots=True)
class _Outcome:
    name: str
    value: Any = None
    problem: str = ""
    exit_status: int = 0


def together(ranks: Ranks, work: Callable[[], T]) -> list[T]:
    """Runs one step, `work`, on every rank. Returns the results in the order of the ranks. Raises
    EndError if the step failed on any rank."""
    outcome = _Outcome(ranks.names[ranks.rank])
    try:
        outcome.value = work()
    except MonarchError as error:
        outcome.problem, outcome.exit_status = str(error), error.exit_status
    # After an unexpected error, this rank must not end here, because the others would wait for it
    # forever. So `gather` sends the error to the others.
    except Exception as error:
        traceback.print_exc()
        outcome.problem, outcome.exit_status = f"{type(error).__name__}: {error}", 1
    outcomes = ranks.gather(outcome)
    failed = [o for o in outcomes if o.problem]
    if failed:
        words = told_once((o.name, o.problem) for o in failed)
        raise EndError(words, max(o.exit_status for o in failed))
    return [o.value for o in outcomes]


def told_once(said: Iterable[tuple[str, str]]) -> list[str]:
    """Merges equal sentences of several nodes into one sentence that begins with the nodes' names.

    said : pairs (name of a node, sentence from this node)
    """
    speakers: dict[str, list[str]] = {}
    for name, words in said:
        speakers.setdefault(words, []).append(name)
    return [f"{listed(names)}: {words}" for words, names in speakers.items()]


def listed(names: Sequence[str]) -> str:
    """Returns a text with the first MOST_NAMES names and the number of further names."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
