"""The forbidden arrows of docs/architecture.md, and the house rules a machine can check."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import architecture_rules as rules
import import_circles as circles
from programs_in_strings import programs_in_strings

ROOT = Path(__file__).resolve().parents[3]
OURS = [ROOT / name for name in ("hvd_core", "horovod", "backends", "examples", "benchmarks", "tests")]

# The API of each framework.
LAYERS = [f"horovod.{name}" for name in rules.FRAMEWORKS]

# The contract's comments give examples of the strings a plugin may pass; real names say it best.
WORDS_IN_CONTRACT = {"include/hvd/backend_abi.h": {"cuda", "gcu", "eccl"}}
# Horovod's variables HOROVOD_GLOO_TIMEOUT_SECONDS and HOROVOD_GLOO_IFACE keep their names, which were never about that
# library alone.
WORDS_IN_SETTINGS = {
    "_config/settings.py": {"gloo"},
    "_bootstrap/world.py": {"gloo"},
    "_bootstrap/rendezvous/rank0_store.py": {"gloo"},
}

# Packages of others that a framework's folder, or one below it, is made for: the estimators of Spark train with one each.
OF_ITS_OWN = {
    "spark": {"pyspark"},
    "spark/torch": {"torch", "horovod.torch"},
    "spark/keras": {"keras", "tensorflow", "horovod.keras", "horovod.tensorflow"},
}

# The folders of the engine from the bottom to the top: {folder: folders whose headers it may include}.
ENGINE_ORDER = {
    "base": set(),
    "recorder": {"base"},
    "plugins": {"base"},
    "rendezvous": {"base", "plugins"},
    "agreement": {"base", "recorder", "rendezvous"},
    "calls": {"base", "recorder", "plugins", "agreement"},
    "dataplane": {"base", "recorder", "plugins", "agreement", "calls"},
    "watch": {"base", "plugins", "agreement", "calls"},
    "core": {"base", "recorder", "plugins", "rendezvous", "agreement", "calls", "dataplane", "watch"},
    "frontend": {"base", "calls", "core"},
    "python": {
        "base",
        "recorder",
        "plugins",
        "rendezvous",
        "agreement",
        "calls",
        "watch",
        "core",
        "frontend",
    },
}


# Programs may stand in strings here: {file below tests: the reason}.
A_PLUGIN = "the test installs it as the module of a plugin, most of them broken"
PROGRAMS_IN_STRINGS = {
    "system/architecture/test_architecture.py": "the rules are to find its faults",
    "hvd_core/cli/command_line.py": A_PLUGIN,
    "hvd_core/cli/plugin_faults.py": A_PLUGIN,
    "hvd_core/cli/test_cli_list.py": A_PLUGIN,
    "hvd_core/backends/discovery/plugin_sites.py": A_PLUGIN,
    "hvd_core/backends/discovery/test_discovery_describe.py": A_PLUGIN,
    "hvd_core/backends/discovery/test_discovery_jobs.py": A_PLUGIN,
    "system/notebook/test_notebook.py": "it is the text of a cell",
    "hvd_core/reports/announced.py": A_PLUGIN,
    "hvd_core/backends/selection/choosing_job.py": A_PLUGIN,
}


def check(violations):
    assert not violations, "\n" + "\n".join(violations)


def present(pattern):
    return [path for path in sorted(ROOT.glob(pattern)) if path.is_dir() and any(path.iterdir())]


def test_core_names_no_framework_and_no_vendor():
    check(rules.foreign_words(ROOT / "hvd_core", WORDS_IN_CONTRACT | WORDS_IN_SETTINGS))


def test_core_imports_no_framework_and_not_the_api_above_it():
    check(rules.forbidden_imports(ROOT, "hvd_core", (*rules.FRAMEWORK_PACKAGES, "horovod")))


def test_backends_include_only_the_contract_and_themselves():
    backends = present("backends/*")
    assert backends, "no backend found: has the folder moved?"
    for backend in backends:
        # What the embedded backends for host memory share with each other, and with the engine. No other backend may.
        shared = ("host_kernels", "wire_security") if backend.name in ("shm", "tcp") else ()
        check(rules.backend_includes(backend, shared))


def test_only_the_binding_knows_pybind11():
    check(rules.binding_includes(ROOT / "hvd_core" / "engine"))


@pytest.mark.parametrize(
    "framework", [path.name for path in present("horovod/*") if path.name in rules.FRAMEWORKS]
)
def test_framework_knows_no_other_framework(framework):
    others = [name for name in rules.FRAMEWORKS if name != framework]
    packages = [name for name in rules.FRAMEWORK_PACKAGES if name != framework]
    forbidden = {*packages, *(f"horovod.{name}" for name in others)} - OF_ITS_OWN.get(framework, set())
    for path in rules.sources(ROOT / "horovod" / framework, ".py"):
        folder = path.parent.relative_to(ROOT / "horovod").as_posix()
        check(rules.forbidden_imports_of(path, ROOT, tuple(forbidden - OF_ITS_OWN.get(folder, set()))))


def test_folders_of_the_engine_keep_their_order():
    check(circles.wrong_arrows(ROOT / "hvd_core" / "engine", ENGINE_ORDER, {}))


def test_no_module_imports_itself_through_others():
    assert circles.circles(circles.module_arrows(ROOT, ["hvd_core", "horovod"])) == []


def test_no_folder_imports_itself_through_others():
    assert circles.circles(circles.folder_arrows(ROOT, ["hvd_core", "horovod"])) == []


def test_keras_knows_no_framework():
    # Each framework's folder has the code for Keras on it, which horovod/_keras/backends.py loads by name.
    allowed = {"keras2_optimizer.py": ("tensorflow",)}  # Keras 2 runs on TensorFlow only
    of_frameworks = [name for name in (*rules.FRAMEWORK_PACKAGES, *LAYERS) if name != "keras"]
    for path in rules.sources(ROOT / "horovod" / "_keras", ".py"):
        forbidden = [name for name in of_frameworks if name not in allowed.get(path.name, ())]
        check(rules.forbidden_imports_of(path, ROOT, tuple(forbidden), top_level_only=True))


@pytest.mark.parametrize("folder", ["horovod/common", "horovod/runner", "horovod/_runner"])
def test_common_parts_import_no_framework(folder):
    forbidden = (*rules.FRAMEWORK_PACKAGES, *(f"horovod.{name}" for name in rules.FRAMEWORKS))
    check(rules.forbidden_imports(ROOT, folder, forbidden, top_level_only=True))


def test_importing_horovod_loads_no_framework():
    program = str(Path(__file__).with_name("loaded_frameworks.py"))
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]", f"loaded by `import horovod`: {result.stdout}"


def test_files_open_with_their_purpose():
    check(rules.without_purpose(OURS))


def test_no_notes_to_self_are_left():
    check(rules.leftovers(OURS))


def test_test_modules_do_not_hide_each_other_or_a_framework():
    # pytest puts a test folder on sys.path, so two helpers of one name would hide each other; of a folder
    # that is a package it puts the parent there, where a package tests/horovod/torch would hide PyTorch.
    folders = sorted({path.parent for path in rules.sources(ROOT / "tests", ".py")})
    packages = [folder for folder in folders if (folder / "__init__.py").exists()]
    check(
        [f"{folder}: no __init__.py here" for folder in packages if folder.name in rules.FRAMEWORK_PACKAGES]
    )
    loose = [path.name for folder in folders if folder not in packages for path in folder.glob("*.py")]
    names = Counter(name for name in loose if name != "conftest.py")
    check([f"{count} files under tests/ are called {name}" for name, count in names.items() if count > 1])


def test_tests_that_do_not_apply_are_skipped():
    # By @needs of harness.rank, which says why, or pytest.skip().
    check(rules.ways_to_pass_unseen(ROOT / "tests"))


def test_programs_of_tests_are_files():
    tests = ROOT / "tests"
    found = {
        path.relative_to(tests).as_posix(): numbers
        for path in rules.sources(tests, ".py")
        if (numbers := programs_in_strings(path))
    }
    check(
        [
            f"tests/{name}:{number}: a Python program stands in this string; make it a function of a module, and start "
            "it by program_words() of tests/launchers.py"
            for name in sorted(found.keys() - PROGRAMS_IN_STRINGS.keys())
            for number in found[name]
        ]
    )
    unused = sorted(PROGRAMS_IN_STRINGS.keys() - found.keys())
    check([f"tests/{name}: no program stands in a string; remove the exception" for name in unused])


class TestTheRulesThemselves:
    """Each rule finds the fault that it was made for."""

    def test_foreign_words(self, tmp_path):
        (tmp_path / "a.cc").write_text(
            "// a pleasant hipster, an arraymaker\nint cuda_stream;\n// uses NCCL here\n"
        )
        found = rules.foreign_words(tmp_path, {})
        assert [entry.split("names ")[1].split(":")[0] for entry in found] == ["'cuda'", "'NCCL'"]
        assert len(rules.foreign_words(tmp_path, {"a.cc": {"cuda"}})) == 1

    def test_backend_includes(self, tmp_path):
        (tmp_path / "own.h").write_text("")
        (tmp_path / "a.cc").write_text(
            '#include <hvd/backend_abi.h>\n#include <vector>\n#include "own.h"\n'
            '#include "engine/calls/request.h"\n#include <pybind11/pybind11.h>\n#include "../other/own.h"\n'
        )
        assert [entry.split(":")[1] for entry in rules.backend_includes(tmp_path)] == ["4", "5", "6"]
        (tmp_path / "a.cc").write_text('#include "host_kernels/kernels.h"\n#include "other/kernels.h"\n')
        assert [entry.split(":")[1] for entry in rules.backend_includes(tmp_path)] == ["1", "2"]
        found = rules.backend_includes(tmp_path, ("host_kernels",))
        assert [entry.split(":")[1] for entry in found] == ["2"]

    def test_binding_includes(self, tmp_path):
        for folder in ("python", "calls"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a.cc").write_text("#include <pybind11/pybind11.h>\n#include <vector>\n")
        found = rules.binding_includes(tmp_path)
        assert len(found) == 1
        assert "calls" in found[0]

    def test_imports(self, tmp_path):
        folder = tmp_path / "horovod" / "torch"
        folder.mkdir(parents=True)
        (folder / "a.py").write_text(
            "import torch\nfrom ..common import util\nfrom .. import keras\nimport tensorflow.keras\n"
            "def f():\n    from horovod.tensorflow import x\n"
        )
        forbidden = ("tensorflow", "horovod.keras", "horovod.tensorflow")
        found = rules.forbidden_imports(tmp_path, "horovod/torch", forbidden)
        assert [entry.split(":")[1] for entry in found] == ["3", "4", "6"]
        assert len(rules.forbidden_imports(tmp_path, "horovod/torch", forbidden, top_level_only=True)) == 2

    def test_module_circles(self, tmp_path):
        for package in ("a", "b"):
            (tmp_path / package).mkdir()
        (tmp_path / "a" / "__init__.py").write_text("from a import one\n")
        (tmp_path / "a" / "one.py").write_text("def f():\n    from b.two import g\n")
        (tmp_path / "b" / "two.py").write_text("from a import one as first\nimport a.three\n")
        (tmp_path / "a" / "three.py").write_text(
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import two\nfrom a.missing import x\n"
        )
        arrows = circles.module_arrows(tmp_path, ["a", "b"])
        assert arrows == {"a": {"a.one"}, "a.one": {"b.two"}, "b.two": {"a.one", "a.three"}, "a.three": set()}
        assert circles.circles(arrows) == [["a.one", "b.two"]]

    def test_folder_circles(self, tmp_path):
        for folder in ("a/x", "a/y"):
            (tmp_path / folder).mkdir(parents=True)
        (tmp_path / "a" / "x" / "one.py").write_text("from a.y import two\nimport a.top\n")
        (tmp_path / "a" / "y" / "two.py").write_text("def f():\n    from a.x import other\n")
        (tmp_path / "a" / "x" / "other.py").write_text("")
        (tmp_path / "a" / "top.py").write_text("from a.x import other\n")
        arrows = circles.folder_arrows(tmp_path, ["a"])
        assert arrows == {"a.x": {"a.y"}, "a.y": {"a.x"}}
        assert circles.circles(arrows) == [["a.x", "a.y"]]

    def test_arrows_inside_the_engine(self, tmp_path):
        for folder in ("low", "high", "new"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a.h").write_text("#include <vector>\n")
        (tmp_path / "low" / "b.cc").write_text('#include "engine/low/a.h"\n#include "engine/high/a.h"\n')
        (tmp_path / "high" / "b.cc").write_text('#include "engine/low/a.h"\n#include "a.h"\n')
        (tmp_path / "top.cc").write_text('#include "engine/high/a.h"\n')
        order = {"low": set(), "high": {"low"}, "engine": {"low", "high"}}
        found = circles.wrong_arrows(tmp_path, order, {})
        assert [entry.split(":")[1] for entry in found] == ["2", "1"]
        assert "no place" in found[1]
        assert len(circles.wrong_arrows(tmp_path, order, {"low/b.cc": {"high"}})) == 1

    def test_purpose_and_leftovers(self, tmp_path):
        (tmp_path / "good.py").write_text('#!/usr/bin/env python\n"""What for."""\n')
        (tmp_path / "empty.py").write_text("")
        (tmp_path / "bad.h").write_text("#pragma once\n// TO" + "DO: later\n")
        assert len(rules.without_purpose([tmp_path])) == 1
        assert len(rules.leftovers([tmp_path])) == 1

    def test_ways_to_pass_unseen(self, tmp_path):
        (tmp_path / "ranks_a.py").write_text(
            "def check_a():\n    if SIZE == 1:\n        return\n    assert f()\n"
            "def check_b():\n    'What.'\n    if SIZE > 1:\n        assert f()\n"
            "def check_c():\n    def g():\n        return 1\n"
            "    if SIZE > 1:\n        assert g()\n    else:\n        f()\n"
            "def f():\n    return 1\n"
        )
        (tmp_path / "test_b.py").write_text(
            "class TestB:\n    def test_b(self):\n        for _ in range(3):\n            return\n        assert f()\n"
        )
        (tmp_path / "support.py").write_text("def check_d():\n    return 1\n")
        found = [entry.rpartition("/")[2] for entry in rules.ways_to_pass_unseen(tmp_path)]
        assert [entry.partition(" may")[0] for entry in found] == [
            *("ranks_a.py:3: check_a", "ranks_a.py:7: check_b", "test_b.py:4: test_b")
        ]

    def test_programs_in_strings(self, tmp_path):
        program, file = (
            "\nimport os\nfor name in os.environ:\n    print(name)\nprint({name})\n",
            tmp_path / "a.py",
        )
        file.write_text(f'A = """{program}"""\ndef f(x):\n    return f"""{program}"""\n')
        assert programs_in_strings(file) == [1, 8]
        indented = program.replace("\n", "\n    ")
        file.write_text(f'\nA = """{indented}"""\n')
        assert programs_in_strings(file) == [2]
        file.write_text(f'A = (1, ("b", """{program}"""))\nB = A if 0 in {{"c", """{program}"""}} else 0\n')
        assert programs_in_strings(file) == [1, 7]
        others = ("import os; print(os.environ)\nprint(1)\nprint(2)\n", "text\nto import\nof\nlines\n")
        file.write_text("\n".join(f"A = {text!r}" for text in (*others, "a = 1\n" * 5)))
        assert programs_in_strings(file) == []
