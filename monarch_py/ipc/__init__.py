"""What the processes of a node share: a session's segments, its catalog and its daemon's socket."""
