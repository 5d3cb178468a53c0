"""Sending calls and reading answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any, AsyncGenerator, AsyncIterator, Callable, Optional, Type, TypeVar

import httpx

from .. import _address, _aio
from .._calls import Call
from .._decode import decode
from .._lines import Lines, Messages, load
from .._version import __version__
from ..errors import (
    ConnectionFailedError,
    ProtocolError,
    RateLimitedError,
    ShuttingDownError,
    SietchError,
    error_of,
    error_of_answer,
)

T = TypeVar("T")


class AsyncWire:
    """One server, over HTTP and WebSocket."""

    def __init__(
        self,
        url: Optional[str],
        token: Optional[str],
        timeout: float,
        retries: int,
        verify: _address.Verify,
        transport: Optional[httpx.AsyncBaseTransport],
    ) -> None:
        self.address = _address.find(url)
        self.timeout = timeout
        self._retries = retries
        self._verify = verify
        self._headers = {"User-Agent": f"sietch-python/{__version__}"}
        token = _address.find_token(token)
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            base_url=self.address.url,
            headers=self._headers,
            timeout=timeout,
            transport=transport or _aio.transport(self.address, verify),
            # Many commands may run at a time, each on a connection of its own.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call) -> httpx.Response:
        """The whole answer to a call, which is one of success."""
        async with self.stream(call) as response:
            await response.aread()
            return response

    async def json(self, call: Call) -> Any:
        """The answer as JSON."""
        response = await self.send(call)
        try:
            data = response.json()
        except ValueError:
            raise ProtocolError(
                f"{call.method} {call.path} was answered with what is no JSON: {response.content[:80]!r}"
            ) from None
        if not response.is_success and isinstance(data, dict) and "error" in data:
            raise error_of(data["error"], response.status_code)
        return data

    async def value(self, call: Call, kind: Type[T]) -> T:
        """The answer, read as ``kind``."""
        return decode(kind, await self.json(call))

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[httpx.Response]:
        """The answer to a call as it comes, which is one of success so far."""
        try:
            response = await self._first(call)
            try:
                yield response
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise self._unanswered(call, error) from error

    async def _first(self, call: Call) -> httpx.Response:
        """The head of the answer. What reached nobody, or a server that did
        nothing, is sent again some times."""
        attempt = 0
        while True:
            last = attempt >= self._retries or not call.repeatable
            try:
                response = await self._http.send(self._request(call), stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if last:
                    raise
                await _aio.sleep(0.1 * 2**attempt)
            else:
                if response.is_success or response.status_code in call.accept:
                    return response
                try:
                    content = await response.aread()
                finally:
                    await response.aclose()
                error = error_of_answer(
                    response.status_code, content, response.headers.get("X-Request-Id", "")
                )
                if last or not isinstance(error, (RateLimitedError, ShuttingDownError)):
                    raise error
                await _aio.sleep(_pause(response.headers.get("Retry-After")))
            attempt += 1

    def _request(self, call: Call) -> httpx.Request:
        return self._http.build_request(
            call.method,
            self.address.url + call.path,
            params=tuple(call.query) or None,
            headers=call.headers,
            json=call.json,
            content=call.content,
            timeout=httpx.Timeout(self.timeout, read=None) if call.slow else httpx.USE_CLIENT_DEFAULT,
        )

    def _unanswered(self, call: Call, error: httpx.TransportError) -> SietchError:
        where = self.address.uds or self.address.url
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return ConnectionFailedError(f"connect to {where}: {error}", "sietch serve starts a server")
        if isinstance(error, httpx.TimeoutException):
            return ConnectionFailedError(f"{call.method} {call.path}: no answer within {self.timeout:g} s")
        return ConnectionFailedError(f"{call.method} {call.path}: the connection broke: {error}")

    async def proxy(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer of a service behind the server."""
        try:
            return await self._http.request(method, self.address.url + path, **options)
        except httpx.TransportError as error:
            raise self._unanswered(Call(method, path), error) from error

    async def websocket(self, path: str, protocol: str) -> _aio.AsyncWebSocket:
        return await _aio.AsyncWebSocket.open(
            self.address, path, self._headers, protocol, self.timeout, self._verify
        )


def _pause(retry_after: Optional[str]) -> float:
    try:
        return min(max(float(retry_after or 1), 0.05), 30.0)
    except ValueError:
        return 1.0


class AsyncStream(AsyncIterator[T]):
    """What a server tells for as long as it goes on.

    Use it with ``with``, which begins it and, at its end, lets go of the
    connection; or iterate over it to its end.
    """

    def __init__(
        self, wire: AsyncWire, call: Call, read: Callable[[httpx.Response], AsyncIterator[T]]
    ) -> None:
        self._opening = wire.stream(call)
        self._read = read
        self._items: Optional[AsyncIterator[T]] = None
        self._closed = False

    async def __aenter__(self) -> AsyncStream[T]:
        await self._open()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()

    async def _open(self) -> AsyncIterator[T]:
        if self._items is None:
            if self._closed:
                raise RuntimeError("the stream is closed")
            self._items = self._read(await self._opening.__aenter__())
        return self._items

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        items = await self._open()
        try:
            return await items.__anext__()
        except httpx.TransportError as error:
            # The connection broke; the context says so in our words.
            self._closed = True
            await self._opening.__aexit__(type(error), error, error.__traceback__)
            raise
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Lets go of the connection. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._items is not None:
                if isinstance(self._items, AsyncGenerator):
                    await self._items.aclose()
                await self._opening.__aexit__(None, None, None)


async def read_bytes(response: httpx.Response) -> AsyncIterator[bytes]:
    """A body of bytes."""
    async for data in response.aiter_bytes():
        yield data


async def read_objects(response: httpx.Response) -> AsyncIterator[Any]:
    """A body of a JSON object a line; an error in it is raised."""
    lines = Lines()
    async for data in response.aiter_bytes():
        for line in lines.feed(data):
            yield _told(load(line))
    if lines.rest().strip():
        yield _told(load(lines.rest()))


def _told(said: Any) -> Any:
    if isinstance(said, dict) and said.get("error") is not None:
        raise error_of(said["error"])
    return said


class EventReader:
    """Reads server-sent events of one kind."""

    def __init__(self, kind: Any, only: str = "") -> None:
        self._kind = kind
        self._only = only

    async def __call__(self, response: httpx.Response) -> AsyncIterator[Any]:
        messages = Messages()
        async for data in response.aiter_bytes():
            for message in messages.feed(data):
                said = load(message.data.encode())
                if message.event == "error":
                    _told(said)
                elif not self._only or message.event == self._only:
                    yield decode(self._kind, said)
