"""Where the tests of horovod.mxnet run: in MXNet's own interpreter, as it needs an older NumPy. What they use of MXNet is
imported there, by the first use; pytest's own process has no MXNet.
"""

import functools

import pytest

from harness.installed import Later

mx = Later("mxnet")
autograd, gluon = Later("mxnet.autograd"), Later("mxnet.gluon")
hvd = Later("horovod.mxnet")

on_mxnet = functools.partial(pytest.mark.ranks, framework="mxnet", init_options={"process_sets": "dynamic"})
