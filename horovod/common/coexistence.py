"""Looks for the original ``horovod`` distribution beside this one. Both own the package name, and files of one may have
replaced files of the other. init() calls it, once per process.

The wheel of packages/horovod bears the original's name too, and has no package of its own: it requires hvd-core.
"""

import logging
import re
from importlib import metadata

_OURS = re.compile(r"hvd[-_.]core\b", re.IGNORECASE)
_looked = False


def report_original() -> None:
    """Log one warning if a distribution named ``horovod`` is installed here that is not that of hvd-core."""
    global _looked
    if _looked:
        return
    _looked = True
    try:
        found = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return
    if any(map(_OURS.match, found.requires or ())):
        return
    logging.getLogger("horovod").warning(
        "The original horovod %s is installed beside hvd-core; both provide the package 'horovod', and their files "
        "may be mixed. Run: pip uninstall horovod hvd-core, then install hvd-core again "
        "(docs/replacing-horovod.md).",
        found.version,
    )
