"""The protocol model's folder holds the language of the programs and what they mean."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
