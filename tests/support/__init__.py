"""What the tests' rooms share.

The thousands of processes that tests start begin sooner with what is set here, before anything else
is imported: modules are compiled once, whatever the environment says, and numpy starts no threads
for algebra.
"""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["OPENBLAS_NUM_THREADS"] = "1"
