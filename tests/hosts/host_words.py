"""The command of a rank that executes a function of host_ranks.py."""

from pathlib import Path

from harness import plain


def rank_words(name, *arguments):
    return [*plain.python(), Path(__file__).with_name("host_ranks.py"), name, *arguments]
