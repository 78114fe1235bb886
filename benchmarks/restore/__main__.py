"""`python -m benchmarks.restore`."""

import sys

from benchmarks.restore.command import main

if __name__ == "__main__":
    sys.exit(main())
