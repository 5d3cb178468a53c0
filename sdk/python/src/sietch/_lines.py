"""Streams of the API: a JSON object a line, and server-sent events.

Both take bytes as they come, in pieces of any size. Nothing here does I/O.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, List

from .errors import ProtocolError

#: No line of the API is longer; another server's might be.
LONGEST = 64 << 20


class Lines:
    """Cuts bytes into lines."""

    def __init__(self) -> None:
        self._parts: List[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> List[bytes]:
        if b"\n" not in data:
            self._held += len(data)
            if self._held > LONGEST:
                raise ProtocolError("the answer has a line that does not end")
            self._parts.append(data)
            return []
        lines = (b"".join(self._parts) + data).split(b"\n")
        self._parts, self._held = [lines[-1]], len(lines[-1])
        return [line[:-1] if line.endswith(b"\r") else line for line in lines[:-1]]

    def rest(self) -> bytes:
        """What came behind the last line's end."""
        return b"".join(self._parts)


def load(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise ProtocolError(f"the answer has a line that is no JSON: {line[:80]!r}") from None


@dataclass(frozen=True)
class Message:
    """A server-sent event."""

    event: str
    data: str
    id: str


class Messages:
    """Cuts bytes into server-sent events."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._event = ""
        self._id = ""
        self._data: List[str] = []

    def feed(self, data: bytes) -> List[Message]:
        found = []
        for raw in self._lines.feed(data):
            line = raw.decode("utf-8", "replace")
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if not line:
                if self._data:
                    found.append(Message(self._event or "message", "\n".join(self._data), self._id))
                self._event, self._data = "", []
            elif name == "data":
                self._data.append(value)
            elif name == "event":
                self._event = value
            elif name == "id":
                self._id = value
        return found
