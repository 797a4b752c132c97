"""Brings up one daemon per node and tells each of the others. MPI is needed for nothing else."""

from monarch_py.cluster.collective import listed
from monarch_py.cluster.nodes import Node, bring_up

__all__ = ["Node", "bring_up", "listed"]
