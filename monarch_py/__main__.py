"""`python -m monarch_py` is the `monarch` command."""

from monarch_py.cli import main

main()
