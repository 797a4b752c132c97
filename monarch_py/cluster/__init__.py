"""Brings up one daemon per node and tells each daemon about the others.

This is the only part of Monarch that uses MPI.
"""
