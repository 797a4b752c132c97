"""Monarch: storage tiering for deep-learning training that a job does not notice."""

__all__ = ["__version__"]

__version__ = "0.1.0"
