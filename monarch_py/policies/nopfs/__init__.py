"""NoPFS (Dryden et al., SC'21) places files by how often nodes access them, and uses a performance
model to choose where a file is fetched from.

`policy` contains the policies: NoPFS itself, and our variant for several nodes. `placement` decides
which node holds which files (section 5.1 of the paper); this problem is formulated as a linear
program. `prices` solves the dual of this program.
"""
