"""Brings up one daemon per node and tells each daemon about the others.

MPI is used for nothing else.
"""
