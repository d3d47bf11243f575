"""Bootstrap: who am I, who are the others, and the descriptors the engine talks to them through."""

from .store import StoreClient, StoreServer
from .wire import AuthenticationError, BootstrapError, BootstrapTimeout

__all__ = ["AuthenticationError", "BootstrapError", "BootstrapTimeout", "StoreClient", "StoreServer"]
