"""`horovodrun --check-build`: the lines that scripts look for, and the facts that they report."""

import re
import sys

import report_programs
from announced import backend, distribution, python, run

CHECK_BUILD = ["-m", "horovod.runner.launch", "--check-build"]


def an_mpirun(site, says):
    """An mpirun on the PATH, whose output identifies its MPI."""
    file = site.parent / "bin" / "mpirun"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\necho '{says}'\n")
    file.chmod(0o755)


def checked(site, **variables):
    """{section: its lines} of one run."""
    path = f"{site.parent / 'bin'}:/usr/bin:/bin"
    done = run([sys.executable, *CHECK_BUILD], site, PATH=path, **variables)
    assert done.returncode == 0, done.stderr
    sections, title = {}, ""
    for line in done.stdout.splitlines():
        if line and not line.startswith(" "):
            title = line
        elif line:
            sections.setdefault(title, []).append(line.strip())
    return sections


def of(lines, name):
    """The one line about ``name``."""
    (line,) = (line for line in lines if line[4:].split()[0] == name)
    return line


def test_what_works_is_marked_and_says_its_version(site):
    backend(site, "mpi", probe='return Available("libmpi.so.40, Open MPI 5.0.11")', launchers=("openmpi",))
    backend(site, "gloo")
    backend(site, "nccl", devices=("cuda",), probe='return Available("libnccl.so 2.30.4, 8 devices")')
    an_mpirun(site, "mpirun (Open MPI) 5.0.11")
    found = checked(site)
    operations, controllers = found["Available Tensor Operations:"], found["Available Controllers:"]
    assert of(operations, "NCCL") == "[X] NCCL  (backend nccl 1.5: libnccl.so 2.30.4, 8 devices)"
    assert of(operations, "MPI") == "[X] MPI  (backend mpi 1.5: libmpi.so.40, Open MPI 5.0.11)"
    assert of(operations, "Gloo") == "[X] Gloo  (backend gloo 1.5)"
    assert [line[:7] for line in operations] == ["[X] NCC", "[ ] DDL", "[ ] CCL", "[X] MPI", "[X] Glo"]
    mpirun = f"Open MPI 5.0.11 ({site.parent}/bin/mpirun)"
    assert controllers[0] == f"[X] MPI  (started by {mpirun})"
    assert controllers[1].startswith("[X] Gloo")
    assert f"mpirun {mpirun}" in found["Versions:"]
    rows = found["Available Backends:"]
    assert [line[4:].split()[0] for line in rows][:2] == ["shm", "tcp"]
    assert of(rows, "gloo") == "[X] gloo 1.5  (hvd-backend-gloo)"


def test_without_plugins_jobs_still_need_no_mpi(site):
    found = checked(site)
    assert found["Available Controllers:"][1].startswith("[X] Gloo")
    assert not [line for line in found["Available Tensor Operations:"] if line.startswith("[X]")]
    assert "shm, tcp" in of(found["Available Tensor Operations:"], "Gloo")


def test_an_mpirun_alone_is_no_mpi_and_a_backend_alone_is_none(site):
    an_mpirun(site, "mpirun (Open MPI) 4.1.8")
    line = checked(site)["Available Controllers:"][0]
    assert line.startswith("[ ] MPI  (Open MPI 4.1.8 (") and "backend mpi is not there" in line
    an_mpirun(site, "this is no MPI")
    backend(site, "mpi")
    found = checked(site)
    assert found["Available Controllers:"][0].startswith("[ ] MPI  (") and "no MPI known here" in str(found)
    assert of(found["Available Tensor Operations:"], "MPI").startswith("[X] MPI")


def test_what_is_broken_is_a_line_with_its_reason(site):
    backend(site, "mpi", code="raise RuntimeError('half installed')")
    backend(site, "nccl", probe='return Unavailable("no CUDA device is visible", "see nvidia-smi")')
    backend(site, "gloo", library="/nowhere/libgloo.so")
    backend(site, "slow", probe='import time; print("noise", flush=True); time.sleep(60)')
    toml = site / "plugins.toml"
    toml.write_text("[probe]\ntimeout_s = 3\n")
    found = checked(site, HOROVOD_PLUGINS_TOML=str(toml))
    rows = found["Available Backends:"]
    assert of(rows, "mpi").startswith("[ ] mpi 1.5  (hvd-backend-mpi: broken: announced_mpi:describe failed:")
    assert of(rows, "nccl") == (
        "[ ] nccl 1.5  (hvd-backend-nccl: unavailable: no CUDA device is visible; fix: see nvidia-smi)"
    )
    assert "does not exist: /nowhere/libgloo.so" in of(rows, "gloo")
    assert "has not answered within 3 s" in of(rows, "slow")
    assert not any("noise" in line for lines in found.values() for line in lines)
    for name in ("NCCL", "MPI", "Gloo"):
        assert of(found["Available Tensor Operations:"], name).startswith(f"[ ] {name}")


def test_a_configuration_that_cannot_be_read_is_told(site):
    toml = site / "plugins.toml"
    toml.write_text("[selektion]\n")
    found = checked(site, HOROVOD_PLUGINS_TOML=str(toml))
    assert "unknown" in str(found["Available Backends:"]) and "selektion" in str(found["Available Backends:"])
    assert found["Available Controllers:"][1].startswith("[X] Gloo")


def test_frameworks_are_found_and_not_imported(site):
    never = "raise SystemExit('imported')"
    distribution(site, "torch", "2.99.1", "torch", never)
    distribution(site, "tensorflow-cpu", "2.21.0", "tensorflow", never)
    found = checked(site)["Available Frameworks:"]
    assert found[0] == "[X] TensorFlow  (2.21.0)"
    assert found[1:3] == ["[X] PyTorch  (2.99.1)", "[ ] MXNet"]
    assert len(found) == 4 and re.fullmatch(r"\[[X ]\] JAX( .*)?", found[3])  # this Python's own, or missing


def test_it_costs_little(site):
    """It takes less than a second of processor time in all (usually a quarter)."""
    backend(site, "mpi")
    least = 60.0
    for _ in range(5):  # other processes slow it down, so the best of five counts
        status, seconds = python(report_programs.measure, site, sys.executable, *CHECK_BUILD).stdout.split()
        assert status == "0"
        least = min(least, float(seconds))
        if least < 1.0:
            break
    assert least < 1.0
