"""The implementation of the commands. The package cli parses arguments and prints results."""
