"""``python -m hvd_core._cli``: the command ``hvd`` where its script is not on the PATH."""

import sys

from hvd_core._cli import main

if __name__ == "__main__":
    sys.exit(main())
