"""``hvd plugin new``: the template under other names, and refusals before anything is written.

That what it writes builds and works is tested in tests/system/packaging/test_third_party_flow.py.
"""

import ast
import re

import pytest

from hvd_core._cli import main, plugin_new
from hvd_core._cli.plugin_new import Names

TEMPLATE = plugin_new.find_template()
ACME = Names("acme", "acme", "npu", "acmert")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ecclAllReduce(topsStream_t)", "acmeAllReduce(acmertStream_t)"),
        ("hvd_backend_eccl_stub, hvd-backend-eccl-stub", "hvd_backend_acme, hvd-backend-acme"),
        ("HOROVOD_BACKEND_ECCL_STUB_LIBRARY", "HOROVOD_BACKEND_ACME_LIBRARY"),
        ("class EcclComm, TestEcclStub, GcuDevice", "class AcmeComm, TestAcme, NpuDevice"),
        ("libeccl_sim.so, libeccl.so.3", "libacme_sim.so, libacme.so.3"),
        ("ECCL_FIELD(TOPS(x)) <eccl.h>", "ACME_FIELD(ACMERT(x)) <acme.h>"),
        ("struct itopsStream_t* load_eccl();", "struct iacmertStream_t* load_acme();"),
        ("a gcu's; gcuArchName", "a npu's; npuArchName"),
        ("it stops at desktops; the tops", "it stops at desktops; the acmert"),
    ],
)  # fmt: skip
def test_names_are_replaced_as_they_are_spelled(before, after):
    assert plugin_new.Renaming(TEMPLATE.names, ACME).text(before) == after


def test_cases_become_what_is_left_to_do():
    text = "  // Passes: L2.allgather, L2.allgatherv\n  void f();\n"
    assert plugin_new.Renaming(TEMPLATE.names, ACME).text(text).splitlines() == [
        "  // TO" + "DO: replace with your library's call.",
        "  // hvd plugin check acme --case L2.allgather --case L2.allgatherv shows this works.",
        "  void f();",
    ]


def new(hvd, folder, *arguments, code=0):
    return hvd.run("plugin", "new", *arguments, code=code, cwd=folder)


def texts(project):
    return {
        path.relative_to(project).as_posix(): path.read_text()
        for path in project.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["acme", "big_wire", "npu"])
def test_project_has_nothing_of_the_template_s_names(hvd, tmp_path, name):
    new(hvd, tmp_path, name, "--device", "npu")
    project = texts(tmp_path / f"hvd-backend-{name.replace('_', '-')}")
    for file, text in project.items():
        assert re.search(r"eccl|gcu|(?<![a-z])tops", f"{file}\n{text}", re.IGNORECASE) is None, file
        if file.endswith(".py"):
            ast.parse(text)
    assert f'{name} = "hvd_backend_{name}:describe"' in project["pyproject.toml"]
    assert (
        f"HVD_BACKEND({name}, NpuDevice, {''.join(p.title() for p in name.split('_'))}Comm)"
        in project["csrc/backend.cc"]
    )
    assert {
        "README.md",
        ".gitignore",
        "simulator/CMakeLists.txt",
        f"csrc/{name}_comm.cc",
        "csrc/npu_device.cc",
    } <= project.keys()
    assert "template.toml" not in project
    assert "torch" not in " ".join(project)


def test_the_names_of_the_template_are_names_as_good_as_any(hvd, tmp_path):
    new(hvd, tmp_path, "eccl", "--device", "gcu", "--runtime", "tops")
    project = texts(tmp_path / "hvd-backend-eccl")
    assert project["simulator/include/eccl.h"] == (TEMPLATE.simulator / "include/eccl.h").read_text()
    assert 'eccl = "hvd_backend_eccl:describe"' in project["pyproject.toml"]
    assert "stub" not in project["csrc/backend.cc"]


def test_choices_change_what_they_are_about(hvd, tmp_path):
    new(hvd, tmp_path, "acme", "--device", "npu", "--library", "libacme.so.2", "--id-bytes", "4108")
    project = texts(tmp_path / "hvd-backend-acme")
    assert 'std::string default_library() { return "libacme.so.2"; }' in project["csrc/acme_api.cc"]
    assert 'or "libacme.so.2"' in project["src/hvd_backend_acme/__init__.py"]
    assert "#define ACME_UNIQUE_ID_BYTES 4108\n" in project["simulator/include/acme.h"]
    assert "libacme.so.2" in project["README.md"]
    new(hvd, tmp_path, "acme", "--device", "npu", "--store", "--directory", "other")
    project = texts(tmp_path / "other")
    assert "id_create" not in project["csrc/acme_comm.h"] + project["csrc/acme_comm.cc"]
    assert 'init.store.get("id"' in project["csrc/acme_comm.cc"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Acme", "--device", "npu"], "'Acme' cannot be used: a backend's name is 1 to 32 characters"),
        (["2fast", "--device", "npu"], "the first a letter"),
        (["a-b", "--device", "npu"], "a-z, 0-9 and '_'"),
        (["a" * 33, "--device", "npu"], "1 to 32 characters"),
        (["shm", "--device", "npu"], "a backend of this name is installed (embedded)"),
        (["spec", "--device", "npu"], "hvd-core uses this name itself"),
        (["class", "--device", "npu"], "a word of C++ or Python"),
        (["acme", "--device", "cpu", "--store"], "it is about devices, and --device cpu is host memory"),
        (["acme", "--device", "np u"], "a device type is"),
        (
            ["acme", "--device", "npu", "--runtime", "acme"],
            "the library's functions have this prefix already",
        ),
        (["acme", "--device", "npu", "--library", "acme.dll"], "must be a soname such as libacme.so.2"),
        (["acme", "--device", "npu", "--id-bytes", "16"], "between 128"),
        (["acme", "--device", "npu", "--id-bytes", "256", "--store"], "not allowed with"),
        (["acme"], "the following arguments are required: --device"),
        (["--device", "npu"], "the following arguments are required: NAME"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main(["plugin", "new", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_name_of_an_installed_wheel_is_refused(hvd, tmp_path):
    hvd.wheel("acme")
    new(hvd, tmp_path, "acme", "--device", "npu", code=2)
    assert "a backend of this name is installed (hvd-backend-acme 1.5)" in hvd.errors


def test_nothing_is_overwritten(hvd, tmp_path):
    kept = tmp_path / "hvd-backend-acme" / "README.md"
    kept.parent.mkdir()
    kept.write_text("mine")
    new(hvd, tmp_path, "acme", "--device", "npu", code=2)
    assert "exists already; nothing was written" in hvd.errors
    assert (kept.read_text(), len(list(kept.parent.iterdir()))) == ("mine", 1)


def test_edit_that_no_longer_fits_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("one two")
    (tmp_path / "template.toml").write_text(
        '[simulator]\nsource = "x"\nfolder = "y"\n'
        '[names]\nbackend = "x_s"\nvendor = "x"\ndevice = "d"\nruntime = "r"\n[private]\nfiles = []\n'
        '[[edits]]\nfile = "a.txt"\nold = "three"\nnew = "four"\n'
    )
    with pytest.raises(ValueError, match=r"template.toml: a.txt has 0 of: three"):
        plugin_new.write_project(plugin_new.read_template(tmp_path), ACME, tmp_path / "out", {}, {})
    assert not (tmp_path / "out").exists()


def test_cases_that_the_template_names_are_cases_of_the_kit():
    from hvd_core.conformance._cases import all_cases

    known = {case.name for case in all_cases([])}
    for path, source in TEMPLATE.files().items():
        for line in source.read_text().splitlines():
            if "Passes: " in line:
                named = set(re.findall(r"L\d\.\w+", line))
                assert named, f"{path}: {line}"
                assert named <= known, f"{path}: {named - known}"
