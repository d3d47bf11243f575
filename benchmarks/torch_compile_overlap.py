"""How much of the communication of gradients is hidden behind the backward, for a model that torch.compile compiles.

    horovodrun -np 2 python benchmarks/torch_compile_overlap.py

A compiled backward hands over its gradients when it is through with its graph: one graph for the whole model leaves
nothing to overlap with. Three forms of the same model are measured in turns: not compiled, compiled as a whole, and
compiled block by block, so that there is a graph per block. For each, medians of: the backward, the wait for
reductions after it, both together, and the overlap that is left, which is the part of the backward that comes after
its first gradient. With as many ranks as cores communication takes the cores from computation, so that more overlap
need not make a step shorter. The last column shows how much time a network or a device would have.
"""

import argparse
import statistics
import sys
import time

import torch

import horovod.torch as hvd


class Block(torch.nn.Module):
    """Two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.first(x)))


def form(kind: str, width: int, depth: int, backend: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model, and the module to call in its place."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Block(width) for _ in range(depth)])
    if kind == "whole":
        return model, torch.compile(model, backend=backend, fullgraph=True)
    if kind == "blocks":
        for part in model:
            part.compile(backend=backend, fullgraph=True)
    return model, model


class Form:
    """One form of the model with its optimizer, and the times of its steps."""

    def __init__(self, kind: str, options: argparse.Namespace):
        self.kind = kind
        self.model, self.forward = form(kind, options.width, options.depth, options.backend)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.reducing = hvd.DistributedOptimizer(self.optimizer, self.model.named_parameters())
        self.arrivals: list[float] = []
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.arrivals.append(time.perf_counter()))
        self.batch = torch.randn(options.batch, options.width)
        self.seconds: dict[str, list[float]] = {"backward": [], "reduction": [], "spread": [], "step": []}

    def step(self) -> None:
        """One step; keeps the time of the backward and of the wait after it."""
        self.reducing.zero_grad()
        loss = self.forward(self.batch).square().mean()
        self.arrivals.clear()
        begin = time.perf_counter()
        loss.backward()
        middle = time.perf_counter()
        self.reducing.synchronize()
        end = time.perf_counter()
        with self.reducing.skip_synchronize():
            self.reducing.step()
        seconds = self.seconds
        seconds["backward"].append(middle - begin)
        seconds["reduction"].append(end - middle)
        seconds["step"].append(end - begin)
        # The part of the backward that comes after the first gradient: the time that communication can overlap with.
        seconds["spread"].append((middle - self.arrivals[0]) / (middle - begin))

    def median(self, what: str) -> float:
        return statistics.median(self.seconds[what])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=512, help="of the layers")
    parser.add_argument("--depth", type=int, default=8, help="blocks of two layers")
    parser.add_argument("--batch", type=int, default=128, help="rows of a batch")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each form")
    parser.add_argument(
        "--backend", default="inductor", help="of torch.compile; aot_eager compiles in seconds"
    )
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    forms = [Form(kind, options) for kind in ("eager", "whole", "blocks")]
    for each in forms:
        for _ in range(3):
            each.step()
        for values in each.seconds.values():
            values.clear()
    for _ in range(options.steps):
        for each in forms:
            each.step()
    if hvd.rank() == 0:
        print("form     backward ms  after it ms  both ms  overlap left")
        for each in forms:
            numbers = [1e3 * each.median(what) for what in ("backward", "reduction", "step")]
            print(
                "{:<8} {:>11.2f} {:>12.2f} {:>8.2f}".format(each.kind, *numbers),
                f"{each.median('spread'):>10.0%}",
            )
        whole, blocks = forms[1], forms[2]
        print(f"ratio of blocks to whole: {blocks.median('step') / whole.median('step'):.3f}")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
