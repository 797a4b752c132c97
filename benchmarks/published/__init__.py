"""A re-creation of the simulator that the authors of NoPFS published.

The re-creation reproduces the published results for all policies. The authors' simulator deviates
in several ways from their paper and from a real cluster. The re-creation has the same deviations.
Each deviation is a member of Behaviour, and can be switched off separately.
"""

from benchmarks.published.behaviours import AS_PUBLISHED, Behaviour
from benchmarks.published.run import POLICIES, simulate

__all__ = ["AS_PUBLISHED", "POLICIES", "Behaviour", "simulate"]
