"""Spoiled bytes for every compiled reader of a wire format: what `make sanitize` runs, with few rounds.

By hand, 10 million pieces: build/compiled/*/format_fuzz --rounds 100000
"""

import subprocess

import pytest

import format_fuzz


@pytest.mark.parametrize("seed", [1, 1_000_000])
def test_readers_of_wire_formats_refuse_or_read(seed):
    words = [format_fuzz.build(), "--rounds", "300", "--seed", str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and "passed: " in done.stdout, done.stdout + done.stderr
    for reader in ("store handshakes", "store requests", "tcp handshakes", "tcp messages", "compiled calls"):
        assert reader in done.stdout
