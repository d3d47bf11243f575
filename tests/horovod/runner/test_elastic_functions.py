"""Elastic jobs that a program starts with horovod.run(), and the options of elastic jobs in a configuration file."""

import os

import pytest

import elastic_ranks
import horovod
from horovod.runner.launch import parse_args

pytest.importorskip("hvd_core._core", reason="the engine is not built")


def test_the_results_are_those_of_the_first_ranks_of_the_last_world():
    """Rank 0 of the first world dies, so the processes 1 and 2 are the first ranks of the second world."""
    found = horovod.run(
        elastic_ranks.rank_0_of_the_first_world_dies,
        (b"x" * 100_000,),
        num_proc=3,
        min_num_proc=2,
        max_num_proc=3,
        cooldown_range=(1, 2),
    )
    assert [(rank, length) for rank, length, world in found] == [(0, 100_000), (1, 100_000)]
    assert all(world >= 2 for _, _, world in found)


def test_min_num_proc_alone_is_the_number_of_processes():
    assert horovod.run(elastic_ranks.rank_and_size, min_num_proc=2) == [(0, 2), (1, 2)]


def test_the_results_of_another_host_come_back(monkeypatch):
    monkeypatch.setenv("HOROVOD_REMOTE_SHELL", "sh -c 'exec {command}' {host}")
    found = horovod.run(
        elastic_ranks.rank_and_size,
        min_num_proc=2,
        hosts="localhost:1,elsewhere:1",
        network_interfaces="lo",
    )
    assert found == [(0, 2), (1, 2)]


def test_the_exception_of_the_process_that_failed_first_is_raised():
    with pytest.raises(RuntimeError, match="ValueError: a mistake in the program") as raised:
        horovod.run(elastic_ranks.fails, min_num_proc=1)
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "function, cause",
    [
        (elastic_ranks.rank_1_dies_while_functions_return, "Exit code: 137"),
        (elastic_ranks.rank_1_dies_when_rank_0_has_returned, "rank 0 .* was the first to leave"),
    ],
)
def test_a_death_while_functions_return_is_an_error(function, cause):
    """After the first return no world is formed any more."""
    with pytest.raises(RuntimeError, match=f"(?s)(?=.*Process name: 1).*{cause}"):
        horovod.run(function, num_proc=3, min_num_proc=1, max_num_proc=3)


def test_a_function_that_does_not_call_init_has_no_ranks():
    with pytest.raises(RuntimeError, match=r"none of them has called hvd.init\(\)"):
        horovod.run(os.getpid, min_num_proc=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"min_num_proc": 3, "max_num_proc": 2}, "--max-np 2 is less than -np 3"),
        ({"num_proc": 2, "min_num_proc": 3}, "-np 2 is less than --min-np 3"),
        ({"min_num_proc": 1, "reset_limit": -1}, "reset_limit=-1 must be >= 0"),
        ({"min_num_proc": 1, "slots": 0}, "slots=0 must be >= 1"),
        ({"min_num_proc": 1, "cooldown_range": 5}, "takes two numbers of seconds, .* found 5"),
        ({"min_num_proc": 1, "cooldown_range": (5, 5)}, "1 <= MIN < MAX <= 3600, found"),
        ({"min_num_proc": 1, "cooldown_range": (5, 3601)}, "1 <= MIN < MAX <= 3600, found"),
        ({"min_num_proc": 1, "use_mpi": True}, "--mpi cannot start an elastic job"),
        ({"max_num_proc": 1}, "--max-np is for elastic jobs"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        horovod.run(elastic_ranks.rank_and_size, **options)


def parsed(folder, text, *words):
    (folder / "config.yaml").write_text(text)
    return parse_args(["--config-file", str(folder / "config.yaml"), *words, "true"])


def test_a_configuration_file_may_hold_the_options(tmp_path):
    text = """
elastic:
  min_np: 2
  max_np: 4
  host_discovery_script: ./find.sh
  slots_per_host: 3
  elastic_timeout: 60
  reset_limit: 7
  blacklist_cooldown_range: [10, 100]
  spares: 1
"""
    args = parsed(tmp_path, text, "--max-np", "5")
    found = args.min_num_proc, args.max_num_proc, args.host_discovery_script, args.slots
    assert found == (2, 5, "./find.sh", 3)
    assert (args.elastic_timeout, args.reset_limit, args.cooldown_range, args.spares) == (60, 7, [10, 100], 1)
    assert parsed(tmp_path, text, "-H", "localhost:2").host_discovery_script is None


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "elastic: {min_np: two}",
            "elastic.min_np in the configuration file must be an integer, found 'two'",
        ),
        (
            "elastic: {min_np: true}",
            "elastic.min_np in the configuration file must be an integer, found True",
        ),
        ("elastic: {min_np: 2, blacklist_cooldown_range: [1]}", "must be a list of two integers, found"),
        ("elastic: {min_np: 2, max_np: 1}", "--max-np 1 is less than -np 2"),
        ("elastic: {max_np: 2}", "--max-np is for elastic jobs"),
    ],
)
def test_wrong_values_in_the_file_are_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        parsed(tmp_path, text, "-np", "1") if "max_np: 2}" in text else parsed(tmp_path, text)


def test_unknown_keys_of_the_file_are_named(tmp_path, capsys):
    parsed(tmp_path, "elastic: {min_np: 1, minimum: 2}")
    assert "elastic.minimum is not known and was ignored" in capsys.readouterr().err
