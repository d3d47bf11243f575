"""The steps that each transport writes for small collectives, as plain C++ objects: tests/hvd_core/engine/native/schedule_test.cc."""

import subprocess

import native_program


def test_steps_of_schedules():
    program = native_program.build("schedule_test")
    done = subprocess.run([program, native_program.shm_library()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "all good\n", done.stdout + done.stderr
