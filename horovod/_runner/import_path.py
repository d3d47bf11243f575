"""The import path that a program hands to the processes of its job: functions are pickled by names of modules."""

from __future__ import annotations

import os
import shutil
import sys


def python_path() -> str:
    """The import path of this process, as PYTHONPATH for processes of the same Python."""
    return os.pathsep.join(os.path.abspath(place) for place in sys.path)


def is_this_python(python: str) -> bool:
    """Whether a command is the Python of this process. Another one must not get python_path(): it may have another
    version, and has packages of its own."""
    found = shutil.which(python)
    if found is None or not sys.executable:
        return False
    found, own = os.path.abspath(found), os.path.abspath(sys.executable)
    # Not the resolved paths alone: the environments of one Python share its program.
    same_folder = os.path.dirname(found) == os.path.dirname(own)
    return found == own or (same_folder and os.path.realpath(found) == os.path.realpath(own))
