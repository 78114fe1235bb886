"""`python -m benchmarks.radix_cache`."""

import sys

from benchmarks.radix_cache.command import main

if __name__ == "__main__":
    sys.exit(main())
