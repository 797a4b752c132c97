"""Brings up one daemon per node and tells each of the others. MPI is needed for nothing else."""
