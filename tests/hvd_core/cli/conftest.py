"""The fixture of the tests of the command ``hvd``."""

from command_line import hvd  # noqa: F401 (a fixture)
