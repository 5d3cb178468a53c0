"""What sync and async clients do in ways of their own; _aio.py is the other."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, TypeVar, Union

import httpx
import websockets
from websockets.sync.client import ClientConnection, connect, unix_connect

from . import _address
from ._address import Address
from .errors import ConnectionFailedError, SietchError, error_of_answer

T = TypeVar("T")

sleep = time.sleep


def call(fn: Callable[..., T], *args: Any) -> T:
    """Runs what blocks."""
    return fn(*args)


def each(items: Iterable[bytes]) -> Iterator[bytes]:
    """Takes from an iterator that may block."""
    return iter(items)


def transport(address: Address, verify: _address.Verify) -> httpx.HTTPTransport:
    return httpx.HTTPTransport(
        uds=address.uds,
        verify=_address.tls(verify) if address.secure else False,
        socket_options=None if address.uds else _address.KEEPALIVE,
    )


class Pump:
    """Runs something beside its owner, who waits for it with ``stop``."""

    def __init__(self, fn: Callable[[], None]) -> None:
        # What it reads may block for ever, and nothing can end that.
        self._thread = threading.Thread(target=fn, name="sietch-stdin", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The connection that it writes to is closed; it ends with its next write."""
        self._thread.join(timeout=1)


class WebSocket:
    """A connection whose failures are errors of this package."""

    def __init__(self, conn: ClientConnection) -> None:
        self._conn = conn

    @classmethod
    def open(
        cls,
        address: Address,
        path: str,
        headers: Dict[str, str],
        protocol: str,
        timeout: float,
        verify: _address.Verify,
    ) -> WebSocket:
        options: Dict[str, Any] = {
            "subprotocols": [websockets.Subprotocol(protocol)],
            "additional_headers": headers,
            "open_timeout": timeout,
            # A reader that is slow also reads pongs late; TCP's keepalive finds
            # who is gone.
            "ping_interval": None,
            "max_size": None,
            "compression": None,
        }
        uri = address.websocket_url + path
        sock: Optional[socket.socket] = None
        try:
            if address.uds is not None:
                # Given a socket, websockets takes it for one of TCP.
                opening = unix_connect(address.uds, uri, **options)
            else:
                sock = _address.open_socket(address, timeout)
                sock.settimeout(None)
                context = _address.tls(verify) if address.secure else None
                opening = connect(uri, sock=sock, ssl=context, proxy=None, **options)
            conn = opening.__enter__()
        except websockets.InvalidStatus as error:
            _close(sock)
            answer = error.response
            raise error_of_answer(
                answer.status_code, bytes(answer.body or b""), answer.headers.get("X-Request-Id", "")
            ) from None
        except (OSError, EOFError, websockets.WebSocketException) as error:
            _close(sock)
            where = address.uds or address.url
            raise ConnectionFailedError(f"open WebSocket to {where}: {error}") from error
        return cls(conn)

    def send(self, message: Union[str, bytes]) -> None:
        try:
            self._conn.send(message)
        except websockets.ConnectionClosed as error:
            raise _broken(error) from error

    def receive(self) -> Union[str, bytes]:
        try:
            return self._conn.recv()
        except websockets.ConnectionClosed as error:
            raise _broken(error) from error

    def close(self) -> None:
        """Ends the connection at once: who closes early wants nothing more."""
        with contextlib.suppress(OSError):
            self._conn.socket.shutdown(socket.SHUT_RDWR)
        self._conn.close()


def _close(sock: Optional[socket.socket]) -> None:
    if sock is not None:
        sock.close()


def _broken(error: websockets.ConnectionClosed) -> SietchError:
    return ConnectionFailedError(f"the connection broke before the command ended: {error}")
