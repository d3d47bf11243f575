"""The C++ layer's look into the store (Store::try_get), and poll_until, inside of a job (tests/backends/host/looking)."""

from pathlib import Path

import pytest

import hvd_core as hvd
import native_program
from harness import run_on_ranks

LOOKING = Path(__file__).parents[2] / "backends/host" / "looking" / "looking.cc"


def begin():
    hvd.init()
    hvd.shutdown()
    return "begun"


@pytest.mark.slow
def test_a_look_into_the_store_does_not_wait():
    env = {"HOROVOD_BACKEND": "looking", "HOROVOD_BACKEND_PATH_LOOKING": str(native_program.backend(LOOKING))}
    for ranks in (1, 2):
        done = run_on_ranks(ranks, begin, init=None, env=env)
        assert done.results == ["begun"] * ranks
