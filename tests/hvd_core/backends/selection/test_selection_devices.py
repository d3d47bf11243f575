"""The selection with a backend that has devices of its own: the project's template, in real jobs.

These tests move no data of a device (tests/hvd_core/engine and tests/backends/eccl_stub do). They check which backend
would move it, and the error if no backend can.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_core
import selection_ranks
from choosing_job import plugin, why_no_site
from golden_texts import golden
from launchers import program_words

STUB = Path(__file__).resolve().parents[4] / "backends" / "eccl_stub" / "src"
LIBRARY = STUB / "hvd_backend_eccl_stub" / "lib" / "libhvd_backend_eccl_stub.so"

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason=f"{LIBRARY} is not built (cmake --build)")


@pytest.fixture
def stub(tmp_path):
    """The template as a wheel would leave it, in the job's site."""
    info = tmp_path / "site" / "hvd_backend_eccl_stub-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hvd-backend-eccl-stub\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[hvd_core.backends]\neccl_stub = hvd_backend_eccl_stub:describe\n"
    )
    (tmp_path / "site" / "hvd_backend_eccl_stub").symlink_to(STUB / "hvd_backend_eccl_stub")


def test_device_memory(job, stub, tmp_path):
    def file(name, text):
        (tmp_path / name).write_text(text)
        return {"HOROVOD_PLUGINS_TOML": str(tmp_path / name)}

    def named(value):
        return {"HOROVOD_BACKEND": value}

    missing = {"HOROVOD_BACKEND_ECCL_STUB_LIBRARY": "libnothere.so"}
    job = job()
    job.run(
        {
            "device_automatic": {"device": "npu", "serves": ["gcu"]},
            "device_not_used": {},
            "device_named": {"all": named("eccl_stub")},
            "device_staged": {"all": named("eccl_stub,gcu.allreduce=shm")},
            "device_not_looked_for": {"all": named("shm"), "device": "gcu"},
            "device_unavailable": {"all": missing, "device": "gcu"},
            "device_list": {"all": missing | named("eccl_stub,tcp")},
            "device_named_unavailable": {"all": missing | named("eccl_stub")},
            "device_unavailable_by_file": {
                "all": file("lib.toml", '[backend.eccl_stub]\nlibrary = "libnothere.so"\n'),
                "device": "gcu",
            },
            "device_file": {
                "all": file("gcu.toml", '[selection.gcu]\noperations = "ECCL_STUB"\nalltoall = "shm"\n')
            },
            "device_legacy": {
                "all": {"HOROVOD_GPU_OPERATIONS": "eccl_stub", "HOROVOD_GPU_BROADCAST": "NCCL"},
            },
            "device_for_host": {"all": named("cpu=eccl_stub")},
            "device_wrong": {"all": named("npu=eccl_stub")},
            "device_differs": {"of": {"1": missing}, "serves": ["gcu"]},
            "device_option": {"all": named("eccl_stub") | {"HOROVOD_BACKEND_ECCL_STUB_LIBARY": "x.so"}},
        }
    )
    assert job.chosen("device_automatic", None) == ["cpu: shm [automatic]", "gcu: eccl_stub [automatic]"]
    assert job.chosen("device_not_used", None) == ["cpu: shm [automatic]"]
    assert job.chosen("device_named", None) == ["cpu: shm [automatic]", "gcu: eccl_stub [HOROVOD_BACKEND]"]
    assert job.chosen("device_staged", "gcu") == [
        "gcu: eccl_stub [HOROVOD_BACKEND]",
        "gcu: shm [HOROVOD_BACKEND]",
    ]
    source = f"[{tmp_path}/gcu.toml:"
    assert job.chosen("device_file", "gcu") == [f"gcu: eccl_stub {source}2]", f"gcu: shm {source}3]"]
    assert job.chosen("device_legacy", "gcu") == ["gcu: eccl_stub [HOROVOD_GPU_OPERATIONS]"]
    assert job.chosen("device_list", None) == ["cpu: tcp [HOROVOD_BACKEND]"]
    for name in (
        "device_automatic",
        "device_not_looked_for",
        "device_unavailable",
        "device_unavailable_by_file",
    ):
        said = [job.results[name][rank]["device"] for rank in (0, 1)]
        assert said[0] == said[1]
        golden(f"job_{name}", said[0], folder=tmp_path)
    assert job.chosen("device_unavailable", "gcu") == []
    job.refused("device_named_unavailable", "BackendUnavailable")
    job.refused("device_for_host", "BackendError")
    job.refused("device_wrong", "BackendUnavailable")
    # The operation of such a tensor fails then: one rank would have it staged, or refuses it.
    differs = [job.results["device_differs"][rank]["chosen"] for rank in (0, 1)]
    assert differs == [["cpu: shm [automatic]", "gcu: eccl_stub [automatic]"], ["cpu: shm [automatic]"]]
    job.refused("device_option", "ValueError")


def test_the_automatic_choice_passes_over_what_is_broken(job, stub, tmp_path):
    site = tmp_path / "site"
    down = 'return Unavailable("no device is visible")'
    plugin(site, "down", down, device="npu", automatic=True)
    plugin(site, "gone", device="npu", automatic=True)
    plugin(site, "broken", device="npu", automatic=True)
    (site / "hvd_backend_broken.py").write_text("import no_such_module\n")
    plugin(site, "named_only", device="npu")
    job = job()
    job.run({"passed_over": {"device": "npu", "serves": ["gcu"]}})
    assert job.chosen("passed_over", None) == ["cpu: shm [automatic]", "gcu: eccl_stub [automatic]"]
    golden("job_passed_over", job.results["passed_over"][0]["device"], folder=tmp_path)


@pytest.mark.skipif(why_no_site() is not None, reason=str(why_no_site()))
def test_a_site_may_forbid_a_device_backend(job, stub, tmp_path):
    job = job('[selection]\ndeny = ["eccl_stub"]\n')
    job.run(
        {"veto_device": {"device": "gcu"}, "veto_device_named": {"all": {"HOROVOD_BACKEND": "gcu=eccl_stub"}}}
    )
    assert job.chosen("veto_device", None) == ["cpu: shm [automatic]"]
    golden("job_veto_device", job.results["veto_device"][0]["device"])
    job.refused("veto_device_named", "BackendVetoed")


def test_what_was_done_is_reported(job, stub):
    job = job()
    env = job.environment() | {"HOROVOD_BACKEND": "eccl_stub"}
    simulator = LIBRARY.with_name("libeccl_sim.so")
    words = program_words(selection_ranks.sum_on_the_device, simulator)
    done = job.launcher.run("-np", 2, *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition(">:")[2] for line in done.stdout.splitlines() if "[0]<stdout>" in line]
    golden("report_so_far", "\n".join(lines))


def test_the_first_tensor_of_a_device_finds_its_backend(job, stub):
    """No setting names it. The ranks compare what they have found before they make the communicators."""
    job = job()
    words = program_words(selection_ranks.sum_on_the_device, LIBRARY.with_name("libeccl_sim.so"))
    done = job.launcher.run("-np", 2, *words, env=job.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "allreduce of int32 (sum) on gcu: NATIVE" in done.stdout and "[automatic]" in done.stdout
    words = program_words(selection_ranks.choose_differently, LIBRARY.with_name("libeccl_sim.so"))
    done = job.launcher.run("-np", 2, *words, env=job.environment())
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "ranks do not agree on the backend for device type 'gcu'" in said and "rank 1: another" in said, (
        said
    )


def test_rows_say_what_is_composed(stub, tmp_path, monkeypatch):
    """64-bit types of this vendor's library are moved, not reduced: shown, not hidden."""
    root = Path(hvd_core.__file__).resolve().parents[1]
    code = """
import json, hvd_core as hvd
print(json.dumps([[r.operation, r.support, r.vendor_lib, r.emulated] for r in hvd.backend_report() if r.device == "gcu"]))
"""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{root}")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, cwd=tmp_path, check=True
    )
    rows = {operation: rest for operation, *rest in json.loads(done.stdout)}
    assert all(
        support == "NATIVE" and library == "libeccl_sim.so 3.1.0" for support, library, _ in rows.values()
    )
    assert {"int64", "float64", "uint64"} <= set(rows["allreduce"][2]) and rows["allgather"][2] == []
