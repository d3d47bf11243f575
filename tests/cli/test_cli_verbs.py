"""The table of verbs (hvd_core/_cli/command.py): each verb has its help, and only its module is imported for it."""

import subprocess
import sys

import pytest

from hvd_core._cli.command import VERBS

PRINT = """
import sys
from hvd_core._cli import main
assert main(sys.argv[1:]) == 0
print("modules:", *sorted(m for m in sys.modules if m.startswith("hvd_core._cli.")))
"""


def run(*arguments):
    """(what `hvd` prints, the modules of the command that it imports)."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.rpartition("modules:")
    return text, {name.removeprefix("hvd_core._cli.") for name in modules.split()}


def test_help_imports_no_verb():
    text, modules = run("--help")
    assert modules == {"command", "output"}
    for verb, (_, summary) in VERBS.items():
        if " " not in verb:
            assert verb in text and summary.split()[0] in text


@pytest.mark.parametrize("verb", ["plugin new", "config", "timeline", "flight", "docs"])
def test_a_verb_imports_its_own_module(verb):
    text, modules = run(*verb.split(), "--help")
    assert text.startswith(f"usage: hvd {verb}") and VERBS[verb][0] in modules
    others = {module for module, _ in VERBS.values()} - {VERBS[verb][0]}
    assert modules & others <= {"plugin_list", "plugin_doctor", "doctor"}  # used by other verbs
