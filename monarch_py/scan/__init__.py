"""The scan of a source: made by this node (`walk`), or received from another node (`record`).

Both have the same interface (`batch.Scan`).
"""

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
