"""The mark `ranks` of tests whose body runs on several ranks.

    @pytest.mark.ranks(2, 3, framework="torch")
    def test_sum():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()

is a test for each number of ranks. The options are those of run_on_ranks(), and:

    id: a word for the test's name, where a test has several marks.
    slow: the test is marked slow.

A mark of the test replaces those of its module (`pytestmark`). Parameters and fixtures of the test are pickled for the
ranks. A lane of pytest-xdist has all tests that share living ranks.
"""

import pytest

from . import debug, frameworks, installed, pool
from .run import run_on_ranks

_FIXTURE = "job_of_ranks"
_left_out: dict[str, list[str]] = {}


def pytest_addoption(parser):
    parser.addoption(
        "--rank-debug",
        type=int,
        metavar="RANK",
        help="run one test of ranks with this rank in the foreground: breakpoint(), --pdb and prints work",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "ranks(*counts, **options): the test runs on ranks (tests/harness/plugin.py)"
    )
    config.addinivalue_line("markers", "xdist_group(name): pytest-xdist's, which may be missing")


def pytest_ignore_collect(collection_path):
    missing = installed.missing_for(collection_path.name) if collection_path.is_dir() else []
    if missing:
        _left_out[collection_path.name] = missing
        return True
    return None


def pytest_report_collectionfinish():
    return [
        f"tests/{folder} is left out: {', '.join(missing)} not installed"
        for folder, missing in sorted(_left_out.items())
    ]


def pytest_generate_tests(metafunc):
    found = list(metafunc.definition.iter_markers_with_node("ranks"))
    if not found:
        return
    closest = found[0][0]
    marks = [mark for node, mark in found if node is closest]
    metafunc.fixturenames.append(_FIXTURE)
    metafunc.parametrize(_FIXTURE, [job for mark in reversed(marks) for job in _jobs_of(mark)])


def _jobs_of(mark):
    options = dict(mark.kwargs)
    word, slow = options.pop("id", ""), options.pop("slow", False)
    framework = options.get("framework", "")
    for ranks in mark.args:
        name = "-".join(filter(None, [str(ranks), word]))
        marks = [pytest.mark.slow] if slow else []
        if framework == "mxnet" and (why := frameworks.why_no_mxnet()):
            marks.append(pytest.mark.skip(reason=why))
        yield pytest.param({"ranks": ranks, **options}, id=name, marks=marks)


def job_of(item) -> dict | None:
    """The arguments of run_on_ranks() for a test with the mark; None for another."""
    return item.callspec.params.get(_FIXTURE) if hasattr(item, "callspec") else None


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own hook
def pytest_collection_modifyitems(items):
    for item in items:
        job = job_of(item)
        if job is not None and job.get("framework") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(500))  # longer than the call's, which shows the ranks' stacks
        if any(item.iter_markers("xdist_group")):
            continue
        path = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(path if job is None or job.get("fresh") else _group_of(job)))


def _group_of(job) -> str:
    variables = [f"{name}={value}" for name, value in sorted(job.get("process_env", {}).items())]
    return " ".join([job.get("framework") or "plain", str(job["ranks"]), *variables])


def pytest_collection_finish(session):
    if session.config.option.rank_debug is not None:
        debug.start_with_variables(session.items, job_of)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    __tracebackhide__ = True
    job = job_of(pyfuncitem)
    if job is None:
        return None
    arguments = [pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames if name != _FIXTURE]
    rank = pyfuncitem.config.option.rank_debug
    if rank is None:
        options = {name: value for name, value in job.items() if name != "ranks"}
        outcome = run_on_ranks(job["ranks"], pyfuncitem.obj, *arguments, **options)
        _show(pyfuncitem, outcome.outputs)
    else:
        debug.run_here(rank, job, pyfuncitem.obj, arguments)
    return True


def _show(item, outputs):
    """What the ranks printed: with -rP in the report, with -s at once."""
    for rank, text in enumerate(outputs):
        if text and item.config.option.capture == "no":
            print(f"--- rank {rank} printed:\n{text}", end="")
        elif text:
            item.add_report_section("call", f"rank {rank}", text)


def pytest_unconfigure():
    pool.close_all()
