"""The watch over calls into backends, at times that the test chooses: tests/hvd_core/engine/native/call_watch_test.cc."""

import pytest

import native_program


@pytest.fixture(scope="module")
def program():
    return native_program.build("call_watch_test")


@pytest.mark.parametrize("check", native_program.checks_of("call_watch_test"))
def test_call_watch(program, check):
    native_program.expect_check_passes(program, check)


def test_call_watch_all_checks_are_listed(program):
    native_program.expect_all_checks_are_listed(program, "call_watch_test")
