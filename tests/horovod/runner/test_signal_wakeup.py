"""A signal that comes just before horovodrun waits has its effect nevertheless. A program's own descriptor for signals
stays in use."""

import os
import selectors
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from horovod._runner.event_loop import SignalWakeup

PROGRAM = str(Path(__file__).with_name("silent_launcher.py"))
SILENT = ["sh", "-c", "echo up; exec sleep 600"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [["-np", "1"], ["-np", "1", "--min-np", "1"]], ids=["fixed", "elastic"])
def test_a_silent_job_ends(tmp_path, options, number):
    job = subprocess.Popen(
        [sys.executable, PROGRAM, *options, *SILENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "up" in job.stdout.readline()
        job.send_signal(number)
        output = job.communicate(timeout=60)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 128 + number, output


@pytest.fixture
def selector():
    with selectors.DefaultSelector() as made:
        yield made


def test_the_programs_own_descriptor_gets_the_numbers(selector):
    reader, writer = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(writer)
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        wakeup = SignalWakeup(selector)
        os.kill(os.getpid(), signal.SIGUSR1)
        for key, _ in selector.select(30):
            key.data()
        assert os.read(reader, 8) == bytes([signal.SIGUSR1])
        wakeup.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert os.read(reader, 8) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(-1) == writer
    finally:
        signal.signal(signal.SIGUSR1, handler)
        signal.set_wakeup_fd(before)
        for descriptor in (reader, writer):
            os.close(descriptor)


def test_in_another_thread_it_changes_nothing(selector):
    wakeups = []
    thread = threading.Thread(target=lambda: wakeups.append(SignalWakeup(selector)))
    thread.start()
    thread.join()
    assert signal.set_wakeup_fd(-1) == -1 and not selector.get_map()
    wakeups[0].close()
