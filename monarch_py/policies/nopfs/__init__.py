"""NoPFS (Dryden et al., SC'21): placement by access frequency, fetch choice by a performance model.

`policy` has NoPFS as a policy, and our variant for several nodes. `placement` decides which node
holds which files (section 5.1 of the paper), as a linear program. `prices` solves the dual of this
program.
"""
