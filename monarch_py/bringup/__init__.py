"""One daemon on every node, each told of the others: what MPI is needed for, and all that it is."""

from monarch_py.bringup.nodes import Node, bring_up
from monarch_py.bringup.together import listed

__all__ = ["Node", "bring_up", "listed"]
