"""Measures the first epoch, during which the copies are made."""
