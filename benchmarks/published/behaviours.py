"""What the published simulator does otherwise than its paper, or than a cluster would.

Every member is a switch. With all of them on (AS_PUBLISHED) the re-creation gives the published
numbers; with one of them off, that one thing is done right. The places are files and functions
below ``sim/`` of the repository of NoPFS (Dryden et al., SC'21), sections those of the paper.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["AS_PUBLISHED", "Behaviour"]


class Behaviour(Enum):
    """A switch: what is done while it is on, what is done while it is off, and where it stands."""

    # The random numbers of a run.
    SHUFFLES_BEFORE_SIZES = (
        "All epochs are shuffled before the sizes are drawn, so that sizes change with the epochs.",
        "Sizes are drawn first, and are the same for any number of epochs.",
        "policies/PolicyExecutor.py, __init__; dataset/Dataset.py",
    )

    # The performance model, section 4.
    WHOLE_CLASS_FOR_ONE_THREAD = (
        "A thread reads local and remote copies at the rate of all threads of the class together.",
        "It has its part, r_j(p_j) / p_j, as section 4 says.",
        "policies/BasePolicy.py, _get_speed",
    )
    PFS_FLAT_BELOW_FIRST_POINT = (
        "Fewer clients than the first point of t(g) have the whole rate of that point.",
        "They have a proportional part of it.",
        "policies/BasePolicy.py, _get_pfs_speed",
    )

    # How many clients the PFS has.
    CLIENTS_OF_THE_FUTURE = (
        "A node is a client of the PFS when any of its logged reads begins now or ever later.",
        "It is one when a read of it begins within 0.1 s of now.",
        "stats/Statistics.py, get_pfs_clients",
    )
    CLIENTS_BY_UNSORTED_SEARCH = (
        "The log of prefetches is searched by halving, although several threads write into it and"
        " its times are not in order: reads that are there can be missed.",
        "The log is kept in order of time.",
        "stats/Statistics.py, get_pfs_clients",
    )

    # Time.
    NODES_IN_TURN = (
        "Within a batch one node makes all its requests before the next node makes its first: it"
        " does not see what they do at the same time, and they see what it did later.",
        "The node whose clock is behind makes the next request.",
        "policies/PolicyExecutor.py, run",
    )
    LAST_NODES_FIRST_FILL = (
        "Training begins when the last node's first fill is done.",
        "It begins when the slowest one's is.",
        "stats/Statistics.py, add_init_stall_time",
    )
    STAGING_DURING_FIRST_FILL = (
        "Staging buffers fill from time 0 on, from caches that are themselves being filled.",
        "They fill once the caches are full.",
        "policies/StagingPoolPrefetcher.py, __init__ and fill_buffers",
    )

    # The staging buffer, section 5.2.
    BATCH_FREED_LATE = (
        "Room in the staging buffer is freed when the next batch begins, for a whole batch.",
        "A sample's room is free once it was read.",
        "policies/BasePolicy.py, _cleanup_read",
    )
    RETURNING_FILES_TAKE_NO_ROOM = (
        "A file that was in the staging buffer before takes no room when it comes again, and still"
        " gives room back: the buffer grows without bound.",
        "Every staged sample takes its room until it is freed.",
        "storage/Buffer.py, add",
    )
    ONE_TURN_FOR_ALL = (
        "The turns of the staging threads are counted once for all nodes, so that where a node's"
        " fill begins depends on the others.",
        "Every node counts its own.",
        "policies/StagingPoolPrefetcher.py, fill_buffers",
    )
    STAGES_THE_PAST = (
        "Prefetching that was overtaken stages samples that were read already, whose room is"
        " never freed.",
        "It goes on with the next sample that will be read.",
        "policies/StagingPoolPrefetcher.py, fill_buffers",
    )
    LAST_HOLDER = (
        "Of several nodes that hold a file, the one with the highest number is asked.",
        "The one with the fastest copy is.",
        "policies/BasePolicy.py, _get_maxspeed_remote_buffer_entry",
    )

    # NoPFS, section 5.
    NOPFS_WITHOUT_PEERS = (
        "NoPFS never prefetches from another node.",
        "It does when that is the fastest source that has the file (section 5.2).",
        "policies/FrequencyPrefetcher.py, __init__; StagingPoolPrefetcher, remote_prefetch",
    )
    CLASSES_AT_ALL_CLIENTS = (
        "Class prefetchers always read at the rate of a PFS with all nodes as clients.",
        "They read at the rate for the clients that it has.",
        "policies/FrequencyPrefetcher.py, fill_buffers",
    )
    ORDERED_BY_OTHER_CLASSES = (
        "Files are put in order of first use in groups as large as each class, the staging buffer"
        " included and one file too many in each, while the classes behind it are filled.",
        "The groups are what goes into the classes (section 5.1).",
        "policies/FrequencyPrefetcher.py, _get_access_statistics",
    )
    UNREAD_FILES_TAKE_ROOM = (
        "Files that a node never reads are placed behind those that it does.",
        "A node places what it reads.",
        "policies/FrequencyPrefetcher.py, _get_access_statistics",
    )
    LAST_FILE_LEFT_OUT = (
        "The last file of the order is never prefetched into a class.",
        "It is.",
        "policies/FrequencyPrefetcher.py, fill_buffers",
    )

    # The other policies.
    SHARDS_LEAVE_A_REST = (
        "With files that do not divide over the nodes, the rest is held by none (not in DeepIO).",
        "The last node's shard has the rest as well.",
        "policies/LBANNInMemoryStore.py, LocalityAwareDataLoading.py, ParallelDataStaging.py",
    )
    LOCALITY_WITHOUT_REORDERING = (
        "Locality-Aware never exchanges a sample: a lookup that finds nothing is not None.",
        "Nodes exchange samples of a batch, so that as many as possible are local.",
        "policies/LocalityAwareDataLoading.py, _reorder_batches; storage/Buffer.py, get_by_id",
    )
    DEEPIO_DRAWS_AGAIN = (
        "Opportunistic DeepIO draws samples with replacement, and never a shard's last.",
        "In an epoch a sample is read again only when all of its shard were.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    DEEPIO_FIRST_NODE_LOCAL = (
        "Node 0 of opportunistic DeepIO reads local samples alone.",
        "It draws as the others do, its neighbour being the last node.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    DEEPIO_ONE_NEIGHBOUR = (
        "What a node of opportunistic DeepIO does not draw from its own shard is of the node before"
        " it.",
        "It is of any other node.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    DEEPIO_LOCAL_CHANCE = (
        "Opportunistic DeepIO draws a local sample with a chance of 1 / (N - 1).",
        "The chance is 1 / N, as the comment there says.",
        "policies/DeepIOPolicy.py, _reorder_batches",
    )
    STAGING_DRAWS_AGAIN = (
        "Parallel Staging draws samples of a node's shard with replacement, and never its last.",
        "In an epoch a sample is read again only when all of the shard were.",
        "policies/ParallelDataStaging.py, _reorder_batches",
    )
    STAGING_FROM_LOWER_SHARDS = (
        "Parallel Staging copies from other nodes only files with numbers below its own shard.",
        "It copies whatever else there is room for.",
        "policies/ParallelDataStaging.py, _init_from_remote",
    )

    def __init__(self, on: str, off: str, where: str) -> None:
        """on, off : what is done;  where : file and function"""
        self.on = on
        self.off = off
        self.where = where


AS_PUBLISHED = frozenset(Behaviour)
