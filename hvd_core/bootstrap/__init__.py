"""Bootstrap: who am I, who are the others, and the descriptors the engine talks to them through.

connect() is all the engine needs; StoreServer is for launchers. Both may be used from any thread, one call at
a time.
"""

from .wire import AuthenticationError, BootstrapError, BootstrapTimeout
from .world import World, connect

__all__ = [
    "AuthenticationError",
    "BootstrapError",
    "BootstrapTimeout",
    "ShmLink",
    "StoreClient",
    "StoreServer",
    "TcpLink",
    "World",
    "connect",
]

_LAZY = {"StoreClient": "store", "StoreServer": "store", "ShmLink": "wiring", "TcpLink": "wiring"}


def __getattr__(name):
    # A process alone should not pay for importing the network parts.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
