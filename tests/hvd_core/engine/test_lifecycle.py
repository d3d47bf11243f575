"""The states of an engine: tests/hvd_core/engine/native/lifecycle_test.cc."""

import pytest

import native_program


@pytest.fixture(scope="module")
def program():
    return native_program.build("lifecycle_test")


@pytest.mark.parametrize("check", native_program.checks_of("lifecycle_test"))
def test_lifecycle(program, check):
    native_program.expect_check_passes(program, check)


def test_lifecycle_all_checks_are_listed(program):
    native_program.expect_all_checks_are_listed(program, "lifecycle_test")
