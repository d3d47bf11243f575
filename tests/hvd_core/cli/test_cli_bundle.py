"""`hvd doctor --bundle`: the parts of the bundle, and secrets that must not be in it."""

import json
import os
import stat
import subprocess
import sys
import tarfile
from contextlib import suppress

import pytest

from harness import run_on_ranks
from hvd_core import flight_records
from hvd_core._cli.bundle import REMOVED, Redaction, is_secret_name

SECRET = "c0rrect-horse-battery"
# JSON and Python write these in another way.
ODD_SECRETS = {
    "A_TOKEN": "p\"w'quoted",
    "B_TOKEN": "back\\slashed",
    "C_TOKEN": "schlüssel",
    "D_TOKEN": "line\nbroken",
}


def bundle(folder, *options, **variables):
    path = folder / "report.tar.gz"
    # Not the folder of this user, where other jobs put their recorders.
    environ = {**os.environ, "HOROVOD_FLIGHT_RECORDER_DIR": str(folder / "flight"), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "hvd_core._cli", "doctor", "--bundle", str(path), *options],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, path


def contents(path):
    with tarfile.open(path) as archive:
        names = archive.getnames()
        return {name.split("/", 1)[1]: archive.extractfile(name).read().decode() for name in names}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """(the finished command, the bundle's path, {file: text}) of one bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    log = folder / "training.log"
    log.write_text(f"rank 0 uses {SECRET}\nhttps://me:hidden@example.org/x\nthe last line\n")
    done, path = bundle(
        folder,
        "--log",
        str(log),
        HOROVOD_SECRET_KEY=SECRET,
        HOROVOD_FUSION_THRESHOLD="4096",
        HVD_TEST_PATH=f"/mnt/{SECRET}/x",
        OMPI_MCA_x="f" * 64,
        MY_OWN_MATTER="mine alone",
    )
    assert done.returncode == 0, done.stderr
    return done, path, contents(path)


def test_bundle_has_facts_about_versions_host_and_backends(packed):
    _, _, files = packed
    assert json.loads(files["versions.json"])["python"] == sys.version
    host = json.loads(files["host.json"])
    assert set(host["cores"]["of this process"]) == os.sched_getaffinity(0)
    assert host["limits"]["NOFILE"] and host["file systems"]["/dev/shm"] and "lo" in host["interfaces"]
    assert any(step["backend"] == "shm" for step in json.loads(files["backends.json"]))
    assert json.loads(files["configuration.json"])


def test_bundle_has_variables_without_secrets(packed):
    _, _, files = packed
    variables = json.loads(files["environment.json"])
    assert variables["HOROVOD_FUSION_THRESHOLD"] == "4096"
    assert variables["HOROVOD_SECRET_KEY"] == REMOVED
    assert variables["HVD_TEST_PATH"] == f"/mnt/{REMOVED}/x"
    assert variables["OMPI_MCA_x"] == REMOVED
    assert "MY_OWN_MATTER" not in variables


def test_bundle_has_the_end_of_a_log_without_secrets(packed):
    _, _, files = packed
    (log,) = [text for name, text in files.items() if name.endswith("training.log")]
    assert log == f"rank 0 uses {REMOVED}\nhttps://{REMOVED}@example.org/x\nthe last line\n"
    assert not any(SECRET in text for text in files.values())


def test_bundle_is_for_its_owner_only_and_lists_its_parts(packed):
    done, path, files = packed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(name in done.stdout for name in files)
    assert "secrets were removed" in done.stdout


def test_bundle_overwrites_no_file(tmp_path):
    (tmp_path / "report.tar.gz").write_text("mine")
    done, path = bundle(tmp_path)
    assert done.returncode == 2 and "exists already" in done.stderr
    assert path.read_text() == "mine"


def test_a_log_that_is_missing_is_named_in_the_bundle(tmp_path):
    done, path = bundle(tmp_path, "--log", str(tmp_path / "no.log"), "--json")
    assert done.returncode == 0
    (name,) = [part["file"] for part in json.loads(done.stdout)["parts"] if part["file"].startswith("logs/")]
    assert "FileNotFoundError" in contents(path)[name]


@pytest.mark.parametrize(
    "name", ["HOROVOD_SECRET_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "PGPASSWORD", "API_KEY"]
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["HOROVOD_TIMELINE", "PATH", "KEYBOARD", "OMPI_MCA_btl", "HOROVOD_CACHE_CAPACITY"]
)
def test_other_names(name):
    assert not is_secret_name(name)


def aborted(folder):
    """A job that fails, with a secret in the cause. Its flight recorders are saved in the folder."""
    import numpy as np

    import hvd_core as hvd
    from hvd_core._runtime import current_job

    hvd.allreduce(np.ones(2), name="weights")
    with suppress(hvd.HorovodInternalError):
        hvd.barrier()
        if hvd.rank() == 0:
            current_job.engine().abort(f"the cause is {SECRET}")
        hvd.barrier()


def test_bundle_has_flight_recorders_of_failed_jobs(tmp_path):
    folder = tmp_path / "flight"
    run_on_ranks(2, aborted, str(folder), env={"HOROVOD_FLIGHT_RECORDER_DIR": str(folder)})
    (folder / "other").mkdir()
    (folder / "other" / "rank-0.flight").write_text("a private file")
    done, path = bundle(tmp_path, HOROVOD_FLIGHT_RECORDER_DIR=str(folder), HOROVOD_SECRET_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name).read() for name in archive.getnames()}
    texts = [data.decode() for name, data in files.items() if "/flight/" in name and name.endswith(".txt")]
    rings = [data for name, data in files.items() if name.endswith(".flight")]
    assert rings and len(texts) == len(rings) + 1
    assert any("not a flight recorder" in text for text in texts)
    assert not any(b"a private file" in data for data in files.values())
    assert any("allreduce.weights" in text and f"the cause is {REMOVED}" in text for text in texts)
    assert all(flight_records.read_ring(data).events for data in rings)
    assert not any(SECRET.encode() in data for data in files.values())


def test_a_secret_is_removed_however_it_is_written(tmp_path):
    log = tmp_path / "training.log"
    lines = [write(secret) for secret in ODD_SECRETS.values() for write in (str, repr, json.dumps)]
    log.write_text("\n".join(["begin", *lines, "end"]))
    # As variables that are reported, and in messages of the commands that the bundle calls.
    shown = {f"HVD_{name[0]}": f"<{secret}>" for name, secret in ODD_SECRETS.items()}
    done, path = bundle(
        tmp_path, "--log", str(log), HOROVOD_BACKEND=ODD_SECRETS["A_TOKEN"], **ODD_SECRETS, **shown
    )
    assert done.returncode == 0, done.stderr
    files = contents(path)
    variables = json.loads(files["environment.json"])
    assert [variables[name] for name in shown] == [f"<{REMOVED}>"] * len(shown)
    for name, text in files.items():
        for secret in ODD_SECRETS.values():
            for part in (secret, *json.dumps(secret)[1:-1].split("\\"), repr(secret)[1:-1]):
                assert len(part) < 5 or part not in text, (name, part)


def test_bytes_that_are_no_text_are_removed_too():
    secret = os.fsdecode(b"se\xffcret")
    redaction = Redaction({"A_TOKEN": secret})
    assert redaction.text(f"a {secret} b") == f"a {REMOVED} b"
    assert redaction.data(b"a se\xffcret b") == b"a " + b"*" * 7 + b" b"


def test_a_longer_secret_is_removed_before_a_shorter_one():
    redaction = Redaction({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghij"})
    assert redaction.text("abcdefghij abcdef") == f"{REMOVED} {REMOVED}"
    assert redaction.removed == 2
