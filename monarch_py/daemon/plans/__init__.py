"""Access plans: the programs' progress, placement of files, and fetches ahead."""
