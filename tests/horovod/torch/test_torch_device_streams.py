"""How the current stream of a device is found: by the convention of vendors' torch modules, or by a provider."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

import horovod.torch as hvd
from horovod.torch import _devices
from torch_support import in_one_process


def maia():
    """A type of device that torch knows by name and for which no module exists."""
    return torch.device("maia", 3)


@contextlib.contextmanager
def with_module(**functions):
    """No stream has been asked for yet; torch.maia has these functions, and does not exist without any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("horovod.torch._devices._providers", {})
        if functions:
            patch.setattr("torch.maia", SimpleNamespace(**functions), raising=False)
        yield


@pytest.mark.parametrize("attribute", ["maia_stream", "sycl_queue", "native_handle"])
@pytest.mark.parametrize(("value", "address"), [(4096, 4096), (0, 0), (None, 0)])
@in_one_process
def test_a_module_with_current_streams_is_asked_each_time(attribute, value, address):
    asked = []

    def current_stream(index):
        asked.append(index)
        return SimpleNamespace(**{attribute: value})

    with with_module(current_stream=current_stream):
        assert _devices.current_stream(maia()) == address
        asked.clear()
        assert _devices.current_stream(maia()) == address
        assert asked == [3]


@in_one_process
def test_the_vendors_own_name_of_a_stream_comes_first():
    stream = SimpleNamespace(maia_stream=1, sycl_queue=2, native_handle=3)
    with with_module(current_stream=lambda index: stream):
        assert _devices.current_stream(maia()) == 1


@in_one_process
def test_a_module_whose_streams_have_no_address_is_synchronized():
    waited = []
    with with_module(current_stream=lambda index: object(), synchronize=waited.append):
        assert _devices.current_stream(maia()) is None
        assert _devices.current_stream(maia()) is None
        assert waited == [3, 3]


@in_one_process
def test_without_a_module_the_error_says_what_to_do():
    with with_module(), pytest.raises(ValueError, match=r"no torch\.maia.*hvd\.register_stream_provider"):
        _devices.current_stream(maia())


@in_one_process
def test_who_registers_a_function_is_asked_instead():
    with with_module(current_stream=lambda index: SimpleNamespace(maia_stream=1)):
        assert _devices.current_stream(maia()) == 1
        hvd.register_stream_provider("maia", lambda index: 100 + index)
        assert _devices.current_stream(maia()) == 103
        hvd.register_stream_provider("maia", lambda index: None)
        assert _devices.current_stream(maia()) is None
