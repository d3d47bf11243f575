"""The tests of devices in tests/horovod serve here too, with another type of device."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
for folder in ("horovod/torch", "horovod/torch_distributed"):
    if str(TESTS / folder) not in sys.path:
        sys.path.append(str(TESTS / folder))
