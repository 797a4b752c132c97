"""Datasets whose samples lie in few files, or in whole files, and how they are read."""
