"""The frozen layout: the fields of 1.0 keep their places, in C and in C++, and no struct has hidden padding."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from abi_toolchain import HERE, PACKAGE
from hvd_core.types import COLLECTIVES, DTYPES, NATIVE, REDUCTIONS, UNSERVED

HEADER = PACKAGE / "include" / "hvd" / "backend_abi.h"
HOW = "\n\nThe backend ABI only grows at the end: hvd_core/include/hvd/CHANGELOG-ABI.md says how to add a minor."


# sha256 of the records of released minors.
FROZEN = {
    "layout_1_0.txt": "150705898ce70a7f654b686671bd72431bb6cdf2545f3b6597fce851e3b868f8",
    "layout_1_1.txt": "9c25808d4b63ffeb270dbec1cc9704444b395538ae98505b01df2008acff52d9",
}


def records() -> list[Path]:
    """A file for each minor, in order."""
    minor = int(re.search(r"#define HVD_ABI_MINOR (\d+)", HEADER.read_text()).group(1))
    return [HERE / f"layout_1_{n}.txt" for n in range(minor + 1)]


def frozen() -> dict[str, list[tuple[str, int, int]]]:
    """Struct -> (field, offset, size) as recorded; the field 'sizeof' ends a minor's record of a struct."""
    structs: dict[str, list[tuple[str, int, int]]] = {}
    for record in records():
        for line in record.read_text().splitlines():
            if line and not line.startswith("#"):
                struct, field, offset, size = line.split()
                structs.setdefault(struct, []).append((field, int(offset), int(size)))
    return structs


def numbers() -> dict[str, int]:
    """The enumerators' numbers as recorded. Only counts change from one minor to the next."""
    found: dict[str, int] = {}
    for record in records():
        for name, value in re.findall(r"^# number (\w+) (\d+)$", record.read_text(), re.M):
            assert name not in found or name.endswith("_COUNT"), f"{record.name} gives {name} another number"
            found[name] = int(value)
    return found


def test_layout_abi_rule_nothing_moves(toolchain, tmp_path):
    lines = [
        "#include <hvd/backend_abi.h>",
        "#ifdef __cplusplus",
        "#define _Static_assert static_assert",
        "#endif",
    ]
    for struct, fields in frozen().items():
        for field, offset, size in fields:
            if field == "sizeof":
                continue
            member = f"(({struct}*)0)->{field}"
            lines.append(
                f'_Static_assert(offsetof({struct}, {field}) == {offset}, "{struct}.{field} has moved");'
            )
            lines.append(f'_Static_assert(sizeof({member}) == {size}, "{struct}.{field} has another size");')
        end = fields[-1][2]
        lines.append(
            f'_Static_assert(sizeof({struct}) == {end}, "{struct} has a field that is not recorded");'
        )
    for name, value in numbers().items():
        lines.append(f'_Static_assert((long long)({name}) == {value}, "{name} has another number");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    strict = [
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-Wpadded",
        f"-I{PACKAGE / 'include'}",
        "-fsyntax-only",
    ]
    for compiler in ([toolchain.cc, "-std=c11"], [toolchain.cxx, "-std=c++17"]):
        done = toolchain.run(*compiler, *strict, "-x", "c" if "11" in compiler[1] else "c++", source)
        assert done.returncode == 0, done.stderr + HOW


def test_layout_records_of_earlier_minors_are_never_edited():
    for name, digest in FROZEN.items():
        found = hashlib.sha256((HERE / name).read_bytes()).hexdigest()
        assert found == digest, f"{name} is the record of a released ABI, and has been edited" + HOW


def test_layout_record_is_complete():
    for struct, fields in frozen().items():
        end = 0
        for field, offset, size in fields:
            if field == "sizeof":
                assert size == end, f"{struct}: a hole in the record"
                continue
            assert offset == end, f"{struct}.{field}: a hole in the record"
            end += size
        assert fields[-1] == ("sizeof", 0, end), struct
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    assert set(re.findall(r"typedef struct (hvd_\w+) \{", text)) == set(frozen())
    declared = set(re.findall(r"\b(HVD_[A-Z0-9_]+)(?: =|,|\s*\})", text)) - {"HVD_OK"}
    assert declared <= set(numbers()) | {"HVD_ABI_MAJOR", "HVD_ABI_MINOR", "HVD_HAS"}


def test_layout_hidden_padding_would_be_seen(toolchain, tmp_path):
    header = tmp_path / "hvd" / "backend_abi.h"
    header.parent.mkdir()
    header.write_text(HEADER.read_text().replace("uint64_t seq;", "uint64_t seq; uint32_t small;", 1))
    source = tmp_path / "padded.c"
    source.write_text("#include <hvd/backend_abi.h>\n")
    done = toolchain.run(
        toolchain.cc, "-std=c11", "-Wpadded", "-Werror", f"-I{tmp_path}", "-fsyntax-only", source
    )
    assert done.returncode != 0 and "padding" in done.stderr


def test_python_has_the_header_s_numbers():
    enumerators = {n: int(v) for n, v in re.findall(r"\bHVD_(\w+) = (\d+)", HEADER.read_text())}
    for names, count in ((DTYPES, "DTYPE_COUNT"), (REDUCTIONS, "REDOP_COUNT"), (COLLECTIVES, "COLL_COUNT")):
        assert [enumerators[name.upper()] for name in names] == list(range(enumerators[count]))
    assert (enumerators["UNSERVED"], enumerators["NATIVE"]) == (UNSERVED, NATIVE)
