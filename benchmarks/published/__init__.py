"""The simulator that the authors of NoPFS published, re-created: what it gives, and why.

Its results are reproduced for all its policies, and every way in which it does otherwise than its
paper, or than a cluster would, is a Behaviour that can be switched off alone.
"""

from benchmarks.published.behaviours import AS_PUBLISHED, Behaviour
from benchmarks.published.run import POLICIES, simulate

__all__ = ["AS_PUBLISHED", "POLICIES", "Behaviour", "simulate"]
