"""Which files of a directory are no part of a build context: ``.dockerignore``."""

from __future__ import annotations

import os
import posixpath
import re
from typing import List, Pattern, Tuple


class Ignore:
    """The patterns of one file; the last that fits a path decides."""

    def __init__(self, text: str = "") -> None:
        self._rules: List[Tuple[Pattern[str], bool]] = []
        for raw in text.lstrip("\ufeff").splitlines():
            if raw.startswith("#"):
                continue
            line = raw.strip()
            keep = line.startswith("!")
            if keep:
                line = line[1:].strip()
            line = posixpath.normpath(line).lstrip("/") if line else ""
            if line and line != ".":
                self._rules.append((re.compile(_regexp(line)), keep))
        #: Something beneath a directory that is left out may still be wanted.
        self.may_keep = any(keep for _, keep in self._rules)

    def leaves_out(self, path: str) -> bool:
        """Whether ``path``, relative and with slashes, is left out. A pattern that
        fits a directory fits all beneath it."""
        out = False
        parts = path.split("/")
        above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        for pattern, keep in self._rules:
            if keep == out and any(pattern.match(p) for p in above):
                out = not keep
        return out


def _regexp(pattern: str) -> str:
    """As Go's filepath.Match, and ``**`` for any number of directories."""
    out, i = "", 0
    while i < len(pattern):
        c = pattern[i]
        if pattern.startswith("**", i):
            i += 2
            if i < len(pattern) and pattern[i] == "/":
                i += 1
                out += "(?:.*/)?"
            else:
                out += ".*"
            continue
        if c == "*":
            out += "[^/]*"
        elif c == "?":
            out += "[^/]"
        elif c == "[" and "]" in pattern[i + 2 :]:
            end = pattern.index("]", i + 2)
            inside = pattern[i + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out += "[" + inside + "]"
            i = end
        elif c == "\\" and i + 1 < len(pattern):
            i += 1
            out += re.escape(pattern[i])
        else:
            out += re.escape(c)
        i += 1
    return out + r"\Z"


def of_context(directory: str, dockerfile: str) -> Ignore:
    """The rules for a context; those beside the Dockerfile go before the common ones."""
    for name in (dockerfile + ".dockerignore", ".dockerignore"):
        try:
            with open(os.path.join(directory, name), encoding="utf-8") as f:
                return Ignore(f.read())
        except FileNotFoundError:
            continue
    return Ignore()
