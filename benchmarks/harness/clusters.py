"""Published figures for benchmarks/simulate.py: clusters, models, and the scaling that others have measured,
each with its source."""

from __future__ import annotations

import math
from typing import NamedTuple

from .cluster_model import Cluster, Model
from .shapes import resnet50

# What the engine adds, in microseconds: measured on two cores (docs/performance.md: small allreduces, many
# tensors, hops of
# the tcp backend over loopback); a network adds a few to a hop.
_ENGINE = {"hop_us": 20.0, "batch_us": 6.0, "tensor_us": 0.7}

CLUSTERS = {
    "a100": Cluster(
        "8 A100 and 8 x 200 Gbit/s per host", 8, 235.0, 200.0, **_ENGINE,
        source="NCCL tuning.cc: at most 235 GB/s of bus bandwidth for A100; DGX A100: eight HDR adapters of 25 GB/s",
    ),
    "summit": Cluster(
        "Summit: 6 V100 and 2 x 100 Gbit/s per host", 6, 50.0, 25.0, **_ENGINE,
        source="ORNL: two NVLink bricks of 25 GB/s between GPUs, dual-rail EDR InfiniBand of 25 GB/s per node",
    ),
    "p100": Cluster(
        "4 P100 and 25 Gbit/s per host", 4, 12.0, 3.125, **_ENGINE,
        source="horovod/horovod docs/benchmarks.rst: 128 servers with 4 Pascal GPUs, 25 Gbit/s RoCE; PCIe 3.0 x16 within",
    ),
}  # fmt: skip


def _transformer(layers: int, each: list[int], first: int, bytes_each: int) -> list[int]:
    """Gradients in the order of backward: layers from the last to the first, then the embedding."""
    return [count * bytes_each for _ in range(layers) for count in reversed(each)] + [first * bytes_each]


def bert_large() -> list[int]:
    """24 layers of 1,024 and the embedding of 30,522 words; 16 tensors per layer, 334 million elements, 16 bits."""
    h = 1024
    layer = [*([h * h, h] * 4), h, h, 4 * h * h, 4 * h, 4 * h * h, h, h, h]
    return _transformer(24, layer, (30522 + 512 + 2) * h, 2)


def llama_7b() -> list[int]:
    """32 layers of 4,096 with a feed-forward of 11,008, two embeddings of 32,000: 6.74 thousand million
    elements, 16 bits."""
    h, f = 4096, 11008
    layer = [h * h] * 4 + [h * f] * 3 + [h, h]
    return [32000 * h * 2, h * 2, *_transformer(32, layer, 32000 * h, 2)]


def vgg16() -> list[int]:
    """138 million elements, 32 bits: three large matrices first, then thirteen convolutions."""
    channels = [(64, 3), (64, 64), (128, 64), (128, 128), (256, 128), (256, 256), (256, 256)]
    channels += [(512, 256), *[(512, 512)] * 5]
    linear = [(1000, 4096), (4096, 4096), (4096, 25088)]
    counts = [n for out, into in linear for n in (out, out * into)]
    counts += [n for out, into in reversed(channels) for n in (out, out * into * 9)]
    return [4 * count for count in counts]


def inception_v3() -> list[int]:
    """23.8 million elements in 190 tensors, 32 bits; taken as equal, since only their sum matters here."""
    return [23_834_568 * 4 // 190] * 190


def _resnet50(bytes_each: int) -> list[int]:
    return [bytes_each * math.prod(shape) for shape in resnet50()]


_EXAMPLES = "NVIDIA/DeepLearningExamples, README of"
MODELS = {
    ("resnet50", "a100"): Model(
        "ResNet-50", _resnet50(2), 256 / 2470,
        f"{_EXAMPLES} PyTorch resnet50v1.5: 2,470 images/s on one A100, mixed precision, batch 256",
    ),
    ("resnet50", "summit"): Model(
        "ResNet-50", _resnet50(2), 256 / 1200,
        f"{_EXAMPLES} PyTorch resnet50v1.5: 1,200 images/s on one V100, mixed precision, batch 256",
    ),
    ("bert", "summit"): Model(
        "BERT-large", bert_large(), 14 / 26.04,
        f"{_EXAMPLES} BERT (2019): 26.04 sentences/s on one V100, 16 bits, batch 14",
    ),
    # The A100's ratio to the V100 in ResNet-50; the source has no figure for one A100.
    ("bert", "a100"): Model(
        "BERT-large", bert_large(), 14 / 26.04 * 1200 / 2470, "the V100's time, times the ratio of the ResNet-50's times"
    ),
    ("7b", "a100"): Model(
        "7B model", llama_7b(), 4 * 4096 / 3700,
        "pytorch.org blog, IBM and Meta, FSDP: 3,700 tokens/s per A100; 4 sequences of 4,096 a step",
    ),
    ("inception3", "p100"): Model(
        "Inception V3", inception_v3(), 64 / 142, "tensorflow/docs r1 benchmarks.md: 142 images/s on one P100, batch 64"
    ),
    ("vgg16", "p100"): Model(
        "VGG-16", vgg16(), 64 / 154, "tensorflow/docs r1 benchmarks.md: 154 images/s on one P100, batch 64"
    ),
}  # fmt: skip


class Published(NamedTuple):
    """Scaling that others report. ``model``, ``cluster``: keys of MODELS where this page has the same setting."""

    text: str
    ranks: int
    efficiency: float
    model: str | None
    cluster: str | None
    source: str


PUBLISHED = [
    Published("Horovod, Inception V3", 512, 0.90, "inception3", "p100", "horovod/horovod docs/benchmarks.rst"),
    Published("Horovod, VGG-16", 512, 0.68, "vgg16", "p100", "horovod/horovod docs/benchmarks.rst"),
    Published(
        "Horovod on Summit, FC-DenseNet", 27600, 0.93, None, "summit", "Laanait et al., arXiv:1909.11150"
    ),
    Published("Enflame's documentation", 1000, 0.90, None, None, "as stated there; model and network are not given"),
]  # fmt: skip
