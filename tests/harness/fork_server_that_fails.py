"""A module whose import fails, for test_fork_server.py."""

raise RuntimeError("no module of this kind can be imported")
