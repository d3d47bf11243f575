"""The options of ``hvd bench``. Imports little, because every ``hvd`` command makes the whole grammar."""

from __future__ import annotations

import argparse

from hvd_core.bench import COLLECTIVES, DTYPES, OPS

RANKS = 2
"""As many as a run by itself has without -np."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options; those that the accelerators' usual tests have too have the same names."""
    parser.add_argument(
        "collective",
        metavar="COLLECTIVE",
        nargs="?",
        default="allreduce",
        choices=COLLECTIVES,
        help=f"{', '.join(COLLECTIVES)} (allreduce)",
    )
    parser.add_argument(
        "-np", type=_count, metavar="N", help=f"ranks, on this machine ({RANKS}); not under a launcher"
    )
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("-b", "--minbytes", metavar="BYTES", default="8", help="smallest buffer (8)")
    sizes.add_argument("-e", "--maxbytes", metavar="BYTES", default="64M", help="largest buffer (64M)")
    sizes.add_argument(
        "-f", "--stepfactor", type=_count, metavar="N", default=8, help="factor between sizes (8)"
    )
    sizes.add_argument("--sizes", metavar="LIST", help="these sizes in place of -b, -e, -f: 4,64K,16M")
    call = parser.add_argument_group("the call")
    call.add_argument(
        "-d", "--datatype", choices=DTYPES, default="float32", metavar="TYPE", help=f"{', '.join(DTYPES)}"
    )
    call.add_argument("-o", "--op", choices=OPS, default="sum", metavar="OP", help=f"{', '.join(OPS)} (sum)")
    call.add_argument("-r", "--root", type=int, metavar="RANK", default=0, help="of a broadcast (0)")
    call.add_argument(
        "--device",
        metavar="TYPE",
        default="cpu",
        help="device type of the tensors, as in tensor.to(TYPE) (cpu)",
    )
    ways = parser.add_argument_group("alternatives")
    ways.add_argument("--only", metavar="NAMES", help="of the alternatives that are listed below the table")
    ways.add_argument("--skip", metavar="NAMES", default="", help="leave these alternatives out")
    ways.add_argument(
        "--backend",
        metavar="NAMES",
        help="measure hvd-core over each of these backends; not under a launcher",
    )
    ways.add_argument("--pin", action="store_true", help="bind each rank to one core; not under a launcher")
    how = parser.add_argument_group("method")
    how.add_argument(
        "-n", "--iters", type=_count, metavar="N", help="calls of a turn (as many as fit in --budget)"
    )
    how.add_argument(
        "-w",
        "--warmup_iters",
        type=_count,
        metavar="N",
        default=2,
        help="calls before a turn's clock starts (2)",
    )
    how.add_argument("--rounds", type=_count, metavar="N", default=5, help="turns of each alternative (5)")
    how.add_argument("--budget", type=float, metavar="SECONDS", default=0.05, help="of a turn (0.05)")
    how.add_argument(
        "--patience", type=float, default=0, metavar="SECONDS",
        help="put a turn off, or repeat it, for so long while others use this machine (0)",
    )  # fmt: skip
    parser.add_argument("--plot", metavar="OUT.svg", help="draw time and bus bandwidth")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)
