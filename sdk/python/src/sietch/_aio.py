"""What async and sync clients do in ways of their own; _blocking.py is the other.

Everything else of the async client is written once, in ``_async``, and
tools/unasync.py makes ``_sync`` of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterable, TypeVar, Union

import httpx
import websockets
from websockets.asyncio.client import ClientConnection, connect

from . import _address
from ._address import Address
from .errors import ConnectionFailedError, SietchError, error_of_answer

T = TypeVar("T")

sleep = asyncio.sleep


async def call(fn: Callable[..., T], *args: Any) -> T:
    """Runs what blocks."""
    return await asyncio.get_running_loop().run_in_executor(None, fn, *args)


async def each(items: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Takes from an iterator that may block."""
    it = iter(items)
    end = object()
    while True:
        item: Any = await call(next, it, end)
        if item is end:
            return
        yield item


def transport(address: Address, verify: _address.Verify) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(
        uds=address.uds,
        verify=_address.tls(verify) if address.secure else False,
        socket_options=None if address.uds else _address.KEEPALIVE,
    )


class AsyncPump:
    """Runs something beside its owner, who waits for it with ``stop``."""

    def __init__(self, fn: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await fn()

        self._task = asyncio.create_task(run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class AsyncWebSocket:
    """A connection whose failures are errors of this package."""

    def __init__(self, conn: ClientConnection) -> None:
        self._conn = conn

    @classmethod
    async def open(
        cls,
        address: Address,
        path: str,
        headers: Dict[str, str],
        protocol: str,
        timeout: float,
        verify: _address.Verify,
    ) -> AsyncWebSocket:
        try:
            sock = await call(_address.open_socket, address, timeout)
        except OSError as error:
            raise ConnectionFailedError(f"connect to {address.uds or address.url}: {error}") from error
        sock.setblocking(False)
        try:
            conn = await connect(
                address.websocket_url + path,
                sock=sock,
                ssl=_address.tls(verify) if address.secure else None,
                subprotocols=[websockets.Subprotocol(protocol)],
                additional_headers=headers,
                open_timeout=timeout,
                # A reader that is slow also reads pongs late; TCP's keepalive
                # finds who is gone.
                ping_interval=None,
                max_size=None,
                compression=None,
                proxy=None,
            )
        except websockets.InvalidStatus as error:
            sock.close()
            answer = error.response
            raise error_of_answer(
                answer.status_code, bytes(answer.body or b""), answer.headers.get("X-Request-Id", "")
            ) from None
        except (OSError, EOFError, websockets.WebSocketException) as error:
            sock.close()
            raise ConnectionFailedError(f"open WebSocket to {address.uds or address.url}: {error}") from error
        return cls(conn)

    async def send(self, message: Union[str, bytes]) -> None:
        try:
            await self._conn.send(message)
        except websockets.ConnectionClosed as error:
            raise _broken(error) from error

    async def receive(self) -> Union[str, bytes]:
        try:
            return await self._conn.recv()
        except websockets.ConnectionClosed as error:
            raise _broken(error) from error

    async def close(self) -> None:
        """Ends the connection at once: who closes early wants nothing more."""
        self._conn.transport.abort()


def _broken(error: websockets.ConnectionClosed) -> SietchError:
    return ConnectionFailedError(f"the connection broke before the command ended: {error}")
