"""The slot list agrees with the structs, the changelog and the document generated from it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from abi_toolchain import PACKAGE
from generated_tables import assert_up_to_date
from hvd_core.backends import _slots as mirror

HVD = PACKAGE / "include" / "hvd"
HEADER = (HVD / "backend_abi.h").read_text()


def test_slots_are_those_of_the_structs_in_order():
    code = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    for table in ("host", "device", "comm", "backend"):
        body = re.search(rf"typedef struct hvd_{table}_api \{{(.*?)\}} hvd_{table}_api;", code, re.S).group(1)
        declared = re.findall(r"\(\*(\w+)\)\(", body)
        assert declared == [s.name for s in mirror.slots() if s.table == table]


def test_slots_later_minors_never_require():
    # A plugin of an earlier minor cannot have them, and it must go on working.
    assert [s for s in mirror.slots() if s.since_minor > 0 and s.need == "REQUIRED"] == []


def test_slots_groups_have_more_than_one_member():
    sizes = Counter((s.table, s.group) for s in mirror.slots() if s.group)
    assert min(sizes.values()) > 1


def test_slots_say_what_they_do():
    assert [s.name for s in mirror.slots() if not s.says.endswith((".", "?"))] == []


def test_changelog_and_slots_change_together():
    log = (HVD / "CHANGELOG-ABI.md").read_text()
    told = re.findall(r"^## 1\.(\d+).*?\n(.*?)(?=^## |\Z)", log, re.M | re.S)
    minor = int(re.search(r"#define HVD_ABI_MINOR (\d+)", HEADER).group(1))
    assert sorted(int(m) for m, _ in told) == list(range(minor + 1))
    for number, text in told:
        counts = {t: int(n) for t, n in re.findall(r"^- slots in (\w+): (\d+)$", text, re.M)}
        assert counts == dict(Counter(s.table for s in mirror.slots() if s.since_minor == int(number)))


def test_document_is_generated_from_the_list():
    assert_up_to_date("backend-abi.md")


def test_mirror_refuses_what_it_cannot_read(tmp_path):
    broken = tmp_path / "slots.inc"
    broken.write_text("HVD_SLOT(comm, extra, 1, PERHAPS)\n")
    with pytest.raises(ValueError, match=r"backend_slots.inc:1: cannot read"):
        mirror.slots(broken)
