"""Prints the frameworks that are loaded after an import of horovod and its launcher, for test_architecture.py."""

import sys

import architecture_rules as rules
import horovod
import horovod.runner.launch  # noqa: F401
import hvd_core  # noqa: F401

print([name for name in rules.FRAMEWORK_PACKAGES if name in sys.modules])
