"""What a process of an elastic job loads before it asks for a place in a world."""

import sys

import frontend_preloaded
from harness.launch import run_to_the_end
from horovod.common import _init_hooks


def test_modules_of_imported_frameworks_are_loaded_and_others_are_not(tmp_path, monkeypatch):
    for name in ("late_part_of_a", "late_part_of_b"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "framework_a", sys)
    table = {
        "framework_a": ("late_part_of_a", "late_part_that_is_missing"),
        "framework_b": ("late_part_of_b",),
    }
    monkeypatch.setattr(_init_hooks, "_PRELOADED", table)
    _init_hooks.preload_modules()
    assert "late_part_of_a" in sys.modules and "late_part_of_b" not in sys.modules
    monkeypatch.delitem(sys.modules, "late_part_of_a")


def test_init_loads_no_module_of_ours_after_that():
    text = run_to_the_end(2, frontend_preloaded.loaded_by_init, init=None)
    assert sorted(text.splitlines()) == [f"[{rank}]<stdout>:loaded late: []" for rank in range(2)]
