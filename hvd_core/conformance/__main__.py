"""``python -m hvd_core.conformance BACKEND``: see docs/conformance.md and --help."""

import sys

from hvd_core.conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
