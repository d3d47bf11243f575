"""``from horovod.runner.common.util import secret, timeout``: see the README.md of the folder above."""
