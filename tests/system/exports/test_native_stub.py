"""hvd_core/_core.pyi against the native module that is loaded."""

import difflib
import sys
from pathlib import Path

import hvd_core._core

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools"))
import native_stub  # noqa: E402


def listed(stub: str) -> list[str]:
    return [
        f"{name}({', '.join(parameters)})"
        for name, parameters in sorted(native_stub.signatures(stub).items())
    ]


def test_names_and_parameters_of_the_stub_are_those_of_the_module():
    stub = listed(native_stub.STUB.read_text(encoding="utf-8"))
    module = listed(native_stub.stub_of(hvd_core._core))
    changes = list(difflib.unified_diff(stub, module, "stub", "module", lineterm="", n=0))
    assert not changes, "run tools/native_stub.py:\n" + "\n".join(changes)


def test_the_signature_of_a_method_is_compared():
    text = native_stub.STUB.read_text(encoding="utf-8")
    without = native_stub.signatures(text.replace("def poll(self, arg0: int, /)", "def poll(self)"))
    assert without["Engine.poll"] == ["self"]
    assert native_stub.signatures(text)["Engine.poll"] == ["self", "arg0", "/"]
