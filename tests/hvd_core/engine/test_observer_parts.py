"""The observer's parts without an engine: tests/hvd_core/engine/native/observer_test.cc."""

import pytest

import native_program


@pytest.fixture(scope="module")
def program():
    return native_program.build("observer_test")


@pytest.mark.parametrize("check", native_program.checks_of("observer_test"))
def test_observer_parts(program, check):
    native_program.expect_check_passes(program, check)


def test_observer_parts_all_checks_are_listed(program):
    native_program.expect_all_checks_are_listed(program, "observer_test")
