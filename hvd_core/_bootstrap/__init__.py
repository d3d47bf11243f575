"""Bootstrap: finds this process's rank and the other ranks, and connects them. The engine uses the resulting descriptors.

The engine needs connect() only; StoreServer is for launchers. Both may be used from any thread, one call at a time.
"""

from hvd_core._base.sockets import AuthenticationError, BootstrapError, BootstrapTimeout, RankLost, StoreLost
from hvd_core._bootstrap.world import World, connect

__all__ = [
    "AuthenticationError",
    "BootstrapError",
    "BootstrapTimeout",
    "RankLost",
    "ShmLink",
    "StoreClient",
    "StoreLost",
    "StoreServer",
    "TcpLink",
    "World",
    "connect",
]

_LAZY = {"StoreClient": "store", "StoreServer": "store", "ShmLink": "links", "TcpLink": "links"}


def __getattr__(name):
    # A job of one process does not need the network modules.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
