"""horovod.common.util, and the exceptions of calls before init(), as programs written for Horovod use them."""

import os
import pickle

import pytest

import hvd_core
from horovod.common import exceptions, process_sets, util
from horovod.common.basics import HorovodBasics


def test_questions_about_the_build_are_those_of_the_basics():
    basics = HorovodBasics()
    for name in ("gloo_built", "mpi_built", "nccl_built", "ccl_built", "ddl_built"):
        assert getattr(util, name)(verbose=True) == getattr(basics, name)()
    assert util.gloo_built() is True


def test_extensions_are_front_ends_whose_framework_is_installed(monkeypatch):
    found = {
        name: util.extension_available(name) for name in ("torch", "tensorflow", "mxnet", "keras", "nonesuch")
    }
    assert not (found["mxnet"] or found["keras"] or found["nonesuch"])
    monkeypatch.setattr(util.importlib.util, "find_spec", lambda name: None)
    assert not util.extension_available("torch")
    with pytest.raises(
        ImportError, match=r"Extension horovod\.torch cannot be used: the framework is not installed"
    ):
        util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib")
    assert util.gpu_available("torch") is False


def test_variables_are_set_for_a_while(monkeypatch):
    monkeypatch.setenv("HVD_TEST_KEPT", "before")
    with pytest.raises(KeyError), util.env(HVD_TEST_KEPT="inside", HVD_TEST_NEW="1"):
        assert (os.environ["HVD_TEST_KEPT"], os.environ["HVD_TEST_NEW"]) == ("inside", "1")
        raise KeyError
    assert os.environ["HVD_TEST_KEPT"] == "before" and "HVD_TEST_NEW" not in os.environ


def test_versions_are_compared_by_their_numbers():
    for version, target, expected in (
        ("2.10.0", "2.9.0", True),
        ("2.6.0rc1", "2.6.0", True),
        ("2.5.9", "2.6.0", False),
    ):
        assert util.is_version_greater_equal_than(version, target) is expected
    with pytest.raises(ValueError, match="'2'"):
        util.is_version_greater_equal_than("2", "2.6.0")


def test_a_call_before_init_fails_as_rank_and_as_operations_did_in_the_original():
    for kind in (ValueError, exceptions.HorovodInternalError, exceptions.NotInitializedError):
        with pytest.raises(kind, match=r"^Horovod has not been initialized; use hvd\.init\(\)\.$"):
            HorovodBasics().rank()
        with pytest.raises(kind, match="Horovod has not been initialized"):
            hvd_core.barrier()


def test_classes_show_the_module_that_programs_import():
    for name in exceptions.__all__:
        value = getattr(exceptions, name)
        if isinstance(value, type):
            assert value.__module__ == "horovod.common.exceptions"
    assert hvd_core.HorovodInternalError is exceptions.HorovodInternalError
    copy = pickle.loads(pickle.dumps(exceptions.NotInitializedError("text")))
    assert type(copy) is exceptions.NotInitializedError and str(copy) == "text"
    assert process_sets.ProcessSet.__module__ == "horovod.common.process_sets"
    everything = process_sets.global_process_set
    assert pickle.loads(pickle.dumps(everything)) is everything
