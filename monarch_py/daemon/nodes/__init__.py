"""The nodes of a cluster: which keeps which file, what this one gives, whom a fill asks."""
