"""The table of environment variables: one meaning of a text for ranks, launchers and tools."""

import argparse

import pytest

from horovod._runner import launch_spec
from hvd_core._config import settings

READERS = {
    "rank": lambda environ: settings.read_environment(environ).start_timeout_s,
    "table": lambda environ: settings.read("HOROVOD_START_TIMEOUT", environ),
    "connect": lambda environ: settings.seconds_of(environ, "HOROVOD_START_TIMEOUT"),
    "launcher": lambda environ: launch_spec.start_timeout(argparse.Namespace(start_timeout=None), environ),
    "option": lambda environ: launch_spec.start_timeout(
        argparse.Namespace(start_timeout=environ["HOROVOD_START_TIMEOUT"]), {}
    ),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_start_timeout_means_the_same_everywhere(reader):
    for text, seconds in (("30", 30), ("30.5", 30.5), ("1e2", 100), ("3E1", 30)):
        assert reader({"HOROVOD_START_TIMEOUT": text}) == seconds
    for wrong in ("0", "-1", "soon", "1e9", "nan"):
        with pytest.raises(ValueError, match="must be a positive number of seconds"):
            reader({"HOROVOD_START_TIMEOUT": wrong})


def test_unset_and_empty_variables_have_their_defaults():
    for environ in ({}, {"HOROVOD_START_TIMEOUT": " "}):
        assert settings.read("HOROVOD_START_TIMEOUT", environ) == 30
    assert settings.seconds_of({}, "HOROVOD_ELASTIC_TIMEOUT") == 600
    assert settings.seconds_of({}, "HOROVOD_SPARK_START_TIMEOUT", 5) == 5


@pytest.mark.parametrize("variable", ["HOROVOD_DYNAMIC_PROCESS_SETS", "HOROVOD_TLS", "HOROVOD_EMULATION"])
def test_switches(variable):
    for text, on in (("0", False), ("off", False), ("No", False), ("1", True), ("TRUE", True), ("2", True)):
        assert settings.flag_of({variable: text}, variable) is on
    with pytest.raises(ValueError, match=f"{variable}='perhaps' is neither 0 nor 1"):
        settings.read_environment({variable: "perhaps"}) if variable != "HOROVOD_TLS" else settings.flag_of(
            {variable: "perhaps"}, variable
        )


def test_a_variable_that_the_table_lacks():
    with pytest.raises(KeyError):
        settings.read("HOROVOD_NO_SUCH_SETTING", {})
