"""Without a GPU: the probe says exactly what is missing, jobs that name nccl stop with that, lists fall back, and the kit
examines what can be examined."""

import json
import sys
from pathlib import Path

import pytest

import nccl_stand_in
from harness.frameworks import horovodrun

ASK = Path(__file__).with_name("ask_the_probe.py")
RANK = Path(__file__).with_name("adding_rank.py")


def driver_is_here():
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia").exists()


needs_no_driver = pytest.mark.skipif(driver_is_here(), reason="this machine has an NVIDIA driver")


@pytest.fixture
def looked(run_python, tmp_path):
    """looked(cuda, *questions): what the probe says where libcuda.so.1 serves that version of CUDA."""

    def looked(cuda, *questions):
        folder = nccl_stand_in.cuda(tmp_path / f"driver{cuda}" / "libcuda.so.1", cuda).parent
        asked = json.dumps([[environ, str(devices)] for environ, devices in questions])
        done = run_python([ASK, asked], LD_LIBRARY_PATH=str(folder))
        assert done.returncode == 0, f"{done.returncode} (99: it has called cuInit)\n{done.stderr}"
        said, heavy, opened = json.loads(done.stdout)
        assert not heavy and not opened
        return said

    return looked


@pytest.fixture
def devices(tmp_path):
    """A folder with the files of two devices, and an empty one."""
    two, none, other = tmp_path / "two", tmp_path / "none", tmp_path / "other"
    for folder in (two, none, other):
        folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (two / name).touch()
    (other / "dxg").touch()
    return two, none, other


def test_the_probe_counts_what_is_visible(looked, devices, tmp_path):
    two, none, other = devices
    nccl_stand_in.nccl(tmp_path / "home" / "lib" / "libnccl.so.2", 22703)
    home = {"HOROVOD_NCCL_HOME": str(tmp_path / "home")}
    library = f"libnccl.so.2 ({tmp_path}/home/lib/libnccl.so.2), driver of CUDA 12.4"

    def visible(wish):
        return {**home, "CUDA_VISIBLE_DEVICES": wish}

    said = looked(
        12040,
        *(
            (home, two),
            (visible("1"), two),
            (visible("0,1,7,0"), two),
            (visible("GPU-3f,MIG-77"), two),
            (home, other),
        ),
        *((visible(""), two), (visible("-1"), two), (visible("2"), two), (visible(""), other)),
        (home, none),
    )
    assert [s.get("detail") for s in said[:5]] == [
        *(f"{library}, 2 devices", f"{library}, 1 device", f"{library}, 2 devices", f"{library}, 2 devices"),
        library,
    ]
    for answer, wish in zip(said[5:9], ("", "-1", "2", ""), strict=True):
        assert answer["reason"] == f"no CUDA device is visible (CUDA_VISIBLE_DEVICES='{wish}')"
    assert "there is no /dev/nvidia0" in said[9]["reason"] and "--gpus all" in said[9]["fix"]


def test_the_probe_says_what_is_too_old_or_missing(looked, run_python, devices, tmp_path):
    two = devices[0]
    old = nccl_stand_in.nccl(tmp_path / "old" / "libnccl.so.2.18.5", 21805)
    (tmp_path / "old" / "libnccl.so.2").symlink_to(old)
    site = tmp_path / "site-packages"
    newer = nccl_stand_in.wheel(site, "2.30.4", 23004, 13)
    (said,) = looked(10020, ({}, two))
    assert said["reason"] == "the NVIDIA driver serves CUDA 10.2, and 11.0 or newer is needed"
    absent, outdated, ahead = looked(
        12040,
        ({}, two),
        ({"HOROVOD_NCCL_LIB": str(tmp_path / "old")}, two),
        ({"HOROVOD_BACKEND_NCCL_LIBRARY": str(newer)}, two),
    )
    if "reason" in absent:  # else the system has an NCCL
        assert (
            absent["reason"] == "no NCCL library was found"
            and "pip install nvidia-nccl-cu13" in absent["fix"]
        )
    assert (
        outdated["reason"] == f"{old.with_name('libnccl.so.2')} is NCCL 2.18.5, and 2.19 or newer is needed"
    )
    assert ahead["reason"] == f"{newer} is built for CUDA 13, and the NVIDIA driver serves CUDA 12.4"
    assert ahead["fix"].startswith("pip install nvidia-nccl-cu12 in its place")
    named = {"HOROVOD_BACKEND_NCCL_CUDA_LIBRARY": "/nowhere/libcuda.so"}
    (wrong,) = looked(12040, (named, two))
    assert wrong["reason"].startswith(
        "option cuda_library: /nowhere/libcuda.so: cannot open shared object file"
    )


@pytest.fixture
def job(run_python):
    def run(**variables):
        return run_python([RANK], python=horovodrun(2), **variables)

    return run


@needs_no_driver
def test_named_alone_it_stops_the_job_with_the_reason(job):
    done = job(HOROVOD_BACKEND="nccl")
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "sum" not in text
    assert (
        "horovod: backend 'nccl' is installed but unavailable here: there is no NVIDIA driver (libcuda.so.1: "
        in text
    )
    assert "Not falling back, because it was named explicitly. Use HOROVOD_BACKEND=nccl," in text


@needs_no_driver
def test_in_a_list_it_is_passed_over_and_said_so(job):
    done = job(HOROVOD_BACKEND="nccl,tcp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum [3.0, 3.0, 3.0]") == 2
    (line,) = [line for line in done.stderr.splitlines() if "'nccl'" in line]
    assert "there is no NVIDIA driver" in line and "tcp" in line


@needs_no_driver
def test_the_kit_examines_the_library_and_skips_the_rest_with_the_reason(run_python):
    done = run_python(
        ["nccl", "-np", "2", "--json", "-"], python=[sys.executable, "-m", "hvd_core.conformance"]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = {r["case"]: r for r in json.loads(done.stdout)["cases"]}
    skipped = {name: r["text"] for name, r in results.items() if r["verdict"] != "PASS"}
    assert {name for name in results if name.startswith("L0.")} - set(skipped) >= {
        *("L0.symbol", "L0.tables", "L0.capabilities", "L0.identity", "L0.options", "L0.load", "L0.query"),
        *("L0.descriptor", "L0.import"),
    }
    assert not {name for name in results if not name.startswith("L0.")} - set(skipped)
    for name, text in skipped.items():
        assert results[name]["verdict"] == "SKIPPED", (name, text)
        if name != "L0.facts":  # there is no library to tell of
            assert text.startswith("unavailable here: there is no NVIDIA driver (libcuda.so.1: "), (
                name,
                text,
            )
