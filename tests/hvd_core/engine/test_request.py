"""A request, seen by other threads while it is completed: tests/hvd_core/engine/native/request_test.cc."""

import pytest

import native_program


@pytest.fixture(scope="module")
def program():
    return native_program.build("request_test")


@pytest.mark.parametrize("check", native_program.checks_of("request_test"))
def test_request(program, check):
    native_program.expect_check_passes(program, check)


def test_request_all_checks_are_listed(program):
    native_program.expect_all_checks_are_listed(program, "request_test")
