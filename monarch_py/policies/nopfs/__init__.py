"""NoPFS (Dryden et al., SC'21): placement by access frequency, fetch choice by a performance model.

`policy` has NoPFS as a policy, and our variant for several nodes. `placement` decides which node
holds which files (5.1). `prices` solves the dual of that problem.
"""
