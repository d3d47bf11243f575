"""Bootstrap: finds this process's rank and the other ranks, and connects them. README.md describes the steps.

The engine needs world.connect() and uses the resulting descriptors; store.StoreServer is for launchers. Both may be used
from any thread, one call at a time.
"""
