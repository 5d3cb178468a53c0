"""Both clients over a transport that holds every request against the document."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Optional, Tuple, Union

import httpx
from document import DOCUMENT

import sietch

Answer = Tuple[int, Any, Dict[str, str]]
Client = Union[sietch.Client, sietch.AsyncClient]
Settle = Callable[[Any], Any]


class Server(httpx.MockTransport):
    """Answers each request with the next answer, and keeps the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: List[httpx.Request] = []
        self.operations: List[str] = []
        super().__init__(self._handle)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self._handle(request)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        body = request.read() if not isinstance(request.stream, httpx.AsyncByteStream) else request.content
        raw_path = request.url.raw_path.decode().partition("?")[0]
        op = DOCUMENT.find(request.method, raw_path)
        DOCUMENT.check_request(op, request.url.params.multi_items(), dict(request.headers), body)
        self.requests.append(request)
        self.operations.append(op.id)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, content, headers = answer
        if isinstance(content, (dict, list)):
            DOCUMENT.check_answer(op, status, content)
            return httpx.Response(status, json=content, headers=headers)
        return httpx.Response(status, content=content, headers=headers)

    @property
    def request(self) -> httpx.Request:
        return self.requests[-1]

    @property
    def json(self) -> Any:
        return json.loads(self.request.content)


def ok(content: Any = b"", status: int = 200, **headers: str) -> Answer:
    return status, content, {k.replace("_", "-"): v for k, v in headers.items()}


def lines(*objects: Any) -> Answer:
    return 200, b"".join(json.dumps(o).encode() + b"\n" for o in objects), {}


def fails(code: str, status: int, message: str = "it did not", hint: str = "", **headers: str) -> Answer:
    error = {"code": code, "message": message, "hint": hint}
    return (
        status,
        {"error": error},
        {"X-Request-Id": "r1", **{k.replace("_", "-"): v for k, v in headers.items()}},
    )


@contextmanager
def client(
    kind: str, server: Optional[httpx.MockTransport], **options: Any
) -> Iterator[Tuple[Client, Settle]]:
    """A client of a kind, and what waits for what its methods return: a value, or
    the list of what an iterator gives."""
    options = {"url": "http://127.0.0.1:7000", "transport": server, **options}
    if kind == "sync":
        with sietch.Client(**options) as c:
            yield c, lambda got: list(got) if isinstance(got, Iterator) else got
        return
    with asyncio.Runner() if hasattr(asyncio, "Runner") else _Runner() as runner:

        async def settled(got: Any) -> Any:
            if isinstance(got, AsyncIterator):
                return [x async for x in got]
            return await got if hasattr(got, "__await__") else got

        a = sietch.AsyncClient(**options)
        yield a, lambda got: runner.run(settled(got))
        runner.run(a.aclose())


class _Runner:
    """asyncio.Runner, for Python 3.9 and 3.10."""

    def __enter__(self) -> _Runner:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def __exit__(self, *_: Any) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
