"""Daemons of several nodes on one machine, with a source that all of them share."""
