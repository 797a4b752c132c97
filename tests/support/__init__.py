"""Code that the folders of tests share.

The settings below shorten the start of the thousands of processes that tests start: Python stores
compiled modules, whatever the environment says, and numpy's OpenBLAS starts no threads. The
settings are made before anything else is imported.
"""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["OPENBLAS_NUM_THREADS"] = "1"
