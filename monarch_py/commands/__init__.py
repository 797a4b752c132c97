"""The work behind each command. Parsing arguments and printing results is the job of cli."""
