"""Monarch: transparent storage tiering for deep-learning training."""

__all__ = ["__version__"]

__version__ = "0.1.0"
