"""The stall report as plain functions: tests/engine/native/stall_test.cc, one program for all checks."""

import re
import subprocess
from pathlib import Path

import pytest

import native_program

SOURCE = Path(__file__).with_name("native") / "stall_test.cc"
CHECKS = re.findall(r"^ +CHECK\((\w+)\),$", SOURCE.read_text(encoding="utf-8"), re.M)


@pytest.fixture(scope="module")
def program():
    return native_program.build("stall_test")


@pytest.mark.parametrize("check", CHECKS)
def test_stall_report(program, check):
    done = subprocess.run([program, check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stall_report_all_checks_are_listed(program):
    listed = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True).stdout.split()
    written = re.findall(r"^void (\w+)\(\)", SOURCE.read_text(encoding="utf-8"), re.M)
    assert listed == CHECKS and sorted(written) == sorted(CHECKS)
