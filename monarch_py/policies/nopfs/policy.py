"""The policies of NoPFS. They place files by access frequency, and fetch them in order of first
use.

`planned` is our variant, in which only a file's owner reads the file from the source.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.plan.access import NEVER
from monarch_py.policies.filling import classes_of, owners_of, rooms_of
from monarch_py.policies.node import NodePolicy, planned_tiers
from monarch_py.policies.nopfs.placement import literal, place
from monarch_py.policies.view import STAGING, Cluster, Copies, Decision, Floats, Ints, Job, When

# The smallest spread (standard deviation / mean) of the frequencies at which NoPFS's policies are
# used. With a smaller spread, the best placement is hardly better than any other placement.
LEAST_SPREAD = 0.1


def nopfs(job: Job) -> Decision:
    """Places files by their known future accesses, as in section 5.1 of the NoPFS paper. Unlike in
    the paper, every file that fits on some node has an owner.

    The staging buffer is filled in the exact order of access. This also holds on a single node, and
    for files that no node holds (the paper's scenario 4). A node reads a file from the fastest of
    three places: its own copy, another node's copy, or the file system (section 4).

    Nodes do not tell each other which files they hold. Instead, each node infers this from its own
    progress (section 5.2.2). Suppose that access `i` of node B is B's first access to a file. Node
    A assumes that B holds the file as soon as A itself has reached its access `i`.

    The storage classes are filled during training, in order of first use. If a node reads a file
    that it should hold but does not hold yet, it keeps the file.

    Raises PolicyError if frequencies do not differ (`need_differences`).
    """
    return _placed(job, "nopfs")[0]


def planned(job: Job) -> Decision:
    """NoPFS's placement, but each file is read from the source once for all nodes. The daemon uses
    this policy if there are several nodes and a plan.

    Only a file's owner reads the file from the source, and it sends the file to other nodes. (In
    NoPFS each node reads the source until a copy exists.) The owner reads its files in the order of
    first use, or earlier if a node requests a file. No file is read from the source a second time,
    even if the source is idle, because other jobs use the source too. In all other respects
    `planned` equals `nopfs`. It raises the same errors.
    """
    decision, wanted = _placed(job, "planned")
    # With deadlines (`due`), a node would not ask a file's owner before the deadline of the copy.
    # Here a node may always ask, because an owner without a copy reads the file on request.
    owner = owners_of(decision.copies, wanted)
    return replace(decision, owner=owner, pfs=False, due=None)


def nopfs_literal(job: Job) -> Decision:
    """The placement exactly as section 5.1 of the NoPFS paper describes it: every node holds the
    files that it uses most often, even if other nodes hold these files too.

    Some files have no holder, even if the tiers together have room for all files. Raises
    PolicyError if all files are used about equally often.
    """
    need_differences(job, "nopfs-literal")
    quotas = job.cluster.capacity[:, STAGING + 1 :].sum(axis=1)
    held = list(literal(list(job.frequencies), job.sizes, quotas))
    return _decision(job, _by_class(job, held))


def _placed(job: Job, name: str) -> tuple[Decision, Ints]:
    """Returns NoPFS's decision, and the owner that each file should have, (files,)."""
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
    """Returns the decision to make these copies, which `place` or `literal` has chosen."""
    due = _needed(job, job.first_use[copies.node, copies.file], copies.file)
    return Decision(copies=copies, when=When.BESIDE, remote=True, due=due)


def _needed(job: Job, first: npt.NDArray[np.int64], files: Ints) -> npt.NDArray[np.int64]:
    """Returns when each copy is first needed, (copies,): at the first use of the file by the node
    that has the copy. If this node never uses the file, at the first use by any node. A use is
    given as its position among the accesses of the node that makes it.

    first : (copies,) the first use by the node that has the copy, or NEVER
    files : (copies,) the file of each copy
    """
    return np.where(first == NEVER, job.first_use.min(axis=0)[files], first)


def need_differences(job: Job, name: str) -> None:
    """Checks that access frequencies differ between files and nodes. Raises PolicyError if all
    nodes use every file about equally often, epoch after epoch.

    If a file contains many samples, all nodes use the file about equally often. Suppose that a node
    reads `k` samples of each file. The frequencies are then binomial, and their relative spread is
    `sqrt((1 - 1 / nodes) / k)` (NoPFS 3.1). If each file is one sample, a node uses a file less
    than once an epoch on average, and the check always passes.
    """
    used = job.frequencies
    mean = float(used.mean())
    if job.cluster.nodes > 1 and mean >= job.epochs and float(used.std()) < LEAST_SPREAD * mean:
        raise PolicyError(
            f"{name}: every node uses every file about {mean:.0f} times, so the frequencies do not "
            "tell which node should hold a file; make the plan with grain: samples or grain: ranges"
        )


def saved_by_a_copy(cluster: Cluster, size: float) -> Floats:
    """Returns what each node saves by holding a file instead of reading it from another node,
    (nodes,). This is the time of a remote read minus the time of a local read (NoPFS 4), divided by
    the mean of this difference over all nodes. All elements are 1 if there is only one node, or if
    some difference is not positive or not finite.

    size : the mean size of the files [bytes]
    """
    rates = cluster.read_rate / np.maximum(1, cluster.threads)
    own, link = rates[:, STAGING + 1 :].max(axis=1, initial=0), cluster.network
    if cluster.nodes == 1 or not own.all():
        return np.ones(cluster.nodes)
    # A remote read is from the fastest storage class of the best other node. It uses the links of
    # both nodes, so the slower link limits it. A local read is from the node's own fastest class.
    reach = np.minimum(own, link)
    second, first = np.sort(reach)[-2:]
    best_other = np.where(np.arange(cluster.nodes) == reach.argmax(), second, first)
    with np.errstate(divide="ignore"):
        saved = size / np.minimum(link, best_other) - size / own
    # If a node's remote reads are at least as fast as its local reads, this node saves nothing.
    # Savings of 0 or less cannot be weights, so all weights are then 1.
    if not np.isfinite(saved).all() or saved.min() <= 0:
        return np.ones(cluster.nodes)
    return np.asarray(saved / saved.mean(), dtype=np.float64)


def _by_class(job: Job, held: Sequence[Ints]) -> Copies:
    """Returns the copies: each node's files `held[node]`, assigned to the node's storage classes. A
    file may fit into none of these classes, although their free room together is enough. Such a
    file goes to another node that has room."""
    parts, lost = [], []
    for node, files in enumerate(held):
        parts.append(classes_of(policy_of(job, node, files), job.cluster, job.sizes))
        lost.append(np.setdiff1d(files, np.concatenate(parts[-1])))
    _rehouse(job, parts, np.concatenate(lost), job.first_use.min(axis=0))
    return Copies.of(
        [(n, level, files) for n, each in enumerate(parts) for level, files in enumerate(each)]
    )


def policy_of(job: Job, node: int, held: Ints) -> NodePolicy:
    """Returns the policy of a node that holds the files `held`. The most used files are in the
    fastest storage class. Each class is filled in the order of first use, by Rule 1 of the NoPFS
    paper."""
    first = _needed(job, job.first_use[node], np.arange(job.files))[held]
    used, rooms = job.frequencies[node, held], rooms_of(job.cluster.capacity[node], len(held))
    policy = NodePolicy(node, shares=True)
    policy.follow(held, planned_tiers(used, first, job.sizes[held], rooms), job.files)
    policy.foresee(held[np.lexsort((-used.astype(np.float64), first))])
    return policy


def _rehouse(job: Job, parts: list[list[Ints]], lost: Ints, first: Ints) -> None:
    """Gives a copy to each file of `lost` that has none. The storage classes of all nodes are tried
    in turn. The file goes into the first class that has room, or that would have room if one file
    were dropped. Drops only files that another node holds too. Changes `parts`.

    parts : for each node and storage class, the files in the order of filling
    first : (files,), first use by any node
    """
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
