"""Notices that files of the package ``horovod`` are gone, and names the command that brings them back.

The original distribution ``horovod`` has files of the same names. Its removal, also by an upgrade to the wheel of
packages/horovod, deletes those of hvd-core that have replaced them. Then ``import horovod`` finds an empty package, and
runs no code of hvd-core. So hvd_core looks when it is imported, and a ``.pth`` file of that wheel when Python starts.
The latter executes this file by its path; so it imports nothing of hvd-core.
"""

import os
import sys


def report(site: str) -> None:
    """Print to stderr the files of hvd-core that are missing in a folder of packages, if there are any; once in a
    process."""
    # Not a variable of this module: it is executed by its path, and for an environment's folder Python does that twice.
    if getattr(sys, "_hvd_core_looked_for_files_in", None) == site:
        return
    setattr(sys, "_hvd_core_looked_for_files_in", site)  # noqa: B010 (mypy knows no such attribute)
    # No file of an archive can be removed, and print() would take stdout instead of an stderr that is None.
    if not os.path.isdir(site) or sys.stderr is None:
        return
    from contextlib import suppress  # late: importing hvd_core stays quick

    # Unreadable metadata or a full stderr must end no import and no start of Python.
    with suppress(Exception):
        _print_lost_files(site)


def _print_lost_files(site: str) -> None:
    from importlib import metadata

    for found in metadata.distributions(name="hvd-core", path=[site]):
        lost = [str(file) for file in found.files or () if not os.path.exists(str(found.locate_file(file)))]
        if lost:
            print(
                f"horovod: {len(lost)} files of hvd-core are missing in {site} ({lost[0]} for one): the removal of the "
                "original horovod has taken them. Install them again, WHEELS being the folder or page with the wheel:"
                f"\n  {sys.executable} -m pip install --no-index --find-links WHEELS --force-reinstall --no-deps "
                f"hvd-core=={found.version}",
                file=sys.stderr,
            )


def report_at_import() -> None:
    """The same for the folder of this package."""
    site = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.exists(os.path.join(site, "horovod", "__init__.py")):
        report(site)
