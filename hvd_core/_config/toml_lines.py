"""The line number of each key in a TOML text, for messages; the standard library's parser does not tell it.

Works only on a text that the parser has accepted, so a few rules are enough to find the keys.
"""

from __future__ import annotations

Path = tuple[str, ...]


def lines_of(text: str) -> dict[Path, int]:
    """Full path of a table or key, for instance ("probe", "timeout_s") -> the line, from 1, on which it first occurs."""
    return _Walk(text).statements()


class _Walk:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Path, int] = {}

    def statements(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(" \t\r\n"):
            if self.text[self.at] == "[":
                double = self.text.startswith("[[", self.at)
                self.at += 2 if double else 1
                table = self._key(())
                self.at += 2 if double else 1
            else:
                self._pair(table)
        return self.lines

    def _skip(self, blanks: str) -> bool:
        """Skip blanks and, if line ends are blanks, comments. Returns False at the end of the text."""
        while self.at < len(self.text):
            if self.text[self.at] in blanks:
                self.at += 1
            elif self.text[self.at] == "#" and "\n" in blanks:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _key(self, prefix: Path) -> Path:
        """Read a dotted key and record the line of each of its parts. Ends behind the blanks that follow it."""
        path = prefix
        while True:
            self._skip(" \t")
            line = self.text.count("\n", 0, self.at) + 1
            path = (*path, self._name())
            self.lines.setdefault(path, line)
            self._skip(" \t")
            if self.text[self.at : self.at + 1] != ".":
                return path
            self.at += 1

    def _name(self) -> str:
        start = self.at
        if self.text[start] in "\"'":
            self._string()
            return self.text[start + 1 : self.at - 1]
        while self.at < len(self.text) and (self.text[self.at].isalnum() or self.text[self.at] in "-_"):
            self.at += 1
        return self.text[start : self.at]

    def _pair(self, prefix: Path) -> None:
        path = self._key(prefix)
        self.at += 1  # the equals sign
        self._skip(" \t")
        self._value(path)

    def _value(self, path: Path) -> None:
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first in "[{":
            self.at += 1
            while self._skip(" \t\r\n,") and self.text[self.at] not in "]}":
                if first == "{":
                    self._pair(path)
                else:
                    self._value(path)
            self.at += 1
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        long = quote * 3
        if not self.text.startswith(long, self.at):
            long = quote
        self.at += len(long)
        while not self.text.startswith(long, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(long)
        # Up to two quotes may stand right before the three that end a long string.
        while len(long) == 3 and self.text[self.at : self.at + 1] == quote:
            self.at += 1
