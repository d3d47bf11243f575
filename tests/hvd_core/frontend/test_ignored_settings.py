"""Nothing is silently ignored: settings of the original without effect are named, once, by rank 0 or by the launcher."""

import pytest

from harness import run_on_ranks
from horovod._runner.arguments import OPTIONS, options_without_effect
from horovod.common._init_hooks import ignored_settings
from horovod.runner.launch import parse_args, set_env_from_args

# What each option says when it has an effect, or when nothing is asked for.
QUIET = {
    "HOROVOD_TIMELINE": "t.json",
    "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
    "HOROVOD_TORUS_ALLREDUCE": "0",
    "HOROVOD_NUM_NCCL_STREAMS": "1",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "1",
    "HOROVOD_DISABLE_NVTX_RANGES": "1",
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_FUSION_THRESHOLD": "1000",
}


def test_what_asks_for_nothing_is_not_named():
    assert ignored_settings(QUIET) == ignored_settings({}) == []


@pytest.mark.parametrize(
    "words, named",
    [
        (["--timeline-filename", "t.json", "--timeline-mark-cycles"], []),
        (["--autotune", "--autotune-log-file", "log", "--autotune-gaussian-process-noise", "0.5"],
         ["--autotune-gaussian-process-noise"]),
        (["--torus-allreduce"], ["--torus-allreduce"]),
        (["--num-nccl-streams", "2"], ["--num-nccl-streams"]),
        (["--no-autotune", "--no-torus-allreduce", "--num-nccl-streams", "1"], []),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_named_by_its_variable_and_its_flag(words, named):
    env = set_env_from_args({}, parse_args(["-np", "1", *words, "true"]))
    found = ignored_settings(env)
    assert [text.partition("(")[2].partition(")")[0] for text in found] == named
    assert all(text.startswith("HOROVOD_") and text.count(": ") == 1 for text in found)


def test_every_flag_in_the_messages_is_one_of_horovodrun():
    flags = {option.env: option.flags[0] for option in OPTIONS}
    for name, flag in flags.items():
        found = ignored_settings({name: "7"})
        assert all(f"({flag})" in text for text in found), found


def test_the_launcher_names_options_that_need_another(capsys, tmp_path):
    args = parse_args(["-np", "1", "--autotune-log-file", "log", "--timeline-mark-cycles", "true"])
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "horovodrun: --autotune-log-file without --autotune has no effect",
        "horovodrun: --timeline-mark-cycles without --timeline-filename has no effect",
    ]
    assert len(options_without_effect(args)) == 2
    config = tmp_path / "job.yaml"
    config.write_text("timeline:\n  filename: t.json\n  mark_cycles: true\nparams:\n  speed: 9\nother: 1\n")
    args = parse_args(["-np", "1", "--config-file", str(config), "true"])
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(f"{config}: ")[2] for line in said] == [
        "params.speed is not known and was ignored",
        "other is not known and was ignored",
    ]
    assert set_env_from_args({}, args)["HOROVOD_TIMELINE"] == "t.json"


def init_twice():
    from horovod.common.basics import HorovodBasics

    hvd = HorovodBasics()
    for _ in range(2):
        hvd.init()
        hvd.shutdown()


def test_rank_0_says_it_in_one_line():
    env = {"HOROVOD_CCL_CACHE": "1", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "1"}
    first, second = run_on_ranks(2, init_twice, init=None, env=env).outputs
    assert second == ""
    assert first.partition(" [0] ")[2] == (
        "horovod WARNING: settings without effect: HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE=1 "
        "(--autotune-gaussian-process-noise): the search of autotuning has no Gaussian process; "
        "HOROVOD_CCL_CACHE=1: there is no backend for oneCCL\n"
    )
