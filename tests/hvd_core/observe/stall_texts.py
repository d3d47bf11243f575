"""Writes the texts of docs/stalls.md that a user sees for each mistake: runs the programs of stall_programs.py.

python tests/hvd_core/observe/stall_texts.py        prints rank 0's log of each, as a section of the page
"""

import inspect
import os
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import stall_programs as programs  # noqa: E402
from harness import close_all, environment, run_on_ranks  # noqa: E402

SHOWN = (
    ("A call that only rank 0 makes", programs.only_rank_0_calls),
    ("Numbers of batches that differ, with a final metric", programs.numbers_of_batches_differ),
    (
        "Numbers of batches that differ, without a final metric",
        programs.numbers_of_batches_differ_without_a_metric,
    ),
    ("Names that differ", programs.names_differ),
    ("A parameter that only one rank has", programs.a_parameter_of_one_rank),
    ("A helper that two parts of a program call", programs.a_helper_is_called_under_a_condition),
    ("Another order, without names", programs.orders_differ),
    ("A slow rank", programs.a_rank_is_slow),
    ("A rank that sleeps", programs.a_rank_sleeps),
    ("A lock that does not come", programs.a_rank_waits_for_a_lock),
    ("A rank inside of an extension that keeps the GIL", programs.a_rank_is_inside_of_an_extension),
    ("An exception that was swallowed", programs.an_exception_is_swallowed),
    ("A rank that does not answer", programs.a_rank_is_stopped),
    ("`join()` that waits", programs.a_rank_has_joined),
)


def text_of(program) -> str:
    """The first report in rank 0's log, without its time and Horovod's first paragraph."""
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_REPORT_JSON": programs.REPORTS}
    output = run_on_ranks(2, program, env=env).outputs[0]
    report = re.split(r"\n\[[^\n]*\] horovod ", output)[0]
    report = report[report.index("Missing ranks:") :]
    # The thread that lets the program go on is none of the mistake.
    report = re.sub(r"\n *Its thread [^\n]*in until_reported[^\n]*", "", report)
    # The program is called by the harness.
    report = re.sub(r" \(called at [^\n)]*/rank_main\.py:\d+ in \w+\)", "", report)
    folder = str(Path(__file__).resolve().parent) + "/"
    return re.sub(r"host \S+, pid \d+", "host node1, pid 4711", report.replace(folder, ""))


def main() -> None:
    os.environ.pop("PYTHONUNBUFFERED", None)
    environment.remember()
    for title, program in SHOWN:
        lines = inspect.getsource(program).rstrip()
        print(f"### {title}\n\n```python\n{lines}\n```\n\n```text\n{text_of(program).rstrip()}\n```\n")
    close_all()


if __name__ == "__main__":
    main()
