"""Streamed exec against a server that speaks the protocol."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from document import DOCUMENT
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve, unix_serve

import sietch

KINDS = ("sync", "async")


class Host:
    """A server whose commands are scripts of the tests."""

    def __init__(self) -> None:
        self.script: Callable[[ServerConnection], None] = lambda _: None
        self.start: Dict[str, Any] = {}
        self.headers = Headers()
        self.path = ""
        self.gone = threading.Event()

    def handle(self, conn: ServerConnection) -> None:
        assert conn.request is not None
        self.headers, self.path = conn.request.headers, conn.request.path
        self.start = json.loads(conn.recv())
        DOCUMENT.check(DOCUMENT.schema("ExecStart"), self.start)
        try:
            self.script(conn)
            for _ in conn:
                pass
        finally:
            self.gone.set()

    def refuse(self, conn: ServerConnection, request: Request) -> Any:
        if "/none/" not in request.path:
            return None
        body = b'{"error":{"code":"not_found","message":"no sandbox none","hint":"ps"}}'
        return Response(
            404, "Not Found", Headers({"X-Request-Id": "r7", "Content-Length": str(len(body))}), body
        )

    def serve(self, server: Server) -> Iterator[Server]:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tell(conn: ServerConnection, kind: str, **more: Any) -> None:
    said = {"type": kind, **more}
    DOCUMENT.check(DOCUMENT.schema("ExecMessage"), said)
    conn.send(json.dumps(said))


def hear(conn: ServerConnection) -> Any:
    message = conn.recv()
    if isinstance(message, bytes):
        return message
    said = json.loads(message)
    DOCUMENT.check(DOCUMENT.schema("ExecMessage"), said)
    return said


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def url(host: Host) -> Iterator[str]:
    server = serve(host.handle, "127.0.0.1", 0, subprotocols=["sietch.exec.v1"], process_request=host.refuse)  # type: ignore[list-item]
    for s in host.serve(server):
        yield f"http://127.0.0.1:{s.socket.getsockname()[1]}"


def run(kind: str, url: str, use: Callable[[Any], Any], *args: str, name: str = "box", **options: Any) -> Any:
    """Runs a command in a sandbox and ``use``, a coroutine function, with its
    stream: for the sync client its awaits are of what is no coroutine."""
    token = options.pop("token", None)
    if kind == "sync":
        with sietch.Client(url, token) as c, c.sandbox(name).exec_stream(*args, **options) as stream:
            return asyncio.run(use(Awaitable(stream)))

    async def main() -> Any:
        async with sietch.AsyncClient(url, token) as c:
            async with c.sandbox(name).exec_stream(*args, **options) as stream:
                return await use(stream)

    return asyncio.run(main())


class Awaitable:
    """A sync stream with the manners of the async one."""

    def __init__(self, stream: sietch.ExecStream) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.stream, name)
        if not callable(found):
            return found

        async def call(*args: Any) -> Any:
            return found(*args)

        return call

    async def __aiter__(self) -> Any:
        for chunk in self.stream:
            yield chunk


async def everything(stream: Any) -> Any:
    chunks = [c async for c in stream]
    return [(c.stream, c.data) for c in chunks], stream.exit_status


@pytest.mark.parametrize("kind", KINDS)
def test_output_and_exit(kind: str, host: Host, url: str) -> None:
    def script(conn: ServerConnection) -> None:
        tell(conn, "started")
        conn.send(b"\x01out")
        conn.send(b"\x02\xff")
        tell(conn, "later")  # of a newer server
        tell(conn, "exit", exit_code=143, signal=15)

    host.script = lambda conn: script_without_check(conn, script)
    got, status = run(kind, url, everything, "sh", "-c", "x", env={"A": "b"}, timeout=1.5, token="secret")
    assert got == [("stdout", b"out"), ("stderr", b"\xff")]
    assert (status.exit_code, status.signal, status.ok) == (143, 15, False)
    assert host.start == {"args": ["sh", "-c", "x"], "env": ["A=b"], "timeout_ms": 1500}
    assert host.path == "/v1/sandboxes/box/exec"
    assert host.headers["Authorization"] == "Bearer secret"


def script_without_check(conn: ServerConnection, script: Callable[[ServerConnection], None]) -> None:
    checked = DOCUMENT.check
    DOCUMENT.check = lambda *_: None  # type: ignore[method-assign]
    try:
        script(conn)
    finally:
        DOCUMENT.check = checked  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", KINDS)
def test_terminal(kind: str, host: Host, url: str) -> None:
    heard: List[Any] = []

    def script(conn: ServerConnection) -> None:
        heard.extend(hear(conn) for _ in range(5))
        tell(conn, "exit", exit_code=0)

    async def use(stream: Any) -> Any:
        await stream.write("ls\n")
        await stream.resize(50, 132)
        await stream.signal("INT")
        await stream.signal(9)
        await stream.close_stdin()
        return await stream.wait()

    host.script = script
    status = run(kind, url, use, "bash", tty=True, rows=24, cols=80, stdin=True)
    assert status.ok
    assert host.start == {"args": ["bash"], "stdin": True, "tty": True, "rows": 24, "cols": 80}
    assert heard == [
        b"\x00ls\n",
        {"type": "resize", "rows": 50, "cols": 132},
        {"type": "signal", "signal": "INT"},
        {"type": "signal", "signal": 9},
        {"type": "stdin_end"},
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["bytes", "file", "pieces"])
def test_input_is_sent_while_output_is_read(
    kind: str, source: str, host: Host, url: str, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 4096  # more than any buffer on the way

    def script(conn: ServerConnection) -> None:
        while isinstance(message := hear(conn), bytes):
            assert len(message) <= 256 << 10
            conn.send(b"\x01" + message[1:])
        assert message == {"type": "stdin_end"}
        tell(conn, "exit", exit_code=0)

    host.script = script
    path = tmp_path / "input"
    path.write_bytes(data)
    with path.open("rb") as f:
        stdin: Any = {"bytes": data, "file": f, "pieces": [data[: 1 << 19], data[1 << 19 :]]}[source]
        got, status = run(kind, url, everything, "cat", stdin=stdin)
    assert b"".join(d for _, d in got) == data
    assert status.ok


@pytest.mark.parametrize("kind", KINDS)
def test_input_that_fails(kind: str, host: Host, url: str) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        run(kind, url, everything, "cat", stdin=pieces())
    assert host.gone.wait(10)


@pytest.mark.parametrize("kind", KINDS)
def test_refused(kind: str, url: str) -> None:
    with pytest.raises(sietch.NotFoundError) as caught:
        run(kind, url, everything, "true", name="none")
    assert (caught.value.hint, caught.value.status, caught.value.request_id) == ("ps", 404, "r7")


@pytest.mark.parametrize("kind", KINDS)
def test_error_on_the_way(kind: str, host: Host, url: str) -> None:
    host.script = lambda conn: tell(conn, "error", error={"code": "wrong_state", "message": "it is paused"})
    with pytest.raises(sietch.WrongStateError, match="it is paused"):
        run(kind, url, everything, "true")


@pytest.mark.parametrize("kind", KINDS)
def test_broken_connection(kind: str, host: Host, url: str) -> None:
    host.script = lambda conn: conn.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(sietch.ConnectionFailedError):
        run(kind, url, everything, "true")


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_ends_the_command(kind: str, host: Host, url: str) -> None:
    def script(conn: ServerConnection) -> None:
        while True:
            conn.send(b"\x01" + b"y\n" * 1000)

    async def use(stream: Any) -> None:
        async for chunk in stream:
            assert chunk.text.startswith("y\n")
            return

    host.script = script
    began = time.monotonic()
    run(kind, url, use, "yes")
    assert host.gone.wait(10)
    assert time.monotonic() - began < 5


def test_a_slow_reader_slows_the_server(host: Host, url: str) -> None:
    sent = 0

    def script(conn: ServerConnection) -> None:
        nonlocal sent
        while True:
            conn.send(b"\x01" + bytes(64 << 10))
            sent += 64 << 10

    host.script = script
    with sietch.Client(url) as c, c.sandbox("box").exec_stream("cat", "/dev/zero") as stream:
        next(stream)
        before = -1
        while before != sent:
            before = sent
            time.sleep(0.5)
        assert sent < 64 << 20
        next(stream)


@pytest.mark.parametrize("kind", KINDS)
def test_unix_socket(kind: str, host: Host, tmp_path: Path) -> None:
    host.script = lambda conn: tell(conn, "exit", exit_code=7)
    path = str(tmp_path / "s.sock")
    for _ in host.serve(unix_serve(host.handle, path, subprotocols=["sietch.exec.v1"])):
        got, status = run(kind, f"unix://{path}", everything, "true")
        assert (got, status.exit_code) == ([], 7)


def test_out_of_a_with() -> None:
    with sietch.Client("http://127.0.0.1:1") as c, pytest.raises(RuntimeError, match="with statement"):
        next(iter(c.sandbox("box").exec_stream("true")))
