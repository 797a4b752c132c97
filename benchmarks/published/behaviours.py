"""The deviations of the published simulator from its paper, or from a real cluster.

Every member of Behaviour is a switch for one deviation. While a switch is on, the re-creation has
the deviation. With all switches on (AS_PUBLISHED), the re-creation reproduces the published
numbers. Locations are files and functions below ``sim/`` in the repository of NoPFS (Dryden et al.,
SC'21). Section numbers refer to the paper.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["AS_PUBLISHED", "Behaviour"]


class Behaviour(Enum):
    """A switch for one deviation. Its three texts are the behaviour while the switch is on, the
    behaviour while it is off, and the location of the deviation in the published code."""

    # The random numbers of a run.
    SHUFFLES_BEFORE_SIZES = (
        "All epochs are shuffled before the sizes are drawn, so the sizes depend on the number"
        " of epochs.",
        "Sizes are drawn before the epochs are shuffled, and are the same for any number of"
        " epochs.",
        "policies/PolicyExecutor.py, __init__; dataset/Dataset.py",
    )

    # The performance model (section 4 of the paper).
    WHOLE_CLASS_FOR_ONE_THREAD = (
        "A thread reads local and remote copies at the rate of all threads of the class together.",
        "A thread reads at its share of the rate of all threads of the class, r_j(p_j) / p_j"
        " (section 4).",
        "policies/BasePolicy.py, _get_speed",
    )
    PFS_FLAT_BELOW_FIRST_POINT = (
        "If the PFS has fewer clients than the first point of t(g), they share the whole rate of"
        " that point.",
        "If the PFS has fewer clients than the first point of t(g), they share a proportional part"
        " of that point's rate.",
        "policies/BasePolicy.py, _get_pfs_speed",
    )

    # The number of clients of the PFS.
    CLIENTS_OF_THE_FUTURE = (
        "A node counts as a client of the PFS if any of its logged reads begins now or at any"
        " later time.",
        "A node counts as a client of the PFS if one of its reads begins within 0.1 s of now.",
        "stats/Statistics.py, get_pfs_clients",
    )
    CLIENTS_BY_UNSORTED_SEARCH = (
        "The log of prefetches is searched by bisection, which may miss reads: several threads"
        " write to the log, so its times are not sorted.",
        "The log is kept sorted by time.",
        "stats/Statistics.py, get_pfs_clients",
    )

    # Time.
    NODES_IN_TURN = (
        "Within a batch, the nodes are simulated one after the other. So a node's requests ignore"
        " those that later nodes make at the same time, but may be slowed by those that earlier"
        " nodes make at later times.",
        "The node whose clock is furthest behind makes the next request.",
        "policies/PolicyExecutor.py, run",
    )
    LAST_NODES_FIRST_FILL = (
        "Training begins when the node with the highest number has finished its first fill.",
        "Training begins when every node has finished its first fill.",
        "stats/Statistics.py, add_init_stall_time",
    )
    STAGING_DURING_FIRST_FILL = (
        "Staging buffers are filled from time 0 on, from caches that are themselves being filled.",
        "Staging buffers are filled when the caches are full.",
        "policies/StagingPoolPrefetcher.py, __init__ and fill_buffers",
    )

    # The staging buffer (section 5.2 of the paper).
    BATCH_FREED_LATE = (
        "A sample's room in the staging buffer is freed when the next batch begins.",
        "A sample's room is freed as soon as the sample was read.",
        "policies/BasePolicy.py, _cleanup_read",
    )
    RETURNING_FILES_TAKE_NO_ROOM = (
        "A file that was in the staging buffer before takes no room when it is staged again, but"
        " still frees room afterwards: the buffer grows without bound.",
        "Every staged sample takes its room until it is freed.",
        "storage/Buffer.py, add",
    )
    ONE_TURN_FOR_ALL = (
        "All nodes share one counter that says which staging thread is next. So the thread that"
        " begins a node's fill depends on the fills of the other nodes.",
        "Every node has a counter of its own.",
        "policies/StagingPoolPrefetcher.py, fill_buffers",
    )
    STAGES_THE_PAST = (
        "If reads overtake prefetching, prefetching stages samples that were read already. The"
        " room of these samples is never freed.",
        "Prefetching continues with the next sample that will be read.",
        "policies/StagingPoolPrefetcher.py, fill_buffers",
    )
    LAST_HOLDER = (
        "If several nodes hold a file, it is read from the node with the highest number.",
        "If several nodes hold a file, it is read from the node with the fastest copy.",
        "policies/BasePolicy.py, _get_maxspeed_remote_buffer_entry",
    )

    # The policy NoPFS (section 5 of the paper).
    NOPFS_WITHOUT_PEERS = (
        "NoPFS never prefetches from another node.",
        "NoPFS prefetches from another node if that node is the fastest place that has the file"
        " (section 5.2).",
        "policies/FrequencyPrefetcher.py, __init__; StagingPoolPrefetcher, remote_prefetch",
    )
    CLASSES_AT_ALL_CLIENTS = (
        "Class prefetchers always read at the rate that the PFS has when all nodes are its"
        " clients.",
        "Class prefetchers read at the rate for the actual number of clients.",
        "policies/FrequencyPrefetcher.py, fill_buffers",
    )
    ORDERED_BY_OTHER_CLASSES = (
        "The files are divided into one group for the staging buffer and one for each class, and"
        " sorted by first use within a group. A group has one file more than fits into its"
        " class or buffer. The staging buffer has a group although it is not filled in this order.",
        "There is one group for each class: the files that the class holds (section 5.1).",
        "policies/FrequencyPrefetcher.py, _get_access_statistics",
    )
    UNREAD_FILES_TAKE_ROOM = (
        "Files that a node never reads are placed after those that it reads.",
        "A node places only files that it reads.",
        "policies/FrequencyPrefetcher.py, _get_access_statistics",
    )
    LAST_FILE_LEFT_OUT = (
        "The last file of the order is never prefetched into a class.",
        "The last file is prefetched too.",
        "policies/FrequencyPrefetcher.py, fill_buffers",
    )

    # The other policies.
    SHARDS_LEAVE_A_REST = (
        "If the number of files is not a multiple of the number of nodes, no node holds the"
        " remainder (except in DeepIO).",
        "The last node's shard includes the remainder.",
        "policies/LBANNInMemoryStore.py, LocalityAwareDataLoading.py, ParallelDataStaging.py",
    )
    LOCALITY_WITHOUT_REORDERING = (
        "Locality-Aware never exchanges a sample: the code expects a failed lookup to return None,"
        " but a failed lookup returns another value.",
        "Nodes exchange samples of a batch, so that as many as possible are local.",
        "policies/LocalityAwareDataLoading.py, _reorder_batches; storage/Buffer.py, get_by_id",
    )
    DEEPIO_DRAWS_AGAIN = (
        "Opportunistic DeepIO draws samples with replacement, and never the last one of a shard.",
        "In an epoch, a sample is repeated only after all samples of its shard were drawn.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    DEEPIO_FIRST_NODE_LOCAL = (
        "Node 0 of opportunistic DeepIO reads only local samples.",
        "Node 0 draws like the other nodes; its neighbour is the last node.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    DEEPIO_ONE_NEIGHBOUR = (
        "If a node of opportunistic DeepIO does not draw a sample from its own shard, the"
        " sample comes from the node before it.",
        "If a node does not draw a sample from its own shard, the sample comes from any other"
        " node.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    DEEPIO_LOCAL_CHANCE = (
        "Opportunistic DeepIO draws a local sample with a probability of 1 / (N - 1).",
        "The probability of a local sample is 1 / N, as a comment in the code says.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    STAGING_DRAWS_AGAIN = (
        "Parallel Staging draws samples of a node's shard with replacement, and never the last"
        " one.",
        "In an epoch, a sample is repeated only after all samples of the node's shard were drawn.",
        "policies/ParallelDataStaging.py, _reorder_batches",
    )
    STAGING_FROM_LOWER_SHARDS = (
        "Parallel Staging copies from other nodes only files with numbers below its own shard.",
        "Parallel Staging copies any other files for which there is room.",
        "policies/ParallelDataStaging.py, _init_from_remote",
    )

    def __init__(self, on: str, off: str, where: str) -> None:
        """Makes a switch.

        on, off : the behaviour while the switch is on, and while it is off
        where : the file and the function of the published simulator that have the behaviour
        """
        self.on = on
        self.off = off
        self.where = where


AS_PUBLISHED = frozenset(Behaviour)
