"""horovod.run in a notebook: cells that a real IPython kernel executes."""

import re
import sys
import time
import uuid

import pytest

from launchers import Launcher

jupyter_client = pytest.importorskip("jupyter_client", reason="jupyter-client is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LIMIT = 200


class Notebook:
    """Cells in one kernel. `ranks`: a Launcher that finds the processes which the cells have started."""

    def __init__(self, folder):
        self.ranks = Launcher(folder)
        # Over files: ports could be taken by other programs meanwhile.
        self.manager = jupyter_client.KernelManager(
            kernel_name="python3", transport="ipc", ip=f"/tmp/hvd-kernel-{uuid.uuid4().hex[:12]}"
        )
        self.manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        environment = self.ranks.environment()
        mark = self.ranks.mark.partition("=")
        del environment[mark[0]]  # the kernel itself is no rank
        self.manager.start_kernel(env=environment, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.run(f"import os, horovod\nos.environ[{mark[0]!r}] = {mark[2]!r}")

    def run(self, code, when=None):
        """(result's text or None, error as (name, text) or None, all output) of a cell. `when`: (text, function). The
        function is called as soon as the output contains the text, while the cell still runs."""
        said, result, error = "", None, None
        request = self.client.execute(code)
        deadline = time.monotonic() + LIMIT
        while True:
            message = self.client.get_iopub_msg(timeout=max(1, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                said += content["text"]
                if when is not None and when[0] in said:
                    when = when[1]()
            elif kind == "execute_result":
                result = content["data"]["text/plain"]
            elif kind == "error":
                error = (content["ename"], re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"])))
            elif kind == "status" and content["execution_state"] == "idle":
                return result, error, said

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.ranks.clean_up()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    made = Notebook(tmp_path_factory.mktemp("notebook"))
    yield made
    made.close()


def test_functions_of_cells_with_what_they_refer_to(notebook):
    notebook.run("scale = 3\ndef scaled(rank):\n    return scale * (rank + 1.0)")
    result, error, said = notebook.run("""
import numpy as np
import hvd_core as hvd

def train(more):
    hvd.init()
    print("in rank", hvd.rank())
    return float(hvd.allreduce(np.full(1, scaled(hvd.rank()) + more), op=hvd.Sum)[0])

horovod.run(train, (1,), num_proc=2)
""")
    assert (result, error) == ("[11.0, 11.0]", None), said
    assert {"[0]<stdout>:in rank 0", "[1]<stdout>:in rank 1"} <= set(said.splitlines())
    result, error, _ = notebook.run("horovod.run(lambda x, y=0: x * scale + y, (2,), {'y': 1}, num_proc=2)")
    assert (result, error) == ("[7, 7]", None)


def test_output_is_in_the_cell_while_the_function_runs(notebook):
    seen = notebook.ranks.folder / "seen"
    code = f"""
def wait():
    import os, time
    print("begun", flush=True)
    while not os.path.exists({str(seen)!r}):
        time.sleep(0.02)
    return "seen"

horovod.run(wait, num_proc=2)
"""
    result, error, _ = notebook.run(code, when=("begun", seen.touch))
    assert (result, error) == ("['seen', 'seen']", None)


def test_an_interrupt_stops_the_ranks(notebook):
    code = """
def sleep():
    import time
    print("asleep", flush=True)
    time.sleep(600)

horovod.run(sleep, num_proc=2)
"""
    _, error, _ = notebook.run(code, when=("asleep", notebook.manager.interrupt_kernel))
    assert error is not None and error[0] == "KeyboardInterrupt", error
    assert notebook.ranks.wait_for_none() == []
    assert notebook.run("horovod.run(lambda: 1, num_proc=2)")[0] == "[1, 1]"


def test_the_exception_of_the_rank_that_failed_first(notebook):
    """Rank 0 fails too, because it waits for rank 1: the cause is rank 1's."""
    _, error, _ = notebook.run("""
def load(batch):
    raise ValueError(f"bad batch {batch}")

def train():
    hvd.init()
    hvd.allreduce(np.ones(1), name="first")
    if hvd.rank() == 1:
        load(7)
    hvd.allreduce(np.ones(1), name="second")

horovod.run(train, num_proc=2)
""")
    assert error is not None and error[0] == "RuntimeError", error
    text = error[1]
    assert "Process name: 1\nExit code: 1" in text
    assert "in load" in text and "ValueError: bad batch 7" in text
    assert "HorovodInternalError" not in text
    result, _, said = notebook.run("""
try:
    horovod.run(train, num_proc=2)
except RuntimeError as error:
    caught = error
type(caught.__cause__).__name__, str(caught.__cause__)
""")
    assert result == "('ValueError', 'bad batch 7')", said
    assert notebook.ranks.wait_for_none() == []
