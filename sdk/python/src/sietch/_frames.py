"""The messages of a streamed exec, subprotocol ``sietch.exec.v1``.

Binary messages carry a stream each, named by their first byte; text messages are
JSON. Nothing here does I/O.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, Optional, Union

from ._calls import Signal
from ._decode import decode
from .errors import ProtocolError, SietchError, error_of
from .models import Chunk, ExitStatus

PROTOCOL = "sietch.exec.v1"

STDIN = b"\x00"
_STREAMS = {1: "stdout", 2: "stderr"}

#: The server takes no longer messages than 256 KiB.
PIECE = 64 << 10


def stdin(data: Union[str, bytes]) -> Iterator[bytes]:
    """The messages that carry this input."""
    raw = data.encode() if isinstance(data, str) else bytes(data)
    for at in range(0, len(raw), PIECE):
        yield STDIN + raw[at : at + PIECE]


def start(request: Dict[str, Any]) -> str:
    """The first message: an ``ExecStart``."""
    return json.dumps(request)


def text(kind: str, **more: Any) -> str:
    return json.dumps({"type": kind, **more})


def resize(rows: int, cols: int) -> str:
    return text("resize", rows=rows, cols=cols)


def signal(sig: Signal) -> str:
    return text("signal", signal=sig if isinstance(sig, str) else int(sig))


def read(message: Union[str, bytes]) -> Union[Chunk, ExitStatus, SietchError, None]:
    """What a message of the server says; None: nothing to be told."""
    if isinstance(message, bytes):
        if not message or message[0] not in _STREAMS:
            raise ProtocolError("a binary message is for no known stream")
        return Chunk(_STREAMS[message[0]], message[1:])
    try:
        said: Dict[str, Any] = json.loads(message)
        kind: Optional[str] = said["type"]
    except (ValueError, KeyError, TypeError):
        raise ProtocolError(f"a text message is not one of {PROTOCOL}: {message[:80]!r}") from None
    if kind == "exit":
        return decode(ExitStatus, {k: v for k, v in said.items() if v is not None})
    if kind == "error":
        return error_of(said.get("error"))
    return None  # started, and what newer servers say
