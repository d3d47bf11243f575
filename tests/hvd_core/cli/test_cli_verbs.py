"""The table of verbs (hvd_core/_cli/command.py): each verb has its help, and only its module is imported for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from hvd_core._cli.command import VERBS

PRINT_MODULES = Path(__file__).with_name("print_modules.py")


def run(*arguments):
    """(what `hvd` prints, the modules of the command that it imports)."""
    words = [sys.executable, str(PRINT_MODULES), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    text, _, modules = done.stdout.rpartition("MODULES")
    own = {name for name in modules.split() if name.startswith("hvd_core._cli.")}
    return text, {name.removeprefix("hvd_core._cli.") for name in own}


def test_help_imports_no_verb():
    text, modules = run("--help")
    assert modules == {"command", "output"}
    for verb, (_, summary) in VERBS.items():
        if " " not in verb:
            assert verb in text and summary.split()[0] in text


@pytest.mark.parametrize("verb", [verb for verb, (module, _) in VERBS.items() if module])
def test_a_verb_imports_its_own_module(verb):
    text, modules = run(*verb.split(), "--help")
    assert text.startswith(f"usage: hvd {verb}") and VERBS[verb][0] in modules
    others = {module for module, _ in VERBS.values()} - {VERBS[verb][0]}
    assert modules & others <= {"plugin_list", "plugin_doctor", "doctor"}  # used by other verbs
