"""Simulates a scenario under a policy's decision. The simulation is in C (csrc/simulator)."""

from typing import Any

import numpy as np

from monarch_py.arrays import Array, pointer
from monarch_py.native import ffi, lib
from monarch_py.policies.view import NO_FILE, PFS, Decision, Job, Policy, When
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import IMBALANCE, PLACES, Result
from monarch_py.simulator.scenario import Scenario

# The largest number of copies. The C code stores the number of a copy as int32.
MOST_COPIES = (1 << 31) - 1
EPOCHS_KNOWN = int(lib.MONARCH_SIM_EPOCHS)


class _Struct:
    """A C struct, together with the arrays to which its fields point.

    values : the values of the fields by name: numbers, arrays, or None. A field is 0 if it is None
        or not given
    """

    def __init__(self, ctype: str, **values: Any) -> None:
        self.c = ffi.new(f"{ctype} *")
        self._kept: list[Array] = []
        types = {name: field.type for name, field in ffi.typeof(ctype).fields}
        for name, value in values.items():
            if value is not None:
                setattr(self.c, name, self._c_value(types[name], value))

    def _c_value(self, ctype: Any, value: Any) -> Any:
        if ctype.kind != "pointer":
            return value
        array = np.ascontiguousarray(value, ctype.item.cname.removesuffix("_t"))
        self._kept.append(array)
        return pointer(array)


class Measured:
    """The measurements of a run.

    epoch_end : (epochs,), when each epoch ended [s]
    bytes : (epochs, 4), how many bytes each epoch read from each of PLACES
    node_bytes : (nodes, 4), how many bytes each node read from each of PLACES
    reused : (epochs,), how many bytes were read from copies that earlier epochs had made
    stall, compute : (ranks,), how long each rank waited for samples, and how long it computed [s]
    filled : (nodes,), how many bytes each node read from the file system to make copies or to send
        files to other nodes
    pfs_bytes : (epochs,), how many bytes all nodes read from the file system
    ready : (epochs,), how many samples were ready when their rank needed them
    imbalanced : (epochs,), how many steps were imbalanced (see IMBALANCE in result.py)
    first_step : the time until the first step [s]
    pfs_busy : how long the file system was busy [s]
    """

    def __init__(self, scenario: Scenario) -> None:
        epochs, nodes = scenario.epochs, scenario.nodes
        most = int(scenario.ranks().max())
        self.epoch_end, self.reused, self.pfs_bytes = np.zeros((3, epochs))
        self.bytes = np.zeros((epochs, len(PLACES)))
        self.node_bytes = np.zeros((nodes, len(PLACES)))
        self.filled = np.zeros(nodes)
        self.ready, self.imbalanced = np.zeros((2, epochs), np.uint64)
        self._is_rank = np.arange(most) < scenario.ranks()[:, None]
        self.stall, self.compute = np.zeros((2, nodes, most))
        self.first_step = self.pfs_busy = 0.0
        of_epochs = ("epoch_end", "bytes", "reused", "pfs_bytes", "ready", "imbalanced")
        self.struct = _Struct(
            "struct monarch_sim_result",
            rank_compute=self.compute,
            imbalance=IMBALANCE,
            **{name: getattr(self, name) for name in (*of_epochs, "node_bytes", "filled", "stall")},
        )

    def finish(self) -> None:
        """Copies the results from the C struct. Must be called after C has filled the struct."""
        self.stall, self.compute = self.stall[self._is_rank], self.compute[self._is_rank]
        self.first_step, self.pfs_busy = self.struct.c.first_step, self.struct.c.pfs_busy


def measure(scenario: Scenario, job: Job, decision: Decision) -> Measured:
    """Simulates the scenario with a policy's decision for this job. Raises MemoryError if there is
    too little memory."""
    shape = (decision.orders or job.orders)(0).shape
    nodes, steps, width = shape
    if nodes != scenario.nodes:
        raise ValueError(f"the order has {nodes} nodes, but the scenario has {scenario.nodes}")
    most = int(job.cluster.ranks.max())
    struct = _Struct(
        "struct monarch_sim_job",
        steps=steps,
        batch=-(-width // most),
        **_machine(scenario, job),
        **_decided(job, decision),
    )
    measured = Measured(scenario)
    sim = lib.monarch_sim_new(struct.c, measured.struct.c)
    if sim == ffi.NULL:
        raise MemoryError("the simulation does not fit into memory")
    try:
        _run(sim, job, decision, most, shape)
    finally:
        lib.monarch_sim_free(sim)
    measured.finish()
    return measured


def _machine(scenario: Scenario, job: Job) -> dict[str, Any]:
    """Returns the fields of struct monarch_sim_job that describe the machine and the training."""
    cluster, rates = job.cluster, scenario.rates_of_nodes()
    write = [storage.write.total(storage.threads) for storage in scenario.classes]
    checkpoint = scenario.checkpoint
    return {
        "nodes": scenario.nodes,
        "most_ranks": int(cluster.ranks.max()),
        "classes": cluster.classes,
        "files": job.files,
        "epochs": scenario.epochs,
        "fair_links": scenario.links == "fair",
        "sizes": job.sizes,
        "ranks": cluster.ranks,
        "threads": cluster.threads,
        "read_rate": cluster.read_rate,
        "write_rate": np.tile(write, (scenario.nodes, 1)),
        "staging": cluster.capacity[:, 0],
        "network": cluster.network,
        "pfs_link": rates["pfs_link"],
        "pfs": [0.0, *(cluster.pfs_rate(n) for n in range(1, scenario.nodes + 1))],
        "compute": rates["compute"],
        "preprocess": rates["preprocess"],
        "checkpoint_steps": checkpoint and checkpoint.every,
        "checkpoint_bytes": checkpoint and checkpoint.size_bytes,
    }


def _decided(job: Job, decision: Decision) -> dict[str, Any]:
    """Returns the fields of struct monarch_sim_job that describe a policy's decision."""
    copies, owner = decision.copies, decision.owner
    if len(copies.node) > MOST_COPIES:
        raise MemoryError(
            f"the policy makes {len(copies.node)} copies, and the simulation can number only"
            f" {MOST_COPIES}; use fewer files or nodes"
        )
    # Sort the copies by node, then by storage class. The sort is stable, so the copies of one node
    # and class keep the order that the policy has chosen.
    rows = np.lexsort((copies.cls, copies.node))
    # Check the owners here, because the C code uses them as indices without checking them.
    if owner is not None and not (
        len(owner) == job.files and owner.max(initial=PFS) < job.cluster.nodes
    ):
        raise ValueError("the owners do not match this job's files and nodes")
    return {
        "copies": len(copies.node),
        "copy_node": copies.node[rows],
        "copy_file": copies.file[rows],
        "copy_class": copies.cls[rows],
        "copy_due": None if decision.due is None else decision.due[rows],
        "owner": owner,
        "stages": decision.staging and not decision.free,
        "fills": decision.when is not When.ON_USE,
        "fills_first": decision.when is When.BEFORE,
        "reads_remote": decision.remote,
        "weighs_pfs": decision.pfs,
        "is_free": decision.free,
    }


def _run(sim: Any, job: Job, decision: Decision, ranks: int, shape: tuple[int, ...]) -> None:
    orders = decision.orders or job.orders
    known: list[_Struct] = []
    epoch = 0
    while (state := lib.monarch_sim_run(sim)) == 1:
        order: Array = orders(epoch)
        # Check the order here: the C code assumes that every order has the shape of the first
        # epoch's order, and uses the files' numbers as indices without checking them.
        if order.shape != shape or order.min() < NO_FILE or order.max() >= job.files:
            raise ValueError(
                f"the order of epoch {epoch} does not match this job's files and steps"
            )
        fields = {"order": order}
        if decision.served is not None:
            served = vars(decision.served(epoch, order))
            fields |= {name: each for name, each in served.items() if each is not None}
        fields = {name: each.reshape(shape) for name, each in fields.items()}
        if shape[2] != job.batch:
            fields = {name: _dealt(each, ranks) for name, each in fields.items()}
        if decision.threads is not None:
            threads = decision.threads(epoch, order)
            if threads.shape != (*order.shape[:2], ranks) or threads.min() < 1:
                raise ValueError(f"`threads` of epoch {epoch} does not match this job's ranks")
            fields["threads"] = threads
        struct = _Struct("struct monarch_sim_epoch", **fields)
        if not lib.monarch_sim_give(sim, struct.c):
            raise MemoryError("the simulation does not fit into memory")
        known = [*known, struct][-EPOCHS_KNOWN:]
        epoch += 1
    assert state == 0, "the simulation has stopped before the end of the job"


def _dealt(values: Array, ranks: int) -> Array:
    """Distributes each node's samples, (nodes, steps, width), over the node's ranks. Returns the
    samples of each rank, (nodes, steps, ranks, samples). The function serves policies that choose
    the samples of each node: such policies do not choose the samples of each rank.

    The ranks of a node take the samples of a step in turn. The row of a rank that takes fewer
    samples is padded with NO_FILE.
    """
    nodes, steps, width = values.shape
    each = -(-width // ranks)
    padded = np.full((nodes, steps, each * ranks), NO_FILE, values.dtype)
    padded[:, :, :width] = values
    dealt: Array = padded.reshape(nodes, steps, each, ranks).swapaxes(2, 3)
    return dealt


def simulate(scenario: Scenario, policy: Policy, job: Job | None = None) -> Result:
    """Simulates a scenario under a policy. Raises PolicyError if the policy cannot run in the
    scenario.

    job : the scenario's job; None to create it here
    """
    job = job or job_of(scenario)
    decision = policy(job)
    return result_of(scenario, job, measure(scenario, job, decision), decision)


def result_of(scenario: Scenario, job: Job, measured: Measured, decision: Decision) -> Result:
    """Computes the `Result` of a run from its measurements."""
    ends = measured.epoch_end
    by_place = measured.bytes.sum(axis=0)
    later = float(job.sizes.sum()) * (scenario.epochs - 1)
    samples = scenario.epochs * scenario.batches_per_epoch * scenario.global_batch
    details = {
        "bytes_from_pfs": float(measured.pfs_bytes.sum()),
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
