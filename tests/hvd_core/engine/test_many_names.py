"""A program that gives each of its operations a name of its own. The same for torch is in tests/horovod/torch/test_torch_memory.py."""

import numpy as np
import pytest

import hvd_core as hvd
from harness.heap import bytes_in_memory, bytes_in_use


def reduce_under_new_names(names):
    for begin in range(names.start, names.stop, 50):
        handles = [
            hvd.allreduce_async(np.ones(100, np.float32), name=f"a tensor with a name that is not short, {k}")
            for k in range(begin, begin + 50)
        ]
        for handle in handles:
            hvd.synchronize(handle)


@pytest.mark.ranks(2)
def test_a_new_name_leaves_nothing_in_the_programs_heap():
    reduce_under_new_names(range(3000))  # by then the links know as many names as they keep
    heap, memory = bytes_in_use(), bytes_in_memory()
    reduce_under_new_names(range(3000, 8000))
    assert bytes_in_use() - heap < 200_000
    assert bytes_in_memory() - memory < 5_000_000
