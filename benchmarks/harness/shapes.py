"""Lists of tensor shapes that real models make. Pure data; any thread."""

from __future__ import annotations


def resnet50() -> list[tuple[int, ...]]:
    """The 161 parameter shapes of a ResNet-50 (25,557,032 elements), in the order of backward."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, channels, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    shapes += [(1000, 2048), (1000,)]
    return shapes[::-1]


def tiny(count: int = 1000) -> list[tuple[int, ...]]:
    """`count` tensors of one element."""
    return [(1,)] * count


CASES = {"tiny": tiny, "resnet50": resnet50}
