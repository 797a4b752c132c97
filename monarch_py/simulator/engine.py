"""Runs a policy's decision on a scenario through the C simulator (csrc/simulator)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.native import ffi, lib, pointer
from monarch_py.policies.view import NO_FILE, PFS, Copies, Decision, Ints, Job, Policy, When
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import IMBALANCE, PLACES, Result
from monarch_py.simulator.scenario import Scenario

Floats = npt.NDArray[np.float64]

# C numbers copies with int32.
MOST_COPIES = (1 << 31) - 1
EPOCHS_KNOWN = int(lib.MONARCH_SIM_EPOCHS)


class Measured:
    """The measurements of a run.

    epoch_end : (epochs,) [s]
    bytes, node_bytes : (epochs, 4), (nodes, 4) [bytes], by PLACES
    reused : (epochs,) [bytes], from copies of earlier epochs
    stall, compute : (ranks,) [s]
    filled : (nodes,) [bytes], from the file system for copies and for other nodes
    pfs_bytes : (epochs,) [bytes], everything that the file system gave
    ready, imbalanced : (epochs,), number of samples and of steps, see `result`
    first_step, pfs_busy : [s]
    """

    def __init__(self, scenario: Scenario) -> None:
        epochs, nodes = scenario.epochs, scenario.nodes
        most = int(scenario.ranks().max())
        self._is_rank = np.arange(most) < scenario.ranks()[:, None]
        self.epoch_end = np.zeros(epochs)
        self.bytes = np.zeros((epochs, len(PLACES)))
        self.node_bytes = np.zeros((nodes, len(PLACES)))
        self.reused = np.zeros(epochs)
        self._stall, self._compute = np.zeros((2, nodes, most))
        self.filled, self.pfs_bytes = np.zeros(nodes), np.zeros(epochs)
        self.ready = np.zeros(epochs, np.uint64)
        self.imbalanced = np.zeros(epochs, np.uint64)
        self.c = ffi.new("struct monarch_sim_result *")
        for name in ("epoch_end", "bytes", "node_bytes", "reused", "filled", "pfs_bytes"):
            setattr(self.c, name, pointer(getattr(self, name)))
        self.c.stall = pointer(self._stall)
        self.c.rank_compute = pointer(self._compute)
        self.c.ready = pointer(self.ready)
        self.c.imbalanced = pointer(self.imbalanced)
        self.c.imbalance = IMBALANCE

    @property
    def stall(self) -> Floats:
        return self._stall[self._is_rank]

    @property
    def compute(self) -> Floats:
        return self._compute[self._is_rank]

    @property
    def first_step(self) -> float:
        return float(self.c.first_step)

    @property
    def pfs_busy(self) -> float:
        return float(self.c.pfs_busy)

    @property
    def bytes_from_pfs(self) -> float:
        """Everything that the file system gave, including copies and redundant bytes."""
        return float(self.pfs_bytes.sum())


class _Arrays:
    """Contiguous arrays for the fields of a C struct, kept alive with the struct."""

    def __init__(self, struct: object) -> None:
        self._struct, self._kept = struct, list[npt.NDArray[np.generic]]()

    def set(self, name: str, values: Any, dtype: type[np.generic]) -> None:
        array = np.ascontiguousarray(values, dtype=dtype)
        self._kept.append(array)
        setattr(self._struct, name, pointer(array))


def measure(scenario: Scenario, job: Job, decision: Decision) -> Measured:
    """Runs a decision on the scenario of this job. MemoryError if there is too little memory."""
    struct = ffi.new("struct monarch_sim_job *")
    arrays = _Arrays(struct)
    _describe_machine(struct, arrays, scenario, job)
    _describe_decision(struct, arrays, job, decision)
    shape = (decision.orders or job.orders)(0).shape
    nodes, struct.steps, width = shape
    if nodes != scenario.nodes:
        raise ValueError(f"an order of {nodes} nodes is not this job's, which has {scenario.nodes}")
    most = int(job.cluster.ranks.max())
    struct.batch = -(-width // most)
    measured = Measured(scenario)
    sim = lib.monarch_sim_new(struct, measured.c)
    if sim == ffi.NULL:
        raise MemoryError("the simulation does not fit into memory")
    try:
        _run(sim, job, decision, most, shape)
    finally:
        lib.monarch_sim_free(sim)
    return measured


def _describe_machine(struct: object, arrays: _Arrays, scenario: Scenario, job: Job) -> None:
    cluster, nodes = job.cluster, scenario.nodes
    rates = scenario.rates_of_nodes()
    numbers = {
        "nodes": nodes,
        "most_ranks": int(cluster.ranks.max()),
        "classes": cluster.classes,
        "files": job.files,
        "epochs": scenario.epochs,
        "fair_links": scenario.links == "fair",
    }
    if scenario.checkpoint:
        numbers["checkpoint_steps"] = scenario.checkpoint.every
        numbers["checkpoint_bytes"] = scenario.checkpoint.size_bytes
    for name, number in numbers.items():
        setattr(struct, name, number)
    write = np.tile([storage.write_rate for storage in scenario.classes], (nodes, 1))
    arrays.set("sizes", job.sizes, np.int64)
    arrays.set("ranks", cluster.ranks, np.uint32)
    arrays.set("threads", cluster.threads, np.uint32)
    doubles = {
        "read_rate": cluster.read_rate,
        "write_rate": write,
        "staging": cluster.capacity[:, 0],
        "network": cluster.network,
        "pfs_link": rates["pfs_link"],
        "pfs": [0.0, *(cluster.pfs_rate(n) for n in range(1, nodes + 1))],
        "compute": rates["compute"],
        "preprocess": rates["preprocess"],
    }
    for name, values in doubles.items():
        arrays.set(name, values, np.float64)


def _describe_decision(struct: object, arrays: _Arrays, job: Job, decision: Decision) -> None:
    copies = decision.copies
    if len(copies.node) > MOST_COPIES:
        raise MemoryError("there are more copies than the simulation can number")
    # Sort by (node, class). The sort is stable, so each list keeps the policy's order.
    rows = np.lexsort((copies.cls, copies.node))
    copies = Copies(copies.node[rows], copies.cls[rows], copies.file[rows])
    if decision.due is not None:
        arrays.set("copy_due", decision.due[rows], np.int64)
    arrays.set("copy_node", copies.node, np.int32)
    arrays.set("copy_file", copies.file, np.int32)
    arrays.set("copy_class", copies.cls, np.int8)
    if (owner := decision.owner) is not None:
        # C uses owners as indices without checking them.
        if len(owner) != job.files or owner.max(initial=PFS) >= job.cluster.nodes:
            raise ValueError("the owners are none of this job's files and nodes")
        arrays.set("owner", owner, np.int32)
    flags = {
        "copies": len(copies.node),
        "stages": decision.staging and not decision.free,
        "fills": decision.when is not When.ON_USE,
        "fills_first": decision.when is When.BEFORE,
        "reads_remote": decision.remote,
        "weighs_pfs": decision.pfs,
        "is_free": decision.free,
    }
    for name, value in flags.items():
        setattr(struct, name, value)


def _run(sim: Any, job: Job, decision: Decision, ranks: int, shape: tuple[int, ...]) -> None:
    orders = decision.orders or job.orders
    known: list[_Arrays] = []
    epoch = 0
    while (state := lib.monarch_sim_run(sim)) == 1:
        order: npt.NDArray[Any] = orders(epoch)
        # C assumes the shape of the first order, and uses the numbers as indices unchecked.
        if order.shape != shape or order.min() < NO_FILE or order.max() >= job.files:
            raise ValueError(f"the order of epoch {epoch} is none of this job's files and steps")

        def deal(values: npt.NDArray[Any], dtype: type[Any], like: Ints = order) -> Any:
            shaped = np.asarray(values, dtype).reshape(like.shape)
            return shaped if like.shape[2] == job.batch else _dealt(shaped, ranks)

        struct = ffi.new("struct monarch_sim_epoch *")
        arrays = _Arrays(struct)
        arrays.set("order", deal(order, np.int32), np.int32)
        if decision.served is not None:
            served = decision.served(epoch, order)
            arrays.set("holder", deal(served.holder, np.int32), np.int32)
            for name in ("cls", "into", "down"):
                arrays.set(name, deal(getattr(served, name), np.int8), np.int8)
            if served.redundant is not None:
                redundant = deal(served.redundant, np.int64)
                arrays.set("redundant", redundant, np.int64)
        if decision.threads is not None:
            threads = decision.threads(epoch, order)
            if threads.shape != (*order.shape[:2], ranks) or threads.min() < 1:
                raise ValueError(f"the threads of epoch {epoch} are not those of this job's ranks")
            arrays.set("threads", threads, np.int32)
        if not lib.monarch_sim_give(sim, struct):
            raise MemoryError("the simulation does not fit into memory")
        known = [*known, arrays][-EPOCHS_KNOWN:]
        epoch += 1
    assert state == 0, "nothing moves, and the job is not over"


def _dealt(values: npt.NDArray[Any], ranks: int) -> npt.NDArray[Any]:
    """Deals the samples of nodes (nodes, steps, width) to ranks, (nodes, steps, ranks, samples).
    For policies that make their own steps and say only what a node takes. Ranks take samples in
    turn, and NO_FILE when there are no more."""
    nodes, steps, width = values.shape
    each = -(-width // ranks)
    padded = np.full((nodes, steps, each * ranks), NO_FILE, values.dtype)
    padded[:, :, :width] = values
    dealt: npt.NDArray[Any] = padded.reshape(nodes, steps, each, ranks).swapaxes(2, 3)
    return dealt


def simulate(scenario: Scenario, policy: Policy, job: Job | None = None) -> Result:
    """The result of a policy on a scenario. PolicyError if the policy cannot work.

    job : of the scenario, if it exists already
    """
    job = job or job_of(scenario)
    decision = policy.decide(job)
    return result_of(scenario, job, measure(scenario, job, decision), decision)


def result_of(scenario: Scenario, job: Job, measured: Measured, decision: Decision) -> Result:
    """The measurements of a run as a `Result`."""
    ends = measured.epoch_end
    by_place = measured.bytes.sum(axis=0)
    later = float(job.sizes.sum()) * (scenario.epochs - 1)
    samples = scenario.epochs * scenario.batches_per_epoch * scenario.global_batch
    details = {
        "bytes_from_pfs": measured.bytes_from_pfs,
        "epoch_bytes_from_pfs": measured.pfs_bytes.tolist(),
        "pfs_busy_seconds": measured.pfs_busy,
        "epoch_bytes": [dict(zip(PLACES, row, strict=True)) for row in measured.bytes.tolist()],
        **({"notes": list(decision.notes)} if decision.notes else {}),
    }
    return Result(
        epoch_seconds=tuple(np.diff(ends, prepend=0.0).tolist()),
        stall_seconds=float(measured.stall.mean()),
        bytes={place: int(n) for place, n in zip(PLACES, by_place.tolist(), strict=True)},
        reuse_hit_ratio=float(measured.reused[1:].sum() / later) if later else 0.0,
        ready_ratio=float(measured.ready.sum() / samples),
        imbalanced_iterations=float(
            measured.imbalanced.sum() / (scenario.epochs * scenario.batches_per_epoch)
        ),
        initial_seconds=measured.first_step,
        details=details,
    )
