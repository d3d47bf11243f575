"""The arguments of horovodrun as an object that a program fills in: ``horovod.runner._HorovodArgs``. Any thread."""

from horovod._runner.parser import make_parser


class HorovodArgs:
    """All options of horovodrun as attributes, each None until the program sets it.

    `run_func`: a function without arguments to call on each rank, in place of `command`, a list of words.
    """

    def __init__(self) -> None:
        vars(self).update(vars(make_parser().parse_args([])), command=None)
