"""Exceptions of the public API. Programs import them from ``horovod.common.exceptions``."""


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagreed, a rank died, or the job was shut down. Elastic programs restore and retry."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed. ``skip_sync`` tells whether the state must not be synchronised again."""

    def __init__(self, skip_sync=False):
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A part of Horovod was built for another version of the framework."""

    def __init__(self, name, version, installed_version):
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name, version, installed_version):
    """The sentence for a framework ``name`` that was ``version`` at build time and is ``installed_version`` now."""
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}. "
        "This can result in unexpected behavior including runtime errors."
    )
