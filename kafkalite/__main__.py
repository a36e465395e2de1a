"""python -m kafkalite: the same as the command `kafkalite`."""

import sys

from kafkalite.cli import main

if __name__ == "__main__":
    sys.exit(main())
