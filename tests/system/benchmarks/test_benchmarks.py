"""The benchmarks run, compare, check results and clean up. Smoke tests: no figure is judged here, since they
share the machine with other programs; real figures come from running the scripts on a quiet machine.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compiled import STORE
from harness.installed import need
from hvd_core.bench import _report

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def _module_of_the_benchmarks(name):
    """A module of benchmarks/harness. The tests have a package of that name as well, so it is loaded by its file."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / "harness" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


shapes = _module_of_the_benchmarks("shapes")


@pytest.fixture(scope="session")
def cache():
    """Where the native helpers are kept, by their sources and the compiler, as compiled.py keeps other programs."""
    return STORE / "benchmarks"


@pytest.fixture
def bench(cache, tmp_path):
    """Run a benchmark script; returns (what it wrote as JSON, the finished process)."""

    def run(script, *arguments, **env):
        out = tmp_path / "result.json"
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        # A package built in place is found by this process only because of where it was started.
        package = importlib.util.find_spec("hvd_core")
        packages = [str(Path(package.origin).parents[1])] if package and package.origin else []
        path = os.pathsep.join([*packages, *filter(None, [os.environ.get("PYTHONPATH")])])
        # An import of torch._dynamo makes a folder, by default in TMPDIR.
        places = {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
        command = [sys.executable, str(BENCHMARKS / script)]
        done = subprocess.run(
            [*command, *arguments, "--json", str(out)],
            env=dict(os.environ, HVD_BENCH_CACHE=str(cache), **places, PYTHONPATH=path, **env),
            capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(scratch.iterdir()), "scratch files left behind"
        return json.loads(out.read_text()), done

    return run


def test_limit_and_floor_are_measured_side_by_side(bench):
    # Arrays of the usual size take longer to fill than all the rest takes.
    few = ("--stream=1M", "--sizes=4,96K", "--rounds=2", "--budget=0.01")
    found, done = bench("allreduce.py", "--only=loop,memory", *few)
    assert all(found["memory_gb_s"][name] > 0 for name in ("copy", "triad", "core_to_core"))
    assert found["not_measured"] == {}
    assert set(found["sizes"]) == {"4", "98304"}
    for entry in found["sizes"].values():
        assert set(entry["alternatives"]) == {"loop", "memory"}
        for row in entry["alternatives"].values():
            assert len(row["rounds_us"]) == 2 and 0 < row["min_us"] == min(row["rounds_us"])
            assert row["min_us"] <= row["median_us"] <= max(row["rounds_us"])
        assert entry["time_ratios"]["memory/loop"] > 0
    assert "Algorithm bandwidth" in done.stdout


def test_three_ranks_share_two_cores_and_get_the_right_sum(bench):
    found, _ = bench(
        "allreduce.py", "-np=3", "--only=loop", "--sizes=4,64K,160K", "--rounds=1", "--budget=0.001"
    )
    assert found["not_measured"] == {}
    assert found["ranks"] == 3


def test_engine_backend_and_gloo_run_in_one_table(bench):
    need("torch")
    pytest.importorskip("hvd_core._core")
    found, _ = bench(
        "allreduce.py",
        *("--only=torch,numpy,table,gloo", "--sizes=4,1M", "--rounds=1", "--budget=0.01"),
    )
    assert found["not_measured"] == {}
    assert {goal["goal"] for goal in found["goals"]} >= {"4 B at least 5 times faster than torch Gloo"}


def test_what_cannot_run_is_named_and_the_rest_goes_on(bench):
    found, done = bench(
        "allreduce.py", "--only=table,loop", "--sizes=4", "--rounds=1", HVD_BENCH_SHM_LIB="/does/not/exist.so"
    )
    assert "/does/not/exist.so" in found["not_measured"]["table"]
    assert "without table" in done.stderr
    assert set(found["sizes"]["4"]["alternatives"]) == {"loop"}


def words_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def test_a_terminated_run_takes_its_ranks_along(cache, tmp_path):
    command = [sys.executable, str(BENCHMARKS / "allreduce.py"), "--only=loop", "--sizes=1M", "--rounds=1000"]
    env = dict(os.environ, HVD_BENCH_CACHE=str(cache), TMPDIR=str(tmp_path))
    with subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as conductor:
        deadline = time.monotonic() + 120
        ranks = []
        while len(ranks) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            children = Path(f"/proc/{conductor.pid}/task/{conductor.pid}/children").read_text().split()
            ranks = [pid for pid in children if b"native.py" in words_of(pid)]
        time.sleep(1)
        conductor.terminate()
        assert conductor.wait(100) == 143
    assert len(ranks) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert not list(tmp_path.iterdir()), "scratch files left behind"


def test_idle_reads_cpu_time_of_every_rank(bench):
    pytest.importorskip("hvd_core._core")
    found, _ = bench("idle.py", "--only=numpy", "--seconds=1", "--limit-ms=1e9")
    ranks = found["idle"]["numpy"]
    assert [set(rank) for rank in ranks] == [{"cpu_ms", "wakeups"}] * 2
    for rank in ranks:
        # No more than all threads of an idle process could have used; a rank that slept all the time may have 0.
        assert 0 <= rank["cpu_ms"] < 1000, ranks
        assert isinstance(rank["wakeups"], int) and 0 <= rank["wakeups"] < 100_000, ranks


def test_many_tensors_checks_each_form(bench):
    need("torch")
    pytest.importorskip("hvd_core._core")
    found, _ = bench("many_tensors.py", "--only=ours", "--cases=tiny", "--rounds=1")
    assert found["not_measured"] == {}
    tiny = found["cases"]["tiny"]
    assert tiny["tensors"] > 1 and tiny["bytes"] % tiny["tensors"] == 0
    assert set(tiny["forms"]) == {"ours, each", "ours, grouped", "ours, one"}
    for form in tiny["forms"].values():
        assert 0 < form["min_us"] <= form["median_us"], tiny
        assert form["us_per_tensor"] == pytest.approx(form["median_us"] / tiny["tensors"])
        assert form["time_over_one_buffer"] > 0 and form["time_over_ours_each"] > 0, tiny
    assert tiny["forms"]["ours, one"]["time_over_one_buffer"] == 1


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_messages_of_a_step_do_not_grow_with_the_ranks(bench):
    """73 hosts fill a tree of three levels of leaders, 9 hosts one of two. Frames and bytes are exact."""
    found, done = bench(
        "control_plane.py", "--ranks=18,146", "--per-host=2", "--runs=1", "--scenarios=known,first"
    )
    known_18, known_146, first_18, first_146 = found["rows"]
    assert [row["hops"] for row in found["rows"]] == [4, 6, 4, 6]  # twice the depth
    for small, large in ((known_18, known_146), (first_18, first_146)):
        assert small["root"]["frames"] == large["root"]["frames"] == 9  # 8 leaders and the host's other rank
        assert small["leaf"]["frames"] == large["leaf"]["frames"] == 1
        assert large["leader"]["frames"] == 10
        assert large["root"]["bytes"] == small["root"]["bytes"]
    assert known_146["root"]["bytes"] < 100 < 10_000 < first_146["root"]["bytes"]
    assert "known, 146" in done.stdout


@pytest.mark.slow
def test_tensorflow_overhead_compares_what_computes_the_same(bench):
    """It ends with an error where our weights and those of the other way differ."""
    pytest.importorskip("hvd_core._core")
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    # TensorFlow imports functions that it has converted from the folder for temporary files.
    quiet = {"PYTHONDONTWRITEBYTECODE": "1"}
    found, _ = bench("tensorflow_overhead.py", "--runs=1", "--parts=steps,fit", "--models=cnn", **quiet)
    assert set(found["steps"]) == {"cnn, function", "cnn, jit"}
    assert set(found["steps"]["cnn, function"]) == {"ours", "ours, one group", "numpy_function", "alone"}
    assert set(found["fit"]) == {"ours", "alone"}


def test_start_of_a_job_costs_each_rank_the_same_requests_however_many_there_are(bench):
    found, done = bench("startup.py", "--ranks=4,16", "--per-host=2")
    few, many = found["rows"]
    for role in ("root", "leader", "leaf"):
        assert 0 < many[role]["requests"] <= few[role]["requests"] + 2, done.stdout
    assert many["leaf"]["bytes"] < 1.2 * few["leaf"]["bytes"], done.stdout


def test_sizes_and_ratios():
    assert [_report.parse_size(text) for text in ("4", "64K", "1MiB", "1G")] == [4, 65536, 1 << 20, 1 << 30]
    with pytest.raises(ValueError, match="multiple of 4"):
        _report.parse_size("6")
    assert _report.ratio([2.0, 9.0, 4.0, None], [1.0, 3.0, 1.0, 1.0]) == 3.0
    assert _report.ratio([None], [1.0]) is None
    assert _report.size_text(98304) == "96 KiB"


def test_resnet50_has_its_161_parameters():
    found = shapes.resnet50()
    assert len(found) == 161
    elements = 0
    for shape in found:
        count = 1
        for dim in shape:
            count *= dim
        elements += count
    assert elements == 25_557_032


@pytest.mark.slow
def test_gpu_script_runs_on_the_simulated_device(bench):
    """Its figures say that they are simulated; on a GPU, tests/system/gpu/run.sh runs it."""
    pytest.importorskip("torch_gcu", reason="`make test` installs tests/simulators/torch_gcu")
    found, done = bench("gpu.py", "--device=gcu", "--quick", "--rounds=1", "-np=2")
    assert found["simulated"] and "SIMULATED" in done.stdout
    assert set(found["parts"]) == {"overhead", "packing", "step"}
    assert all("failed" not in part for part in found["parts"].values()), found["parts"]
    assert found["parts"]["step"]["ms"]["ours"][0] > 0


@pytest.mark.slow
def test_frequent_calls_need_no_more_instructions_than_their_limits(tmp_path):
    valgrind = _module_of_the_benchmarks("valgrind")
    try:
        valgrind.find()
    except valgrind.Unavailable as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "instructions.py"),
            "--check",
            "--json",
            str(tmp_path / "counts.json"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(count > 1000 for count in json.loads((tmp_path / "counts.json").read_text()).values())
