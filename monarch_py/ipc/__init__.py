"""What the processes of a node share: a session's segments, its catalog, its daemon's socket."""
