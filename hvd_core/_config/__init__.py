"""Settings: environment variables, plugins.toml, and the rules that name backends. Imports nothing else of hvd-core."""
