"""The header for native front ends: plain C and C++, laid out as native_table.py says it is."""

import ctypes
import os
import shutil
import subprocess

import pytest

import hvd_core
import native_table

STRUCTS = {
    "hvd_fe_tensor": native_table.Tensor,
    "hvd_fe_result": native_table.Result,
    "hvd_fe_call": native_table.Call,
    "hvd_fe_table": native_table.RawTable,
}
# Words that Python has in another place.
IN_C = {"inputs": "in", "outputs": "out"}
NUMBERS = {
    **{
        f"HVD_FE_{name}": getattr(native_table, name)
        for name in ("ALLREDUCE", "ALLGATHER", "BROADCAST", "BARRIER")
    },
    **{
        f"HVD_FE_{name}": getattr(native_table, name)
        for name in ("ALLTOALL", "REDUCESCATTER", "JOIN", "ADASUM")
    },
    **{
        f"HVD_FE_{name}": getattr(native_table, name)
        for name in ("OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION")
    },
    **{f"HVD_FE_{name}": getattr(native_table, name) for name in ("ABORTED", "UNKNOWN")},
}


@pytest.mark.parametrize("language", ["c", "c++"])
def test_frontend_layout(language, tmp_path):
    compiler = os.environ.get("CC" if language == "c" else "CXX") or shutil.which(
        "cc" if language == "c" else "c++"
    )
    if not compiler:
        pytest.skip(f"there is no compiler for {language}")
    lines = ["#include <hvd/frontend_abi.h>", "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    expected = []

    def says(text: str, number: int) -> None:
        lines.append(f'  printf("%s %lld\\n", "{text}", (long long)({text}));')
        expected.append(f"{text} {number}")

    for name, struct in STRUCTS.items():
        for field, *_ in struct._fields_:
            in_c = IN_C.get(field, field) if struct is native_table.Call else field
            says(f"offsetof({name}, {in_c})", getattr(struct, field).offset)
        says(f"sizeof({name})", ctypes.sizeof(struct))
    for name, number in NUMBERS.items():
        says(name, number)
    source, program = tmp_path / f"layout.{'c' if language == 'c' else 'cc'}", tmp_path / "layout"
    source.write_text("\n".join([*lines, "  return 0;", "}", ""]))
    strict = ["-std=c11" if language == "c" else "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [compiler, *strict, f"-I{hvd_core.get_include()}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=60)
    said = subprocess.run([program], check=True, capture_output=True, text=True, timeout=20).stdout
    assert said.splitlines() == expected
