"""A session's segments and catalog, and the daemon's socket: what processes of a node share."""
