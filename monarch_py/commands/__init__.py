"""The work behind each command. The package cli parses arguments and prints results."""
