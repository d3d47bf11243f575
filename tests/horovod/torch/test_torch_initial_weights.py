"""HOROVOD_CHECK_CONSISTENCY=1: a training with PyTorch that lacks the first broadcast says so."""

import re

import pytest

import torch_initial_weights
from harness import run_on_ranks

REMEDY = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"


def output_of(function, *arguments, checked=True):
    env = {"HOROVOD_CHECK_CONSISTENCY": "1"} if checked else {}
    return run_on_ranks(2, function, *arguments, framework="torch", env=env).output


@pytest.mark.parametrize("kind", ["plain", "group", "fp16", "adasum"])
def test_without_broadcast(kind):
    text = output_of(torch_initial_weights.without_broadcast, kind)
    assert text.count("began to train with different weights: 4 of 4 parameters") == 1
    names = re.search(r"^  (.*): one value on rank 0; another on rank 1$", text, re.M)[1]
    assert sorted(names.split(", ")) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert REMEDY in text


def test_one_element_of_one_weight():
    text = output_of(torch_initial_weights.one_weight_differs)
    assert "different weights: 1 of 4 parameters" in text
    assert "\n  1.weight: one value on rank 0; another on rank 1\n" in text


def test_sparse_gradients():
    assert "different weights: 1 of 1 parameters" in output_of(torch_initial_weights.embedding)


@pytest.mark.parametrize("name", ["with_broadcast", "frozen_weight_differs"])
def test_no_warning(name):
    assert "weights" not in output_of(getattr(torch_initial_weights, name))


def test_off():
    assert "weights" not in output_of(torch_initial_weights.without_broadcast, checked=False)
