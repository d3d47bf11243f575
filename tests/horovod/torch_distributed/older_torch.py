"""What older versions of PyTorch do not have, or have with other arguments."""

import inspect

import pytest
import torch


def need_fully_shard():
    """Skips the test before PyTorch 2.6, whose FSDP2 is a prototype that wants CUDA (seen in 2.4)."""
    import torch.distributed.fsdp  # here, as it takes a second

    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no torch.distributed.fsdp.fully_shard, which came with 2.6")


def pipeline_stage(module, number, count, example):
    """A stage of a pipeline on the CPU. PyTorch 2.4 wants an example of a stage's input."""
    from torch.distributed.pipelining import PipelineStage

    needs = inspect.signature(PipelineStage).parameters["input_args"].default is inspect.Parameter.empty
    given = {"input_args": (example,)} if needs else {}
    return PipelineStage(module, number, count, torch.device("cpu"), **given)


def scale_of_pipelines(schedule, parts):
    """What the gradients of a pipeline are divided by: PyTorch 2.4 adds those of the parts up."""
    return 1 if "scale_grads" in inspect.signature(schedule).parameters else parts
