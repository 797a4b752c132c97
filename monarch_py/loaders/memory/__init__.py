"""Memory that the processes of a node share, and the samples that they keep there."""
