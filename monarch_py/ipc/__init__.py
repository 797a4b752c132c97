"""How the processes of a node communicate: the session's segments, its catalog, its socket."""
