"""The output of mpirun is split by rank, wherever its parts end. Real mpiruns: tests/system/mpirun."""

import time

import pytest

from horovod._runner import mpi
from horovod._runner.output import Output

_, HYDRA = mpi.of_hydra()
TOKEN = HYDRA.start.decode()
KINDS = {
    "hydra": (HYDRA, lambda rank: f"{TOKEN}{rank}|"),
    "openmpi-4": (mpi.of_open_mpi((4, 1, 8)), lambda rank: f"[1,{rank}]<stdout>:"),
    "openmpi-5": (mpi.of_open_mpi((5, 0, 11)), lambda rank: f"[1,{rank}]<stdout>: "),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def shown(capfd):
    def read():
        return capfd.readouterr().out

    return read


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_pieces_become_lines(kind, shown, step):
    labels, label = kind
    stream = mpi.LabelledStream(labels, Output(12), "stdout")
    text = (
        f"mpirun says\n{label(0)}one {label(11)}first {label(0)}[1,2 two{label(11)}second\n{label(11)}\n"
        f" mpirun again\n{label(0)} three\n{label(11)}\r50%\r{label(11)}100%\n{label(0)}open"
    ).encode()
    for at in range(0, len(text), step):
        stream.feed(text[at : at + step])
    stream.end()
    a, b = "[0]<stdout>:", "[11]<stdout>:"
    lines = ["mpirun says", f"{b}first second", b, " mpirun again", f"{a}one [1,2 two three"]
    assert shown() == "\n".join([*lines, f"{b}50%\r100%", f"{a}open", ""])


def test_labels_that_a_program_prints(shown):
    labels, _ = KINDS["openmpi-4"]
    stream = mpi.LabelledStream(labels, Output(2), "stdout")
    # An mpirun in rank 1; standard error that was merged into standard output; a job that was spawned.
    stream.feed(b"[1,1]<stdout>:[1,0]<stdout>:inner\n[1,0]<stderr>:error\n[2,0]<stdout>:spawned\n")
    stream.end()
    assert shown() == "[1]<stdout>:[1,0]<stdout>:inner\n[0]<stderr>:error\n[2,0]<stdout>:spawned\n"


def test_what_is_unfinished_is_shown_after_a_moment(kind, shown):
    labels, label = kind
    stream = mpi.LabelledStream(labels, Output(2), "stdout")
    assert stream.due() is None
    beginning = label(0)[:3]
    stream.feed(f"{label(1)}question? {beginning}".encode())
    while (moment := stream.due()) is not None:
        time.sleep(max(0.0, moment - time.monotonic()))
        stream.advance(time.monotonic())
    stream.feed(f"{label(1)}answer\n".encode())
    assert shown() == f"[1]<stdout>:question? {beginning}answer\n"
