"""The rank programs of tests/torch serve here too, with another type of device; so do the helpers beside them."""

import sys
from pathlib import Path

TORCH_TESTS = str(Path(__file__).resolve().parents[1] / "torch")
if TORCH_TESTS not in sys.path:
    sys.path.append(TORCH_TESTS)
