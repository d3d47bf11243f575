"""Looks for the original ``horovod`` distribution beside this one. Both own the package name, and files of one may have
replaced files of the other. init() calls it, once per process.
"""

import logging
from importlib import metadata

_looked = False


def report_original() -> None:
    """Log one warning if a distribution named ``horovod`` is installed here."""
    global _looked
    if _looked:
        return
    _looked = True
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError:
        return
    logging.getLogger("horovod").warning(
        "The original horovod %s is installed beside hvd-core; both provide the package 'horovod', and their files "
        "may be mixed. Run: pip uninstall horovod hvd-core, then install hvd-core again.",
        version,
    )
