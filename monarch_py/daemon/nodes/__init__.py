"""The nodes of a cluster: where files are kept, how peers get copies, which node a fill asks."""
