"""Settings of the engine, read once per init()."""

from hvd_core._config.settings import EngineSettings, read_environment

__all__ = ["EngineSettings", "read_environment"]
