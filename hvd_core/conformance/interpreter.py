"""The interpreter of the processes that the kit starts for its cases."""

from __future__ import annotations

import sys

# The words in front of "-m" and "-c". Programs that run the kit many times may give it processes that start faster.
# What describing a backend imports and costs is measured in interpreters all the same.
WORDS: list[str] = [sys.executable]
