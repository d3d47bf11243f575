"""``hvd plugin show``: what a backend is and serves, from its own tables."""


def test_facts_come_from_the_library(hvd):
    shown = hvd.json("plugin", "show", "shm")
    assert shown["facts"]["tag"] == "SHM"
    assert "ONE_HOST" in shown["facts"]["caps"]
    assert shown["facts"]["slots"]["comm"]["collective"] is True
    assert shown["facts"]["slots"]["comm"]["split"] is False
    assert shown["descriptor"]["automatic"] is True
    assert shown["probe"]["available"] is True


def test_served_operations_are_the_library_s_answers(hvd):
    shown = hvd.json("plugin", "show", "tcp")
    support = {(row["collective"], row["dtype"], row["op"]): row["support"] for row in shown["served"]}
    assert support["allreduce", "float32", "sum"] == "NATIVE"
    assert support["allgather", "float8_e5m2", ""] == "NATIVE"
    assert support["allreduce", "float8_e5m2", "sum"] == "-"
    assert support["allreduce", "bool", "avg"] == "-"
    assert support["barrier", "", ""] == "NATIVE"
    assert len(support) == 3 * 15 * 5 + 3 * 15 + 1


def test_options_have_their_value_and_who_set_it(hvd):
    hvd.variables["HOROVOD_BACKEND_SHM_SPIN_US"] = "7"
    options = {option["name"]: option for option in hvd.json("plugin", "show", "shm")["options"]}
    assert (options["spin_us"]["value"], options["spin_us"]["source"]) == ("7", "HOROVOD_BACKEND_SHM_SPIN_US")
    assert (options["isa"]["value"], options["isa"]["source"]) == ("auto", "default")
    text = hvd.run("plugin", "show", "shm")
    assert "HOROVOD_BACKEND_SHM_SPIN_US" in text
    assert "group_begin" in text


def test_unknown_name_says_what_there_is(hvd):
    hvd.run("plugin", "show", "shn", code=2)
    assert "horovod: backend 'shn' (from hvd plugin show) is not installed. Did you mean 'shm'?" in hvd.errors
    assert "installed: shm, tcp" in hvd.errors


def test_one_that_cannot_work_here_is_shown_as_far_as_it_goes(hvd):
    hvd.wheel("away", answer='Unavailable("no widget is plugged in", "plug one in")')
    shown = hvd.json("plugin", "show", "away", code=1)
    assert shown["probe"] == {"available": False, "reason": "no widget is plugged in", "fix": "plug one in"}
    assert shown["facts"] is None
    assert shown["descriptor"]["requires"] == ["libwidget.so >= 2"]
    text = hvd.run("plugin", "show", "away", code=1)
    assert "unavailable: no widget is plugged in" in text
    assert "/nowhere/libx.so" in text


def test_broken_description_is_an_error_that_names_the_wheel(hvd):
    hvd.wheel("broken", code="import widget_framework_that_is_not_there\n")
    hvd.run("plugin", "show", "broken", code=2)
    assert "hvd-backend-broken 1.5" in hvd.errors
    assert "widget_framework_that_is_not_there" in hvd.errors
    assert "Traceback" not in hvd.errors
