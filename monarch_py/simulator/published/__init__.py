"""A re-creation of the published simulator of NoPFS."""
