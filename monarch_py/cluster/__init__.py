"""One daemon on every node, each told of the others: what MPI is needed for, and all that it is."""

from monarch_py.cluster.collective import listed
from monarch_py.cluster.nodes import Node, bring_up

__all__ = ["Node", "bring_up", "listed"]
