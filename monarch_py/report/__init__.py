"""Presents a daemon's status to people and to monitoring: a summary, a live view and metrics."""
