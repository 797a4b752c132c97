"""Starts one daemon per node. Each daemon receives the addresses of the daemons on all nodes.

This is the only part of Monarch that uses MPI.
"""
