"""NoPFS (Dryden et al., SC'21): placement by access frequency, fetch choice by a performance model.

`policy` is the policy, and ours for several nodes, `placement` decides who holds what (5.1),
`fetching` where a file is read
from and what a prefetcher does next (4, 5.2.2), `migration` moves copies between the classes of a
node along a known order (Dantas 2022, 6.1).
"""

from monarch_py.policies.nopfs.policy import NoPFS, NoPFSLiteral, Planned

__all__ = ["NoPFS", "NoPFSLiteral", "Planned"]
