"""``hvd config --explain``: values with the file and line, or the variable, that they come from."""

import pytest


def rows(hvd, code=0):
    found = hvd.json("config", "--explain", code=code)
    return {row["key"]: (row["value"], row["source"]) for row in found["settings"]}, found


def write(hvd, tmp_path, text):
    file = tmp_path / "plugins.toml"
    file.write_text(text)
    hvd.variables["HOROVOD_PLUGINS_TOML"] = str(file)
    return file


def test_defaults_say_so(hvd):
    settings, found = rows(hvd)
    assert settings["backend"] == ("automatic", "default")
    assert settings["log_level"] == ("warning", "default")
    assert {(row["operation"], row["device"], row["backend"]) for row in found["choice"]} >= {
        ("allreduce", "cpu", "shm")
    }
    assert [file["kind"] for file in found["files"]] == ["packaged"]


def test_files_and_variables_are_named_with_their_line(hvd, tmp_path):
    text = '[selection]\nbackend = "tcp"\n\n[probe]\ntimeout_s = 2\n\n'
    file = write(hvd, tmp_path, text + '[backend.shm]\noptions = { spin_us = 3, isa = "base" }\n')
    hvd.variables |= {
        "HOROVOD_BACKEND_SHM_SPIN_US": "9",
        "HOROVOD_CYCLE_TIME": "4",
        "HOROVOD_CPU_ALLGATHER": "shm",
    }
    settings, found = rows(hvd)
    assert settings["backend for any device, all operations"] == ("tcp", f"{file}:2")
    assert settings["backend for cpu, allgather"] == ("shm", "HOROVOD_CPU_ALLGATHER")
    assert settings["probe.timeout_s"] == ("2", f"{file}:5")
    assert settings["backend.shm.options.isa"] == ("base", f"{file}:8")
    assert settings["backend.shm.options.spin_us"] == (
        "9",
        f"HOROVOD_BACKEND_SHM_SPIN_US, instead of {file}:8",
    )
    assert settings["cycle_time_ms"] == ("4.0", "HOROVOD_CYCLE_TIME")
    chosen = {row["operation"]: (row["backend"], row["source"]) for row in found["choice"]}
    assert chosen["allreduce"] == ("tcp", f"{file}:2")
    assert chosen["allgather"] == ("shm", "HOROVOD_CPU_ALLGATHER")
    text = hvd.run("plugin", "config", "--explain")
    assert "HOROVOD_CPU_ALLGATHER" in text
    assert "automatic" not in text


def test_a_choice_that_cannot_be_is_a_finding(hvd):
    hvd.variables["HOROVOD_BACKEND"] = "nix"
    _, found = rows(hvd, code=1)
    assert found["fault"].startswith("horovod: backend 'nix' (from HOROVOD_BACKEND) is not installed.")
    assert "a job started here would stop" in hvd.run("config", code=1)


@pytest.mark.parametrize(
    "verb", [["config"], ["plugin", "list"], ["plugin", "show", "shm"], ["plugin", "check", "shm"]]
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(hvd, tmp_path, verb):
    file = write(hvd, tmp_path, '[selection]\nbakend = "shm"\n')
    hvd.run(*verb, code=2)
    assert f"{file}:2: unknown key 'bakend' in [selection]. Did you mean 'backend'?" in hvd.errors


def test_doctor_goes_on_without_a_file_that_cannot_be_read(hvd, tmp_path):
    write(hvd, tmp_path, '[selection]\nbakend = "shm"\n')
    text = hvd.run("plugin", "doctor", "shm", "--no-open", code=1)
    assert "Did you mean 'backend'?" in text
    assert "SHM 1.0.0" in text
