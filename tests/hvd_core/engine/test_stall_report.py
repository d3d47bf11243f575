"""The stall report as plain functions: tests/hvd_core/engine/native/stall_test.cc, one program for all checks."""

import pytest

import native_program


@pytest.fixture(scope="module")
def program():
    return native_program.build("stall_test")


@pytest.mark.parametrize("check", native_program.checks_of("stall_test"))
def test_stall_report(program, check):
    native_program.expect_check_passes(program, check)


def test_stall_report_all_checks_are_listed(program):
    native_program.expect_all_checks_are_listed(program, "stall_test")
