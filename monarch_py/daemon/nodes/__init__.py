"""The nodes of a cluster: which node keeps each file, what this one serves, which node a fill
asks."""
