"""Brings up one daemon per node. Each daemon gets the addresses of the daemons on all nodes.

This is the only part of Monarch that uses MPI.
"""
