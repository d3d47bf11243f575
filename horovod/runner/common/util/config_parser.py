"""Options of the launcher as environment variables, under the name that programs import."""

import argparse
from collections.abc import Collection
from typing import Any

from horovod._runner import arguments as _config
from horovod._runner.arguments import set_env_from_args, validate_config_args

__all__ = ["set_args_from_config", "set_env_from_args", "validate_config_args"]


def set_args_from_config(
    args: argparse.Namespace, config: dict[str, Any], override_args: Collection[str] = ()
) -> None:
    """Sets the options that are None, and whose names are not in `override_args`, from a configuration file. Raises
    ValueError for wrong values."""
    before = {name: getattr(args, name, None) for name in override_args}
    _config.set_args_from_config(args, config)
    for name, value in before.items():
        setattr(args, name, value)
