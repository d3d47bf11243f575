"""The frozen layout: what 1.0 fixed stays where it is, in C and in C++, and no struct has hidden padding."""

from __future__ import annotations

import re

from abi_toolchain import HERE, PACKAGE

HEADER = PACKAGE / "include" / "hvd" / "backend_abi.h"
TABLE = HERE / "layout_1_0.txt"


def frozen() -> dict[str, list[tuple[str, int, int]]]:
    """Struct -> (field, offset, size) as recorded; the field 'sizeof' closes a struct."""
    structs: dict[str, list[tuple[str, int, int]]] = {}
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            struct, field, offset, size = line.split()
            structs.setdefault(struct, []).append((field, int(offset), int(size)))
    return structs


def numbers() -> dict[str, int]:
    """The enumerators' numbers as recorded."""
    pairs = re.findall(r"^# number (\w+) (\d+)$", TABLE.read_text(), re.M)
    return {name: int(value) for name, value in pairs}


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
                # Later minors append, so a struct may be longer than it was in 1.0.
                lines.append(f'_Static_assert(sizeof({struct}) >= {size}, "{struct} has shrunk");')
                continue
            member = f"(({struct}*)0)->{field}"
            lines.append(
                f'_Static_assert(offsetof({struct}, {field}) == {offset}, "{struct}.{field} has moved");'
            )
            lines.append(f'_Static_assert(sizeof({member}) == {size}, "{struct}.{field} has another size");')
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
    toolchain.must(toolchain.cc, "-std=c11", *strict, source)
    toolchain.must(toolchain.cxx, "-std=c++17", *strict, "-x", "c++", source)


def test_layout_record_is_complete():
    for struct, fields in frozen().items():
        end = 0
        for field, offset, size in fields[:-1]:
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
