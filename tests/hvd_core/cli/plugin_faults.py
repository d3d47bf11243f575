"""Plugins with one fault each, and what ``hvd plugin doctor`` says of them. docs/plugins.md shows this table.

``says`` and ``more`` are parts of the doctor's words.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from compiled import ROOT, compiled, cxx

HEAD = """
import os, signal, sys, time
from pathlib import Path
from hvd_core.backends import Available, BackendDescriptor, Unavailable
def given(**changes):
    known = dict(
        name="{name}", abi=(1, 0), devices=("widget",), provides=frozenset({{"comm"}}), library=Path("{library}"),
        probe=lambda: Available("all well"),
    )
    return BackendDescriptor(**(known | changes))
"""
GOOD = "def describe(): return given()"
STATIC = 'abi = [1, 0]\ndevices = ["widget"]\nprovides = ["comm"]\ndevice_files = ["/dev/no-such-widget*"]\n'


@dataclass(frozen=True)
class Fault:
    """One fault. ``code``: the text of the plugin's module, after HEAD. ``library``: the fault of its library
    (faulty.cc), or the contents of the file. ``hangs``: whether the phase ends by its limit only."""

    name: str
    phase: str
    what: str
    says: str
    code: str = GOOD
    library: str | bytes | None = "entry_fails"
    static: str | None = STATIC
    more: str = ""
    hangs: bool = False


def describe(name: str, what: str, code: str, says: str, **rest) -> Fault:
    return Fault(f"d_{name}", "describe", what, says, code, **rest)


def probe(name: str, what: str, body: str, says: str, **rest) -> Fault:
    code = f"def probe():\n    {body}\ndef describe(): return given(probe=probe)"
    return Fault(f"p_{name}", "probe", what, says, code, **rest)


def load(name: str, what: str, says: str, library: str | bytes | None = None, **rest) -> Fault:
    return Fault(f"l_{name}", "load", what, says, library=library if library is not None else name, **rest)


CRASH, LEAVE, HANG = "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(3)", "time.sleep(1000)"

FAULTS = (
    describe("missing", "the import needs a module that is missing", "import widget_framework",
             "cannot be described", more="ModuleNotFoundError: No module named 'widget_framework'"),
    describe("raises", "the import raises", "raise RuntimeError('oops')", "cannot be described",
             more="RuntimeError: oops"),
    describe("exits", "the import calls sys.exit(3)", "sys.exit(3)", "cannot be described", more="SystemExit: 3"),
    describe("own", "the import raises an exception of its own kind",
             "class Own(BaseException): pass\nraise Own('mine')", "cannot be described", more="Own: mine"),
    describe("interrupts", "the import raises KeyboardInterrupt", "raise KeyboardInterrupt('mine')",
             "it raised KeyboardInterrupt: mine"),
    describe("leaves", "the import ends the process: exit code 3", LEAVE, "its process exited with code 3"),
    describe("crashes", "the import crashes", CRASH, "its process was killed by SIGSEGV"),
    describe("aborts", "the import aborts", "os.abort()", "its process was killed by SIGABRT"),
    describe("killed", "the import kills its process group", "os.killpg(0, signal.SIGKILL)",
             "its process was killed by SIGKILL"),
    describe("hangs", "the import hangs", HANG, "its process timed out after", hangs=True),
    describe("endless", "the import prints endlessly", "while True: print('x' * 4000)",
             "its process timed out after", hangs=True),
    describe("closes", "the import closes all files, then exits", f"os.closerange(0, 256)\n{LEAVE}",
             "its process exited with code 3"),
    describe("prints", "the import prints, then crashes", f"print('a banner')\n{CRASH}",
             "its process was killed by SIGSEGV", more="it wrote: a banner"),
    describe("calls", "describe() crashes", f"def describe(): {CRASH}", "its process was killed by SIGSEGV"),
    describe("nothing", "describe() returns None", "def describe(): pass", "cannot be described",
             more="returned None, not a BackendDescriptor"),
    describe("absent", "there is no describe()", "", "cannot be described", more="has no attribute 'describe'"),
    describe("name", "the descriptor has another name", "def describe(): return given(name='other')",
             "cannot be described", more="name = 'other', but the entry point is named"),
    describe("devices", "the descriptor has devices of a wrong type", "def describe(): return given(devices='widget')",
             "cannot be described", more="devices = 'widget', which is not a tuple"),
    describe("relative", "the library's path is relative", "def describe(): return given(library='lib.so')",
             "cannot be described", more="library = 'lib.so', which is not an absolute path"),
    describe("newer", "the descriptor has a field of a newer hvd-core", "def describe(): return given(quantum=True)",
             "cannot be described", more="it may be written for a newer hvd-core"),
    describe("contradicts", "the descriptor contradicts the wheel's static description",
             "def describe(): return given(priority=70)", "cannot be described", more="priority = 70, but its"),
    probe("no", "the probe says no", "return Unavailable('no widget', 'plug one in')", "no widget", more="plug one in"),
    probe("raises", "the probe raises", "raise KeyError('oops')", "its probe raised KeyError: 'oops'"),
    probe("exits", "the probe calls sys.exit(3)", "sys.exit(3)", "its probe raised SystemExit: 3"),
    probe("leaves", "the probe ends the process: exit code 3", LEAVE, "its process exited with code 3"),
    probe("crashes", "the probe crashes", CRASH, "its process was killed by SIGSEGV"),
    probe("hangs", "the probe hangs", HANG, "its probe has not answered within", hangs=True),
    probe("stops", "the probe stops its process", "os.kill(os.getpid(), signal.SIGSTOP)",
          "its process timed out after", hangs=True),
    probe("true", "the probe answers True", "return True",
          "its probe answered True, which is neither Available nor Unavailable"),
    load("absent", "the library does not exist", "failed to load", b"", more="does not exist"),
    load("text", "the library is no shared object", "failed to load", b"some text", more="file too short"),
    load("abi", "the wheel is built for ABI 2", "needs backend ABI 2.x", code="def describe(): return given(abi=(2, 0))",
         static=None),
    load("constructor_crashes", "a constructor in the library crashes", "its process was killed by SIGSEGV"),
    load("constructor_exits", "a constructor in the library ends the process: exit code 7",
         "its process exited with code 7"),
    load("constructor_throws", "a constructor in the library throws", "its process was killed by SIGABRT"),
    load("constructor_hangs", "a constructor in the library hangs", "its process timed out after", hangs=True),
    load("entry_crashes", "the entry function crashes", "its process was killed by SIGSEGV"),
    load("entry_aborts", "the entry function aborts", "its process was killed by SIGABRT"),
    load("entry_exits", "the entry function calls exit(5)", "its process exited with code 5"),
    load("entry_hangs", "the entry function hangs", "its process timed out after", hangs=True),
    load("entry_throws", "the entry function throws", "failed to load", more="threw a C++ exception: an exception that"),
    load("entry_gives_nothing", "the entry function gives no table", "failed to load", more="success but gave no table"),
    load("entry_gives_rubbish", "the entry function gives an address and no table", "its process was killed by SIGSEGV"),
    load("entry_answers_99", "the entry function answers with an unknown code", "failed to load", more="answered 99"),
    load("entry_unavailable", "the entry function says that its device is missing", "unavailable here: no widget"),
    load("entry_fails", "the entry function fails", "failed to load", more="the widget is on fire"),
)  # fmt: skip


def table() -> str:
    """The rows of docs/plugins.md."""
    rows = ["| phase | fault | `hvd plugin doctor` says |", "|---|---|---|"]
    for fault in FAULTS:
        says = fault.says.replace("within", "within N s") if fault.hangs else fault.says
        more = f"; {fault.more}" if fault.more else ""
        rows.append(f"| {fault.phase} | {fault.what} | {says}{more} |")
    return "\n".join(rows) + "\n"


def install(hvd, fault: Fault, folder: Path) -> str:
    """Leave the wheel of a fault in the site of ``hvd`` (command_line.CommandLine); the backend's name."""
    name = fault.name.replace("_", "-")
    library = folder / f"libfault_{fault.library}.so"
    if isinstance(fault.library, bytes):
        library = folder / f"lib{name}.so"
        if fault.library:
            library.write_bytes(fault.library)
    elif not library.exists():
        shutil.copy(_library(), library)
    code = HEAD.format(name=name, library=library) + dedent(fault.code) + "\n"
    # A job that imports the module leaves a file behind.
    mark = f"open({str(folder / ('imported-' + name))!r}, 'w').close()\n"
    hvd.wheel(name, code=mark + code)
    if fault.static is not None:
        (hvd.site / f"{name}.hvd.toml").write_text(fault.static)
    return name


def _library() -> Path:
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
    source = Path(__file__).with_name("faulty.cc")
    return compiled("libfault.so", [cxx(), *flags], [source], [ROOT / "hvd_core" / "include"], ["-ldl"])
