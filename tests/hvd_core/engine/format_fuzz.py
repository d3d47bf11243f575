"""Compiles native/stress/format_fuzz.cc with the readers that it feeds, under the address and undefined-behaviour
sanitizers, for test_format_fuzz.py and build_programs.py."""

from pathlib import Path

from compiled import ROOT, compiled, cxx

FLAGS = [
    "-O1",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fvisibility=hidden",  # as in the libraries
    "-Wall",
    "-Wextra",
    "-Werror",
]


def build() -> Path:
    engine, tcp = ROOT / "hvd_core" / "engine", ROOT / "backends" / "tcp"
    sources = [
        Path(__file__).with_name("native") / "stress" / "format_fuzz.cc",
        *(tcp / name for name in ("extent.cc", "handshake.cc", "link.cc", "stream.cc")),
        *(
            engine / "rendezvous" / name
            for name in ("gather.cc", "handshake.cc", "seal.cc", "store_server.cc", "store_service.cc")
        ),
        *(engine / "base" / name for name in ("log.cc", "text.cc")),
        ROOT / "horovod" / "tensorflow" / "native" / "xla_call_text.cc",
    ]
    folders = [ROOT / "hvd_core", ROOT / "hvd_core" / "include", ROOT / "backends", tcp]
    return compiled("format_fuzz", [cxx(), "-std=c++20", *FLAGS, f"-I{ROOT}", "-pthread"], sources, folders)
