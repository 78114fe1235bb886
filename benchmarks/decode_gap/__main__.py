"""Start the command."""

import sys

from benchmarks.decode_gap.command import main

sys.exit(main())
