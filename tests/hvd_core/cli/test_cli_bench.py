"""`hvd bench`: by itself and under a launcher, its sizes, its checks, its plot. No figure is judged here."""

import re
import subprocess
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from harness.frameworks import horovodrun
from hvd_core.bench import _report, _teams, alternative
from hvd_core.bench.alternative import Call

QUICK = ("--rounds=1", "-n=2", "-w=1")


def test_by_itself_with_two_backends_and_a_plot(hvd, tmp_path):
    found = hvd.json(
        "bench", "--sizes=4,100K", "--only=numpy", "--backend=shm,tcp", *QUICK, f"--plot={tmp_path / 'a.svg'}"
    )
    assert found["not_measured"] == {}
    assert list(found["alternatives"]) == ["numpy/shm", "numpy/tcp"]
    rows = {(row["bytes"], row["in_place"], row["name"]): row for row in found["rows"]}
    assert len(rows) == 8
    assert all(row["wrong"] == 0 for row in rows.values())
    mine = rows[102400, True, "numpy/tcp"]
    assert mine["count"] == 25600 and mine["us"] > 0
    assert mine["algbw"] == pytest.approx(102400 / mine["us"] / 1e3)
    assert mine["busbw"] == pytest.approx(mine["algbw"])  # 2 (n - 1) / n of two ranks
    picture = ET.parse(tmp_path / "a.svg").getroot()
    assert len(picture.findall(".//{*}polyline")) == 8


def test_under_a_launcher_one_rank_prints_and_a_missing_alternative_is_named():
    words = [*horovodrun(3), "-m", "hvd_core._cli"]
    words += ["bench", "reducescatter", "--sizes=12,3K", "-d=int32", "--only=numpy,mpi4py", *QUICK]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("reducescatter, 3 ranks") == 1 and done.stdout.count("#wrong | in place") == 1
    assert "without mpi4py: rank 0: " in done.stderr
    assert re.findall(r"\| (\d+) +\| +(\d+) \| int32 ", done.stdout) == [("12", "1"), ("3072", "256")]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--only=numpi"], "there is no alternative 'numpi'. Did you mean 'numpy'?"),
        (["--sizes=4X"], "size '4X'"),
        (["-f=1"], "-f must be at least 2"),
        (["-d=int8", "-o=avg"], "an average of int8"),
        (["broadcast", "-r=2"], "--root=2: there are ranks 0 to 1"),
        (["--plot=a.png"], "ends in .svg"),
        (["--only=numpy", "--device=acme"], "no tensors on the device type acme"),
    ],
)
def test_wrong_arguments_are_told_at_once(hvd, words, text):
    hvd.run("bench", *words, code=2)
    assert text in hvd.errors


class Ranks(_teams.Teams):
    """Answers that a rank might give, without ranks: `ns` of a call; one element is wrong."""

    def __init__(self, size):
        self.size, self.asked = size, []

    def names(self):
        return ["made-up"]

    def ask(self, name, command):
        self.asked.append(command)
        return [
            {"ns": command["iters"] * 1000 * (1 + rank), "wrong": int(rank == 0)} for rank in range(self.size)
        ]


def test_the_slowest_rank_counts_and_wrong_elements_are_added_up():
    ranks = Ranks(4)
    plan = _teams.Plan(Call("allreduce", "float64", "sum", -1, 0, False), [64], 3, 0.05, None, 2, 4)
    out, inside = _teams.sweep(ranks, plan, lambda text: None)
    assert (out["in_place"], inside["in_place"]) == (False, True)
    assert out["us"] == pytest.approx(4) and out["wrong"] == 1 and out["count"] == 8
    assert out["algbw"] == pytest.approx(0.016) and out["busbw"] == pytest.approx(0.024)
    assert {command["iters"] for command in ranks.asked} == {1, 2, 10, 1000}


def test_data_find_a_result_that_is_wrong_in_one_element_or_lacks_a_rank():
    for name, dtype in (("allreduce", "int8"), ("allgather", "float16"), ("reducescatter", "float32"),
                        ("alltoall", "uint8"), ("broadcast", "bfloat16")):  # fmt: skip
        call = Call(name, dtype, "sum" if "reduce" in name else "none", 1, 60, False)
        right = alternative.result_of(call, 2, 3)
        assert alternative.wrong(right, call, 2, 3) == 0
        changed = right.copy()
        changed[7] += 1
        assert alternative.wrong(changed, call, 2, 3) == 1
        assert alternative.wrong(np.roll(right, 1), call, 2, 3) > 0
        assert alternative.wrong(right[1:], call, 2, 3) > 0
    for op in ("sum", "min", "max", "avg"):
        call = Call("allreduce", "float32", op, -1, 200, False)
        assert alternative.wrong(alternative.data_of(call, 0, 3), call, 0, 3) > 0, op


def test_axes_of_a_plot_hold_all_points():
    line = _report.Line("a & b", [(1, 1), (1000, 5)])
    chart = _report.Chart(
        "t", "x", "y", [line, _report.Line("marks", [(10, 2)], marks_only=True)], y_logarithmic=False
    )
    drawn = ET.fromstring(_report.svg([chart, _report.Chart("empty", "x", "y")]))
    assert [t.text for t in drawn.findall(".//{*}text") if t.text == "a & b"]
    circles = drawn.findall(".//{*}circle")
    assert len(circles) == 3
    for circle in circles:
        assert 0 < float(circle.get("cx")) < 480 and 0 < float(circle.get("cy")) < 340
