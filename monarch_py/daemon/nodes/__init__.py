"""The nodes of a cluster: which node keeps which file, what this one serves, whom a fill asks."""
