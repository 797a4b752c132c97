"""NoPFS (Dryden et al., SC'21): placement by access frequency, fetch choice by a performance model.

`policy` is the policy, and ours for several nodes, `placement` decides who holds what (5.1),
`fetching` is the performance model (4).
"""

from monarch_py.policies.nopfs.policy import NoPFS, NoPFSLiteral, Planned

__all__ = ["NoPFS", "NoPFSLiteral", "Planned"]
