"""The tiers of a node: their directories, their free room, and the manifests of durable copies."""
