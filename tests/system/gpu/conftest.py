"""The tests of devices in tests/torch and tests/torch_distributed serve here too, with another type of device."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for folder in ("torch", "torch_distributed"):
    if str(TESTS / folder) not in sys.path:
        sys.path.append(str(TESTS / folder))
