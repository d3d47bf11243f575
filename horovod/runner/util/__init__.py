"""``from horovod.runner.util import network, threads``: see common/README.md of the folder above."""
