"""Brings up one daemon per node and tells each daemon about the others.

Monarch uses MPI for this alone.
"""
