"""``python -m hvd_core._config FILE``: writes the table of the engine's settings into FILE (docs/environment.md)."""

import sys
from pathlib import Path

from hvd_core._config.settings import with_table

if len(sys.argv) != 2:
    sys.exit("usage: python -m hvd_core._config FILE")
path = Path(sys.argv[1])
path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
