"""What a source holds: listed by this node (`walk`), or told by the node that has listed it for all
others (`record`). To whoever takes its batches both are the same."""

from monarch_py.scan.batch import Batch, Root, Scan
from monarch_py.scan.record import Record, give, record_sources, take
from monarch_py.scan.walk import Walk, names_are_exact, read_root

__all__ = [
    "Batch",
    "Record",
    "Root",
    "Scan",
    "Walk",
    "give",
    "names_are_exact",
    "read_root",
    "record_sources",
    "take",
]
