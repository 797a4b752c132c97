"""`python -m monarch_py` is the `monarch` command."""

import sys

from monarch_py.cli import main

sys.exit(main())
