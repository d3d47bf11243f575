"""The conformance kit with processes that start no interpreter each: children of a fork server that has its modules.

The kit starts a process for each rank, new ones after each failure, and others for cases without ranks. An interpreter
uses 0.25 s of processor time until the first case begins, a child 0.03 s. The kit starts interpreters where it is told
nothing: the tests of its command run it so.
"""

from pathlib import Path

from . import environment, fork_servers

# What the kit's processes import besides the modules with cases.
_ALSO = (
    *("hvd_core.conformance._command", "hvd_core.conformance._worker", "hvd_core.conformance._report"),
    "hvd_core._config.plugins_toml",
    "hvd_core.backends._selection.options",
    *("argparse", "encodings.idna", "faulthandler", "importlib.metadata", "tomllib", "unicodedata"),
)


def python() -> list[str]:
    """The words that stand for an interpreter which has imported the kit: those of a fork server's client."""
    from hvd_core.conformance._cases import all_cases

    modules = {case.run.__module__ for case in all_cases()}
    own = sorted(name for name in modules if name.startswith("hvd_core.conformance."))
    return fork_servers.interpreter((*own, *_ALSO), environment.base())


def command() -> list[str]:
    """The words in front of the kit's arguments, in place of `python -m hvd_core.conformance`."""
    words = python()
    return [*words, str(Path(__file__).with_name("kit_program.py")), *words, "--"]
