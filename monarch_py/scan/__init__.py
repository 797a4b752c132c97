"""What a source holds: listed by this node (`walk`), or told by the node that has listed it for all
others (`record`). To whoever takes its batches both are the same."""

from monarch_py.scan.batch import ALL_NAMES, END_LIMIT_S, Batch, Root, Scan
from monarch_py.scan.record import Record, give, record_sources, take
from monarch_py.scan.walk import Walk, read_root

__all__ = [
    "ALL_NAMES",
    "END_LIMIT_S",
    "Batch",
    "Record",
    "Root",
    "Scan",
    "Walk",
    "give",
    "read_root",
    "record_sources",
    "take",
]
