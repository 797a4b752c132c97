"""NoPFS (Dryden et al., SC'21) places files by how often nodes access them, and chooses by a
performance model where to fetch a file.

`policy` has the policies: NoPFS itself, and our variant for several nodes. `placement` decides
which node holds which files (section 5.1 of the paper), as a linear program. `prices` solves the
dual of this program.
"""
