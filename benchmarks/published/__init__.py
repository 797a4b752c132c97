"""A re-creation of the simulator that the authors of NoPFS published, and of its deviations.

It reproduces the published results for all policies. Every deviation of that simulator from the
paper, or from a real cluster, is a Behaviour that can be switched off separately.
"""

from benchmarks.published.behaviours import AS_PUBLISHED, Behaviour
from benchmarks.published.run import POLICIES, simulate

__all__ = ["AS_PUBLISHED", "POLICIES", "Behaviour", "simulate"]
