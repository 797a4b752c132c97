"""Access plans: how far programs are, what is kept where, and what is fetched ahead."""
