"""Fusion and the coordinator as plain C++ objects: tests/hvd_core/engine/native/control_test.cc, one program for all checks."""

import pytest

import native_program


@pytest.fixture(scope="module")
def program():
    return native_program.build("control_test")


@pytest.mark.parametrize("check", native_program.checks_of("control_test"))
def test_control(program, check):
    native_program.expect_check_passes(program, check)


def test_control_all_checks_are_listed(program):
    native_program.expect_all_checks_are_listed(program, "control_test")
