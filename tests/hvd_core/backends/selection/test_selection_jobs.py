"""The selection in real jobs of horovodrun: ranks with different settings, files, plugins of other wheels.

All cases of one kind go through one job of two ranks that calls init() again and again.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

import hvd_core
import selection_ranks
from choosing_job import plugin, why_no_site
from golden_texts import golden
from launchers import program_words


def test_named_in_variables_and_files(job, tmp_path):
    site = tmp_path / "site"
    plugin(site, "alpha")
    down = 'return Unavailable("no device is visible (DOWN_VISIBLE=\'\')", "source /opt/down/env.sh")'
    plugin(site, "down", down)
    plugin(
        site,
        "asking",
        'return Available() if os.environ.get("ASKING") == "3" else Unavailable("ASKING is not 3")',
    )
    (site / "hvd_backend_alpha.py").chmod(0o644)

    def file(name, text):
        (tmp_path / name).write_text(text)
        return {"HOROVOD_PLUGINS_TOML": str(tmp_path / name)}

    home = tmp_path / ".config/hvd/plugins.toml"
    home.parent.mkdir(parents=True)
    home.write_text('[selection.cpu]\noperations = "tcp"\n')
    none = file("none.toml", "")
    one = {"HOROVOD_BACKEND": "alpha"}
    tcp = {"HOROVOD_BACKEND": "tcp"}
    job = job()
    job.run(
        {
            "home": {},
            "automatic": {"all": none},
            "wheel": {"all": none | one},
            "argument": {"all": none | one, "argument": "TCP"},
            "list": {"all": none | {"HOROVOD_BACKEND": "down,alpha"}},
            "leftover": {"all": none | {"HOROVOD_GPU_ALLREDUCE": "NCCL", "HOROVOD_CPU_OPERATIONS": "CCL"}},
            "env": {
                "all": file(
                    "env.toml",
                    '[selection]\nbackend = "asking"\n[backend.asking]\nenv = { ASKING = "3", HOME = "x" }\n'
                    "options = { delay_ms = 1 }\n",
                )
            },
            "affinity_off": {
                "all": file("off.toml", '[affinity]\nmode = "off"\n') | {"HOROVOD_THREAD_AFFINITY": "0,0"}
            },
            "affinity_near": {"all": file("near.toml", '[affinity]\nmode = "near-device"\n')},
            "missing": {"all": none | {"HOROVOD_BACKEND": "alhpa"}},
            "known_wheel": {"all": none | {"HOROVOD_BACKEND": "nccl"}},
            "unavailable": {"all": none | {"HOROVOD_BACKEND": "down"}},
            "unavailable_in_file": {"all": file("down.toml", '[selection]\nbackend = "down"\n')},
            "disagree": {"all": none, "of": {"1": {"HOROVOD_BACKEND": "cpu=tcp"}}},
            "disagree_failed": {"all": none | one, "of": {"1": {"HOROVOD_BACKEND": "down"}}},
            "unknown_key": {"all": file("typo.toml", '[selection]\n\nbakend = "alpha"\n')},
            "unknown_key_on_one_rank": {
                "all": none | {"HOROVOD_BACKEND": "shm"},
                "of": {"1": {"HOROVOD_PLUGINS_TOML": "here.toml"}},
            },
            "unknown_option": {"all": none | tcp | {"HOROVOD_BACKEND_TCP_RING_RANK": "4"}},
            "wrong_option": {"all": none | tcp | {"HOROVOD_BACKEND_TCP_RING_RANKS": "few"}},
            "unknown_option_in_file": {
                "all": tcp | file("option.toml", "[backend.tcp]\noptions = { chunk_kb = 8 }\n")
            },
            "no_such_option_in_python": {"all": none | one | {"HOROVOD_BACKEND_ALPHA_FAIL_OP": "3"}},
            "after_all_that": {"all": none},
        }
    )
    assert job.chosen("home") == [f"cpu: tcp [{home}:2]"]
    assert job.chosen("automatic") == job.chosen("after_all_that") == ["cpu: shm [automatic]"]
    assert job.chosen("wheel") == ["cpu: alpha [HOROVOD_BACKEND]"]
    assert job.chosen("argument") == ["cpu: tcp [init(backend=...)]"]
    assert job.chosen("list") == ["cpu: alpha [HOROVOD_BACKEND]"]
    warned = [job.results["list"][rank]["warned"] for rank in (0, 1)]
    assert len(warned[0]) == 1 and warned[1] == [], "rank 0 says it, once"
    golden("job_list", warned[0][0])
    assert job.chosen("leftover") == ["cpu: shm [automatic]"]
    golden("job_leftover", "\n".join(job.results["leftover"][0]["warned"]))
    assert job.chosen("env") == [f"cpu: asking [{tmp_path}/env.toml:2]"]
    assert job.results["env"][1]["env"]["HOROVOD_BACKEND_ASKING_DELAY_MS"] == "1"
    for name in ("affinity_off", "affinity_near"):
        first, second = job.results[name]
        assert len(first["warned"]) == 1 and second["warned"] == []
        golden(f"job_{name}", first["warned"][0], folder=tmp_path)
    job.refused("missing", "BackendNotInstalled")
    job.refused("known_wheel", "BackendNotInstalled")
    job.refused("unavailable", "BackendUnavailable")
    job.refused("unavailable_in_file", "BackendUnavailable")
    job.refused("disagree", "BackendDisagreement")
    job.refused("disagree_failed", "BackendDisagreement", both=False)
    assert job.results["disagree_failed"][1]["error"] == "BackendUnavailable"
    job.refused("unknown_key", "PluginsTomlError")
    job.refused("unknown_key_on_one_rank", "BackendDisagreement", both=False)
    assert job.results["unknown_key_on_one_rank"][1]["error"] == "PluginsTomlError"
    job.refused("unknown_option", "ValueError")
    job.refused("wrong_option", "ValueError")
    job.refused("unknown_option_in_file", "ValueError")
    job.refused("no_such_option_in_python", "ValueError")


@pytest.mark.skipif(why_no_site() is not None, reason=str(why_no_site()))
def test_the_sites_veto_is_over_every_level(job, tmp_path):
    plugin(tmp_path / "site", "alpha")
    user = tmp_path / "user.toml"
    user.write_text('[selection]\nbackend = "shm"\n')
    allowing = tmp_path / "allowing.toml"
    allowing.write_text('[selection]\nallow = ["shm"]\n')
    job = job('# the site\n[selection]\nallow = ["tcp", "alpha", "shm"]\ndeny = ["shm"]\n')
    job.run(
        {
            "veto_automatic": {},
            "veto_allowed": {"all": {"HOROVOD_BACKEND": "alpha"}},
            "veto_list": {"all": {"HOROVOD_BACKEND": "shm,tcp"}},
            "veto_variable": {"all": {"HOROVOD_BACKEND": "shm"}},
            "veto_argument": {"argument": "shm"},
            "veto_file": {"all": {"HOROVOD_PLUGINS_TOML": str(user)}},
            "veto_cannot_be_lifted": {"all": {"HOROVOD_PLUGINS_TOML": str(allowing)}},
            "veto_not_in_allow": {"all": {"HOROVOD_BACKEND": "chaos"}},
            "veto_missing": {"all": {"HOROVOD_BACKEND": "alhpa"}},
            "veto_legacy": {"all": {"HOROVOD_CPU_OPERATIONS": "shm"}},
            "veto_set": {"all": {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, "set": "shm"},
            "veto_set_allowed": {"all": {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, "set": "alpha"},
        }
    )
    assert job.chosen("veto_automatic") == ["cpu: tcp [automatic]"]
    assert job.chosen("veto_allowed") == ["cpu: alpha [HOROVOD_BACKEND]"]
    assert job.chosen("veto_list") == ["cpu: tcp [HOROVOD_BACKEND]"]
    assert job.chosen("veto_legacy") == ["cpu: tcp [automatic]"]
    golden("job_veto_legacy", "\n".join(job.results["veto_legacy"][0]["warned"]))
    assert (
        job.chosen("veto_set_allowed") == ["cpu: tcp [automatic]"]
        and "error" not in job.results["veto_set_allowed"][0]
    )
    for name in ("veto_variable", "veto_argument", "veto_file", "veto_not_in_allow", "veto_set"):
        job.refused(name, "BackendVetoed")
    job.refused("veto_cannot_be_lifted", "PluginsTomlError")
    job.refused("veto_missing", "BackendNotInstalled")


@pytest.mark.skipif(why_no_site() is not None, reason=str(why_no_site()))
def test_a_site_that_allows_nothing(job, tmp_path):
    job = job("[selection]\nallow = []\n")
    job.run({"veto_all": {}, "veto_named": {"all": {"HOROVOD_BACKEND": "shm"}}})
    job.refused("veto_all", "BackendUnavailable")
    job.refused("veto_named", "BackendVetoed")


def test_one_operation_on_host_memory_goes_over_another_backend(job, tmp_path):
    env = {
        "HOROVOD_BACKEND": "shm,cpu.broadcast=chaos",
        "HOROVOD_BACKEND_CHAOS_FAIL_RANK": "0",
        "HOROVOD_BACKEND_CHAOS_FAIL_AT_OP": "1",
    }
    done = job().launcher.python(2, selection_ranks.broadcast_over_another_backend, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("chaos: broadcast: rank 0 fails at operation 1") == 2, done.stdout


@pytest.mark.mpi
def test_mpirun_that_does_not_hand_on_the_variable(mpirun, tmp_path):
    """As on another host: only one of two ranks has the backend. Both errors name the rank without it."""
    program = selection_ranks.print_why_init_fails
    first = ["env", "HOROVOD_BACKEND=cpu=tcp", *program_words(program, "smh")]
    second = program_words(program, "")
    packages = str(Path(hvd_core.__file__).resolve().parents[1])
    done = subprocess.run(
        [*mpirun, "-np", "1", *first, ":", "-np", "1", *second],
        env={**os.environ, "PYTHONPATH": packages, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=140,
        cwd=tmp_path,
    )
    text = done.stdout + done.stderr
    assert text.count("ranks do not agree on backends.") == 2 + 1, text
    flag = "-x" if "--oversubscribe" in mpirun else "-genv"
    unset = re.findall(
        rf"HOROVOD_BACKEND is unset on rank 1 \(.*\) and set on the others.  fix: mpirun {flag} HOROVOD_BACKEND",
        text,
    )
    assert len(unset) == 2, text
    # In the next init() rank 0 holds the store, and fails: the other hears why all the same.
    assert (
        text.count("horovod: backend 'smh' (from HOROVOD_BACKEND) is not installed. Did you mean 'shm'?") == 1
    ), text
    assert text.count("): failed: backend 'smh' (from HOROVOD_BACKEND) is not installed.") == 1, text
