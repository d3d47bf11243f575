"""Every tuning flag: its variable, its key in the configuration file, and which of the two wins."""

import pytest

from horovod._runner.arguments import OPTIONS, positive_time
from horovod.runner.launch import parse_args, set_env_from_args

# Flag and value; the variable and its text; the key in the file and the value that means the same.
# fmt: off
ROWS = [
    (["--fusion-threshold-mb", "10"], "HOROVOD_FUSION_THRESHOLD", "10485760",
     "params.fusion_threshold_mb", 10),
    (["--cycle-time-ms", "20"], "HOROVOD_CYCLE_TIME", "20.0", "params.cycle_time_ms", 20),
    (["--cache-capacity", "512"], "HOROVOD_CACHE_CAPACITY", "512", "params.cache_capacity", 512),
    (["--hierarchical-allreduce"], "HOROVOD_HIERARCHICAL_ALLREDUCE", "1",
     "params.hierarchical_allreduce", True),
    (["--no-hierarchical-allreduce"], "HOROVOD_HIERARCHICAL_ALLREDUCE", "0",
     "params.hierarchical_allreduce", False),
    (["--hierarchical-allgather"], "HOROVOD_HIERARCHICAL_ALLGATHER", "1",
     "params.hierarchical_allgather", True),
    (["--no-hierarchical-allgather"], "HOROVOD_HIERARCHICAL_ALLGATHER", "0",
     "params.hierarchical_allgather", False),
    (["--torus-allreduce"], "HOROVOD_TORUS_ALLREDUCE", "1", "params.torus_allreduce", True),
    (["--no-torus-allreduce"], "HOROVOD_TORUS_ALLREDUCE", "0", "params.torus_allreduce", False),
    (["--autotune"], "HOROVOD_AUTOTUNE", "1", "autotune.enabled", True),
    (["--no-autotune"], "HOROVOD_AUTOTUNE", "0", "autotune.enabled", False),
    (["--autotune-log-file", "/l"], "HOROVOD_AUTOTUNE_LOG", "/l", "autotune.log_file", "/l"),
    (["--autotune-warmup-samples", "1"], "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "1",
     "autotune.warmup_samples", 1),
    (["--autotune-steps-per-sample", "5"], "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "5",
     "autotune.steps_per_sample", 5),
    (["--autotune-bayes-opt-max-samples", "9"], "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "9",
     "autotune.bayes_opt_max_samples", 9),
    (["--autotune-gaussian-process-noise", "0.2"], "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "0.2",
     "autotune.gaussian_process_noise", 0.2),
    (["--timeline-filename", "/t.json"], "HOROVOD_TIMELINE", "/t.json", "timeline.filename", "/t.json"),
    (["--timeline-mark-cycles"], "HOROVOD_TIMELINE_MARK_CYCLES", "1", "timeline.mark_cycles", True),
    (["--no-timeline-mark-cycles"], "HOROVOD_TIMELINE_MARK_CYCLES", "0", "timeline.mark_cycles", False),
    (["--no-stall-check"], "HOROVOD_STALL_CHECK_DISABLE", "1", "stall_check.enabled", False),
    (["--stall-check"], "HOROVOD_STALL_CHECK_DISABLE", "0", "stall_check.enabled", True),
    (["--stall-check-warning-time-seconds", "6"], "HOROVOD_STALL_CHECK_TIME_SECONDS", "6",
     "stall_check.warning_time_seconds", 6),
    (["--stall-check-shutdown-time-seconds", "7"], "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "7",
     "stall_check.shutdown_time_seconds", 7),
    (["--mpi-threads-disable"], "HOROVOD_MPI_THREADS_DISABLE", "1",
     "library_options.mpi_threads_disable", True),
    (["--no-mpi-threads-disable"], "HOROVOD_MPI_THREADS_DISABLE", "0",
     "library_options.mpi_threads_disable", False),
    (["--num-nccl-streams", "2"], "HOROVOD_NUM_NCCL_STREAMS", "2", "library_options.num_nccl_streams", 2),
    (["--thread-affinity", "3"], "HOROVOD_THREAD_AFFINITY", "3", "library_options.thread_affinity", 3),
    (["--thread-affinity", "0,2"], "HOROVOD_THREAD_AFFINITY", "0,2",
     "library_options.thread_affinity", "0,2"),
    (["--gloo-timeout-seconds", "60"], "HOROVOD_GLOO_TIMEOUT_SECONDS", "60",
     "library_options.gloo_timeout_seconds", 60),
    (["--gloo-timeout-seconds", "1e2"], "HOROVOD_GLOO_TIMEOUT_SECONDS", "100",
     "library_options.gloo_timeout_seconds", 100.0),
    (["--log-level", "INFO"], "HOROVOD_LOG_LEVEL", "INFO", "logging.level", "INFO"),
    (["--log-level", "debug"], "HOROVOD_LOG_LEVEL", "DEBUG", "logging.level", "debug"),
    (["--log-with-timestamp"], "HOROVOD_LOG_HIDE_TIME", "0", "logging.with_timestamp", True),
    (["--log-without-timestamp"], "HOROVOD_LOG_HIDE_TIME", "1", "logging.with_timestamp", False),
    (["--no-log-hide-timestamp"], "HOROVOD_LOG_HIDE_TIME", "0", "logging.with_timestamp", True),
    (["--log-hide-timestamp"], "HOROVOD_LOG_HIDE_TIME", "1", "logging.with_timestamp", False),
]
# fmt: on
COMMAND = ["-np", "2", "python", "train.py"]
NEEDS = {"HOROVOD_AUTOTUNE_": "--autotune", "HOROVOD_TIMELINE_": "--timeline-filename=x"}


def needed(variable):
    return [flag for prefix, flag in NEEDS.items() if variable.startswith(prefix)]


def write(folder, text):
    file = folder / "config.yaml"
    file.write_text(text)
    return ["--config-file", str(file)]


def environment(words):
    return set_env_from_args({}, parse_args([*words, *COMMAND]))


def test_rows_cover_the_table():
    assert {row[1] for row in ROWS} == {option.env for option in OPTIONS}
    assert {row[3] for row in ROWS} == {option.key for option in OPTIONS}
    flags = {word for row in ROWS for word in row[0] if word.startswith("--")}
    assert flags == {flag for option in OPTIONS for flag in option.flags + option.off_flags}


@pytest.mark.parametrize("flags, variable, text", [row[:3] for row in ROWS])
def test_flag_sets_the_variable(flags, variable, text):
    assert environment(flags + needed(variable))[variable] == text


@pytest.mark.parametrize("variable, text, key, value", [row[1:] for row in ROWS])
def test_file_sets_the_variable(tmp_path, variable, text, key, value):
    section, name = key.split(".")
    value = str(value).lower() if isinstance(value, bool) else value
    config = write(tmp_path, f"{section}:\n  {name}: {value}\n")
    assert environment(config + needed(variable))[variable] == text


def test_nothing_given_leaves_the_environment_alone():
    args = parse_args(COMMAND)
    assert set_env_from_args({"HOROVOD_CYCLE_TIME": "7"}, args) == {"HOROVOD_CYCLE_TIME": "7"}
    assert all(getattr(args, option.dest) is None for option in OPTIONS)


def test_details_need_what_they_belong_to():
    assert environment(["--autotune-warmup-samples", "2"]) == {}
    assert environment(["--no-autotune", "--autotune-warmup-samples", "2"]) == {"HOROVOD_AUTOTUNE": "0"}
    assert environment(["--timeline-mark-cycles"]) == {}


def test_command_line_beats_the_file(tmp_path):
    text = (
        "params: {cycle_time_ms: 5, cache_capacity: 3}\n"
        "stall_check: {enabled: false}\nautotune: {enabled: on}\n"
    )
    config = write(tmp_path, text)
    flags = ["--cycle-time-ms", "9", "--stall-check", "--no-autotune"]
    for words in (config + flags, flags + config):
        env = environment(words)
        assert env["HOROVOD_CYCLE_TIME"] == "9.0"
        assert env["HOROVOD_CACHE_CAPACITY"] == "3"
        assert env["HOROVOD_STALL_CHECK_DISABLE"] == "0"
        assert env["HOROVOD_AUTOTUNE"] == "0"


def test_section_without_enabled(tmp_path):
    config = write(tmp_path, "stall_check: {warning_time_seconds: 3}\nautotune: {warmup_samples: 3}\n")
    assert environment(config) == {
        "HOROVOD_STALL_CHECK_DISABLE": "0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
        "HOROVOD_AUTOTUNE": "0",
    }


def test_unknown_keys_are_named_and_ignored(tmp_path, capsys):
    config = write(tmp_path, "logging: {hide_timestamp: true, level: INFO}\nnews: {a: 1}\nverbose: true\n")
    args = parse_args([*config, *COMMAND])
    assert args.log_level == "INFO"
    assert args.verbose is True
    printed = capsys.readouterr().err
    assert "logging.hide_timestamp is not known and was ignored" in printed
    assert "news.a is not known" in printed
    assert printed.count("\n") == 2


@pytest.mark.parametrize("text", ["# nothing\n", "params:\n"])
def test_empty_file(tmp_path, text, capsys):
    assert environment(write(tmp_path, text)) == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "text, message",
    [
        ("params: {cycle_time_ms: soon}", "params.cycle_time_ms .* must be a number, found 'soon'"),
        ("params: {cache_capacity: 1.5}", "params.cache_capacity .* must be an integer, found 1.5"),
        ("params: {cache_capacity: true}", "params.cache_capacity .* must be an integer, found True"),
        ("params: {torus_allreduce: 1}", "params.torus_allreduce .* must be true or false, found 1"),
        ("logging: {level: loud}", "logging.level .* must be one of TRACE, .*, found 'loud'"),
        ("params: {cycle_time_ms: -1}", "cycle_time_ms=-1.0 must be >= 0"),
        ("params: [1", "is not valid YAML"),
        ("just text", "must hold sections"),
        ("params: 3", "params in the configuration file must be a section .*, found 3"),
        ("controller: psm", "No such controller supported: psm"),
    ],
)
def test_wrong_file(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        parse_args([*write(tmp_path, text + "\n"), *COMMAND])


def test_controller_in_the_file(tmp_path):
    assert parse_args([*write(tmp_path, "controller: gloo\n"), *COMMAND]).use_gloo
    assert parse_args([*write(tmp_path, "controller: mpi\n"), *COMMAND]).use_mpi
    assert parse_args(["--gloo", *write(tmp_path, "controller: mpi\n"), *COMMAND]).use_gloo


@pytest.mark.parametrize(
    "flags",
    [
        [f"--{option.dest.replace('_', '-')}", "-1"]
        for option in OPTIONS
        if option.low == 0 and option.kind is not positive_time
    ],
)
def test_negative_values_are_refused(flags):
    with pytest.raises(ValueError, match=r"=-1(\.0)? must be "):
        parse_args([f"{flags[0]}={flags[1]}", *COMMAND])


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_time_is_positive(tmp_path, text, capsys):
    """As ranks read it: hvd_core._config.settings."""
    with pytest.raises(SystemExit):
        parse_args([f"--gloo-timeout-seconds={text}", *COMMAND])
    assert f"invalid positive number of seconds value: '{text}'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="must be a positive number of seconds"):
        parse_args([*write(tmp_path, f"library_options: {{gloo_timeout_seconds: '{text}'}}\n"), *COMMAND])


def test_noise_is_between_0_and_1():
    with pytest.raises(ValueError, match=r"autotune_gaussian_process_noise=1.5 must be in \[0, 1\]"):
        parse_args(["--autotune-gaussian-process-noise", "1.5", *COMMAND])
