"""The template's README: its table of assumptions has every name that the backend and the simulator's headers use."""

import re

import pytest

import stub_backend

README = (stub_backend.FOLDER / "README.md").read_text()
ASSUMED = README.split("## What was assumed")[1]


def names_in(text):
    return set(re.findall(r"\b(?:eccl|tops)\w+", text))


def test_every_function_that_the_backend_uses_is_listed():
    used = (stub_backend.FOLDER / "csrc" / "eccl_functions.inc").read_text()
    used = set(re.findall(r"^ECCL_(?:OPTIONAL_)?FUNCTION\((\w+)\)$", used, re.MULTILINE))
    assert len(used) > 30
    assert used - names_in(ASSUMED) == set()


@pytest.mark.parametrize("header", ["eccl.h", "tops_runtime.h"])
def test_every_declaration_of_the_headers_is_listed(header):
    text = (stub_backend.SIMULATOR / "include" / header).read_text()
    declared = set(re.findall(r"\b((?:eccl|tops)\w+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
    declared |= set(re.findall(r"^} (\w+);", text, re.MULTILINE))
    assert len(declared) > 20
    assert declared - names_in(ASSUMED) == set()


def test_rows_are_whole_and_say_their_evidence():
    rows = [line for line in ASSUMED.splitlines() if line.startswith("|") and not line.startswith("|---")]
    assert len(rows) > 60
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3, row
        assert cells[2] == "evidence" or re.search(r"header|used|analogy|simulator", cells[2]), row


def test_the_support_matrix_names_what_is_emulated():
    matrix = README.split("support matrix: begin")[1].split("support matrix: end")[0]
    rows = {row.split("|")[1].strip(): row for row in matrix.splitlines() if row.startswith("| ")}
    assert "EMULATED" in rows["int64"] and "NATIVE" in rows["int64"]
    assert "EMULATED" not in rows["float32"]
    assert len(rows) >= 15
