"""The command of a rank that executes a function of host_ranks.py."""

import sys
from pathlib import Path


def rank_words(name, *arguments):
    return [sys.executable, Path(__file__).with_name("host_ranks.py"), name, *arguments]
