"""The first epoch: while the copies are made."""
