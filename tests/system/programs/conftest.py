"""The protocol model's folder holds the language of the programs and their meaning."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "model"))
