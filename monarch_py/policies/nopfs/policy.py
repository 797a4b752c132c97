"""NoPFS as a policy: frequency decides who holds what, the order of use when it is fetched; and the
same with first copies through the owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.plan.access import NEVER
from monarch_py.policies.filling import owners_of
from monarch_py.policies.nopfs.fetching import Places, Source, fetch_seconds
from monarch_py.policies.nopfs.placement import copies_of, homeless, into_classes, literal, place
from monarch_py.policies.view import STAGING, Cluster, Copies, Decision, Floats, Ints, Job, When

Files = npt.NDArray[np.int64]
# Standard deviation of the frequencies over their mean below which the best placement saves so
# little that any other does as well.
LEAST_SPREAD = 0.1

__all__ = ["NoPFS", "NoPFSLiteral", "Planned"]


class NoPFS:
    """Clairvoyant placement (NoPFS 5.1), made complete: every file that fits anywhere has an owner.

    Also on one node, and for files that nobody holds (the paper's scenario 4), the staging buffer
    is filled in the exact order of access. Each fetch takes the fastest of local, remote and file
    system (4). Whether another node has a file by now nobody asks: it should, once this node has
    come as far as the access by which the other one needs it (5.2.2). Classes fill beside training
    in order of first use, so that what is late comes first, and a read that finds a file missing
    brings it.
    Raises PolicyError where frequencies do not differ (`need_differences`).
    """

    name = "nopfs"

    def decide(self, job: Job) -> Decision:
        return _placed(job, self.name)[0]


class Planned:
    """What several nodes do with a plan: NoPFS's placement, and each file is read once for all.

    A file's owner alone reads it from the source, when it comes to it in order of first use or when
    somebody asks, and sends it on (NoPFS's nodes each read the source until a copy is there). The
    source is not read a second time, however idle: others use it too. The rest is as in `NoPFS`,
    and raises what that does.
    """

    name = "planned"

    def decide(self, job: Job) -> Decision:
        decision, wanted = _placed(job, self.name)
        # The owner is asked whether it has the file or not.
        owner = owners_of(decision.copies, wanted)
        return replace(decision, owner=owner, pfs=False, due=None)


class NoPFSLiteral:
    """NoPFS 5.1 to the letter: every node holds what it uses most, whoever else holds it.

    Leaves files without a holder even where the tiers together have room for all. Raises
    PolicyError where frequencies do not differ.
    """

    name = "nopfs-literal"

    def decide(self, job: Job) -> Decision:
        need_differences(job, self.name)
        quotas = job.cluster.capacity[:, STAGING + 1 :].sum(axis=1)
        held = list(literal(list(job.frequencies), job.sizes, quotas))
        return _decision(job, _by_class(job, held))


def _placed(job: Job, name: str) -> tuple[Decision, Ints]:
    """NoPFS's decision, and (files,) the owner that each file should have."""
    need_differences(job, name)
    placed = place(
        list(job.frequencies),
        job.sizes,
        job.cluster.capacity[:, STAGING + 1 :].sum(axis=1),
        weights=saved_by_a_copy(job.cluster, float(job.sizes.mean())),
        seed=job.seed,
    )
    copies = _by_class(job, [placed.held(node) for node in range(job.cluster.nodes)])
    covered = f"{np.mean(placed.owner >= 0):.1%} of the files have a holder"
    return replace(_decision(job, copies), notes=(covered,)), placed.owner


def _decision(job: Job, copies: Copies) -> Decision:
    """What both placements of NoPFS are followed by."""
    due = _needed(job, job.first_use[copies.node, copies.file], copies.file)
    return Decision(copies=copies, when=When.BESIDE, remote=True, due=due)


def _needed(job: Job, first: npt.NDArray[np.int64], files: Ints) -> npt.NDArray[np.int64]:
    """When copies are needed.  first : when their node uses these files first

    A file that its node never uses is fetched when somebody needs it."""
    return np.where(first == NEVER, job.first_use.min(axis=0)[files], first)


def need_differences(job: Job, name: str) -> None:
    """PolicyError where several nodes use every file about equally often, epoch after epoch.

    That is so for whole files of many samples: sqrt(1 - 1 / nodes) over the root of the number of
    samples that a node reads of a file is how far frequencies lie apart (binomial, NoPFS 3.1).
    Files of one sample are used less than once an epoch by a node, and are never refused."""
    used = job.frequencies
    mean = float(used.mean())
    if job.cluster.nodes > 1 and mean >= job.epochs and float(used.std()) < LEAST_SPREAD * mean:
        raise PolicyError(
            f"{name}: every node uses every file about {mean:.0f} times, so that frequency says "
            "nothing of who should hold it; make the plan with grain: samples or grain: ranges"
        )


def saved_by_a_copy(cluster: Cluster, size: float) -> Floats:
    """(nodes,) what a node saves by having a file itself instead of reading it from another one,
    relative to the mean of the nodes (NoPFS 4: the remote case less the local one); 1 for all where
    there is nothing to weigh.

    size : of a mean file [bytes]
    """
    rates = cluster.read_rate / np.maximum(1, cluster.threads)
    alone = cluster.nodes == 1 or cluster.classes == STAGING + 1
    if alone or not rates[:, STAGING + 1 :].max(axis=1).all():
        return np.ones(cluster.nodes)
    fastest = rates[:, STAGING + 1 :].argmax(axis=1) + STAGING + 1
    saved = np.zeros(cluster.nodes)
    for node in range(cluster.nodes):
        # From each other node's fastest class, and from the own one.
        others = np.delete(np.arange(cluster.nodes), node)
        places = Places(np.full(len(others), fastest[node]), others, fastest[others])
        seconds = fetch_seconds(cluster, node, np.full(len(others), size), places, 1)
        saved[node] = seconds[:, Source.REMOTE].min() - seconds[0, Source.LOCAL]
    # A link not slower than the class: nothing to weigh.
    if not np.isfinite(saved).all() or saved.min() <= 0:
        return np.ones(cluster.nodes)
    return np.asarray(saved / saved.mean(), dtype=np.float64)


def _by_class(job: Job, held: Sequence[Ints]) -> Copies:
    """Every node's files in its classes; what the pieces of room of one node cannot take goes to
    another that can."""
    anyone = job.first_use.min(axis=0)
    parts: list[list[Files]] = []
    lost: list[Files] = []
    for node, files in enumerate(held):
        first = _needed(job, job.first_use[node], np.arange(job.files))
        capacity = job.cluster.capacity[node]
        classes = into_classes(files, job.frequencies[node], first, job.sizes, capacity)
        parts.append(classes)
        lost.append(homeless(files, classes))
    _rehouse(job, parts, np.concatenate(lost), anyone)
    return copies_of(parts)


def _rehouse(job: Job, parts: list[list[Files]], lost: Files, first: Ints) -> None:
    """Puts files without a copy into a class anywhere with room, or with a file that others hold
    as well and that leaves room enough; changes parts.  first : (files,), first use by anyone"""
    count = np.zeros(job.files, dtype=np.int64)
    for files in (each for classes in parts for each in classes):
        count[files] += 1
    places = [
        (node, level)
        for node in range(len(parts))
        for level in range(STAGING + 1, job.cluster.classes)
    ]
    for file in lost[count[lost] == 0].tolist():
        for node, level in places:
            files = parts[node][level]
            room = int(job.cluster.capacity[node, level]) - int(job.sizes[files].sum())
            double = (count[files] > 1) & (job.sizes[files] + room >= job.sizes[file])
            if room < job.sizes[file]:
                if not double.any():
                    continue
                at = int(double.argmax())
                count[files[at]] -= 1
                files = np.delete(files, at)
            at = int(np.searchsorted(first[files], first[file]))
            parts[node][level] = np.insert(files, at, file)
            count[file] += 1
            break
