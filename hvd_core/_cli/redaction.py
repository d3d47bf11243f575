"""Removes secrets from the texts of a bug report: by the names of variables, and by their values wherever these occur."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

REMOVED = "(removed)"

_SECRET_NAME = re.compile(
    r"SECRET|PASSW|PASSPHRASE|TOKEN|CREDENTIAL|COOKIE|PRIVATE|AUTH|PSK|API_?KEY|ACCESS_?KEY|(^|_)KEY($|_)|(^|_)PASS($|_)",
    re.IGNORECASE,
)
# user:password@ of a URL, and long words that are made by a generator of keys.
_IN_URL = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
_KEY_LIKE = re.compile(
    r"\b[0-9a-fA-F]{32,}\b|\b(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9+_-]{40,}={0,2}"
)
_SHORTEST = 6  # shorter values would remove ordinary words


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable says that its value is a secret."""
    return _SECRET_NAME.search(name) is not None


class Redaction:
    """Removes the secrets of one environment.

    Args:
        environ: all variables, also those that are not reported: their secrets may occur in logs.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {
            value for name, value in environ.items() if is_secret_name(name) and len(value) >= _SHORTEST
        }
        self._secrets = {os.fsencode(value) for value in values}
        # Logs hold values as Python and JSON write them, too.
        for value in list(values):
            values |= {
                repr(value)[1:-1],
                json.dumps(value)[1:-1],
                json.dumps(value, ensure_ascii=False)[1:-1],
            }
        # A longer secret may contain a shorter one.
        self._known = sorted(values, key=len, reverse=True)
        self.removed = 0

    def text(self, text: str) -> str:
        """``text`` without the values of secret variables, and without passwords in URLs."""
        for value in self._known:
            self.removed += text.count(value)
            text = text.replace(value, REMOVED)
        text, found = _IN_URL.subn(REMOVED, text)
        self.removed += found
        return text

    def document(self, value: Any) -> Any:
        """``value``, which is to become JSON, without secrets in its texts. Before it is written: JSON spells quotes,
        backslashes and most letters otherwise."""
        if isinstance(value, dict):
            return {self.text(str(key)): self.document(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.document(one) for one in value]
        return value if isinstance(value, (int, float, type(None))) else self.text(str(value))

    def data(self, data: bytes) -> bytes:
        """``data`` with the values of secret variables overwritten, in the same length."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            self.removed += data.count(secret)
            data = data.replace(secret, b"*" * len(secret))
        return data

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown. Values that look like generated keys are removed too."""
        if is_secret_name(name):
            self.removed += 1
            return REMOVED
        value, found = _KEY_LIKE.subn(REMOVED, value)
        self.removed += found
        return self.text(value)
