"""``python -m hvd_core.conformance BACKEND``: see docs/conformance.md and --help."""

import os
import sys

from hvd_core.conformance._command import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader of the table has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
