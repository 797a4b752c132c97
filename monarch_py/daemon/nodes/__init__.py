"""The nodes of a cluster: which node keeps each file, serving peers, which node a fill asks."""
