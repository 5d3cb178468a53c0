"""Answers that are no success, connections that fail, and what is sent with all."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any, Iterator, List

import httpx
import pytest
import samples
from document import DOCUMENT
from fakes import Server, client, fails, lines, ok

import sietch
from sietch.errors import BY_CODE

KINDS = ("sync", "async")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIETCH_URL", "SIETCH_TOKEN", "SIETCH_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> List[float]:
    """What the clients would have slept."""
    taken: List[float] = []

    async def nap(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr("sietch._blocking.sleep", taken.append)
    monkeypatch.setattr("sietch._aio.sleep", nap)
    return taken


def test_every_code_has_a_class() -> None:
    assert set(DOCUMENT.root["components"]["schemas"]["ErrorCode"]["enum"]) == set(BY_CODE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_errors(kind: str, code: str) -> None:
    server = Server(fails(code, 418, "thing: reason", "next step"))
    with client(kind, server, retries=0) as (c, settle), pytest.raises(BY_CODE[code]) as caught:
        settle(c.version())
    e = caught.value
    assert (e.code, e.message, e.hint, e.status, e.request_id) == (
        code,
        "thing: reason",
        "next step",
        418,
        "r1",
    )
    assert str(e) == "thing: reason (hint: next step)"


def test_a_code_that_is_not_known_yet() -> None:
    server = Server((400, b'{"error":{"code":"novel","message":"m"}}', {}))
    with client("sync", server) as (c, _), pytest.raises(sietch.APIError) as caught:
        c.version()
    assert caught.value.code == "novel"


@pytest.mark.parametrize(
    "answer",
    [
        (502, b"<html>bad gateway</html>", {}),
        (500, b"", {}),
        (404, b'{"detail":"no"}', {}),
        (400, b'{"error":"x"}', {}),
    ],
)
def test_another_server(answer: Any) -> None:
    with client("sync", Server(answer)) as (c, _), pytest.raises(sietch.ProtocolError):
        c.version()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version":1,"api":"1"}', b'{"version":"v1"}'])
def test_an_answer_that_is_none(body: bytes) -> None:
    with client("sync", Server(ok(body))) as (c, _), pytest.raises(sietch.ProtocolError):
        c.version()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_within_a_stream(kind: str) -> None:
    error = {"error": {"code": "quota", "message": "no more", "hint": "remove some"}}
    server = Server(lines(samples.FORKS[0], error), lines(samples.FORKS[0], error))
    with client(kind, server) as (c, settle):
        with pytest.raises(sietch.QuotaError) as caught:
            settle(c.fork("box", 2))
        assert [f.name for f in caught.value.forks] == ["box-1"]
        with pytest.raises(sietch.QuotaError):
            settle(c.fork_stream("box", 2))


def test_fewer_forks_than_wanted() -> None:
    with client("sync", Server(lines(samples.FORKS[0]))) as (c, _), pytest.raises(sietch.ProtocolError):
        c.fork("box", 2)


def test_a_build_without_an_end() -> None:
    with client("sync", Server(lines({"progress": "#1"}))) as (c, _), pytest.raises(sietch.ProtocolError):
        c.images.pull("x")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_watch(kind: str) -> None:
    body = b'event: error\ndata: {"error":{"code":"not_running","message":"it stopped"}}\n\n'
    with client(kind, Server(ok(body))) as (c, settle), pytest.raises(sietch.NotRunningError):
        settle(c.sandbox("box").files.watch("/"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_reached_nobody_is_sent_again(kind: str, naps: List[float]) -> None:
    refused = httpx.ConnectError("refused")
    server = Server(refused, refused, ok({"version": "v1", "api": "1"}))
    with client(kind, server) as (c, settle):
        assert settle(c.version()).version == "v1"
    assert naps == [0.1, 0.2]

    server = Server(refused, refused, refused)
    with (
        client(kind, server) as (c, settle),
        pytest.raises(sietch.ConnectionFailedError, match="sietch serve"),
    ):
        settle(c.version())
    assert len(server.requests) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_turned_away_is_sent_again(kind: str, naps: List[float]) -> None:
    server = Server(
        fails("rate_limited", 429, Retry_After="3"),
        fails("shutting_down", 503),
        ok(samples.EXEC),
    )
    with client(kind, server) as (c, settle):
        settle(c.sandbox("box").exec("true"))
    assert naps == [3.0, 1.0]


@pytest.mark.parametrize("failure", [fails("quota", 429), fails("host", 503), httpx.ReadError("reset")])
def test_what_may_have_been_done_is_not_sent_again(failure: Any, naps: List[float]) -> None:
    server = Server(failure)
    with client("sync", server) as (c, _), pytest.raises(sietch.SietchError):
        c.sandbox("box").exec("true")
    assert (len(server.requests), naps) == (1, [])


def test_a_body_that_is_read_once_is_not_sent_again(naps: List[float]) -> None:
    server = Server(fails("shutting_down", 503))
    with client("sync", server) as (c, _), pytest.raises(sietch.ShuttingDownError):
        c.sandbox("box").files.write("/a", iter([b"x"]))
    assert naps == []


def test_what_may_take_long_is_waited_for() -> None:
    server = Server(ok(samples.EXEC), ok({"version": "v1", "api": "1"}))
    with client("sync", server, timeout=7) as (c, _):
        c.sandbox("box").exec("sleep", "inf")
        c.version()
    slow, quick = (r.extensions["timeout"] for r in server.requests)
    assert slow == {"connect": 7, "read": None, "write": 7, "pool": 7}
    assert quick == {"connect": 7, "read": 7, "write": 7, "pool": 7}


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    version = ok({"version": "v1", "api": "1"})
    server = Server(version, version, version)
    for given, environment in ((None, None), (None, "from-env"), ("own", "from-env")):
        if environment:
            monkeypatch.setenv("SIETCH_TOKEN", environment)
        with client("sync", server, token=given) as (c, _):
            c.version()
    assert [r.headers.get("Authorization") for r in server.requests] == [
        None,
        "Bearer from-env",
        "Bearer own",
    ]


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def url(given: Any = None) -> str:
        with sietch.Client(given, transport=Server()) as c:
            return c.url

    monkeypatch.setenv("SIETCH_DATA_DIR", str(tmp_path))
    assert url() == "http://127.0.0.1:7000"
    (tmp_path / "serve.sock").touch()
    assert url() == f"unix://{tmp_path}/serve.sock"
    monkeypatch.setenv("SIETCH_URL", "https://sietch.example:8443/")
    assert url() == "https://sietch.example:8443"
    assert url("unix:///run/s.sock") == "unix:///run/s.sock"
    for wrong in ("127.0.0.1:7000", "ftp://x", "http://", "unix://host/x", "http://u:p@h", "http://h?x"):
        with pytest.raises(sietch.UsageError):
            url(wrong)


def test_the_base_of_an_address_is_kept() -> None:
    seen = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200, json={"version": "v1", "api": "1"})

    with sietch.Client("http://host/behind", transport=httpx.MockTransport(handle)) as c:
        c.version()
        assert c.sandbox("box").ports.url(80, "/x") == "http://host/behind/v1/sandboxes/box/proxy/80/x"
    assert seen == ["http://host/behind/v1/version"]


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_there(kind: str, tmp_path: Path, naps: List[float]) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"unix://{tmp_path}/none.sock"):
        with client(kind, None, url=url) as (c, settle):
            with pytest.raises(sietch.ConnectionFailedError):
                settle(c.version())


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_server(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
        began = time.monotonic()
        with client(kind, None, url=url, timeout=0.2) as (c, settle):
            with pytest.raises(sietch.ConnectionFailedError, match="no answer within"):
                settle(c.version())
        assert time.monotonic() - began < 10


class Broken(httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        yield b"the first"
        raise httpx.RemoteProtocolError("peer closed connection")


def test_a_part_is_not_taken_for_the_whole() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Broken()))
    with sietch.Client("http://h", transport=transport) as c:
        box = c.sandbox("box")
        with pytest.raises(sietch.ConnectionFailedError):
            box.files.read("/a")
        got = []
        with pytest.raises(sietch.ConnectionFailedError), box.files.read_stream("/a") as pieces:
            for piece in pieces:
                got.append(piece)
        assert got == [b"the first"]


def test_a_stream_lets_go() -> None:
    class Endless(httpx.SyncByteStream):
        closed = False

        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b"more"

        def close(self) -> None:
            self.closed = True

    body = Endless()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=body))
    with sietch.Client("http://h", transport=transport) as c:
        with c.sandbox("box").logs_stream() as logs:
            assert next(logs) == b"more"
            assert not body.closed
        assert body.closed
        assert list(logs) == []


@pytest.mark.parametrize("kind", KINDS)
def test_with_removes_what_it_made(kind: str) -> None:
    gone = ok(status=204)
    server = Server(ok(samples.SANDBOX, 201), gone)
    with client(kind, server) as (c, settle):
        box = settle(c.run("x"))
        settle(leave(box))
        settle(leave(c.sandbox("other")))  # only looked up
    assert server.operations == ["runSandbox", "removeSandbox"]
    assert dict(server.request.url.params) == {"force": "true"}

    server = Server(ok(samples.SANDBOX, 201), gone)
    with client(kind, server) as (c, settle):
        box = settle(c.run("x"))
        settle(box.remove())
        settle(leave(box))
    assert server.operations == ["runSandbox", "removeSandbox"]


def leave(box: Any) -> Any:
    if isinstance(box, sietch.Sandbox):
        with box:
            return None

    async def inside() -> None:
        async with box:
            pass

    return inside()


def test_a_sandbox_with_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(ok(samples.SANDBOX, 201), ok(status=204), fails("not_found", 404))
    monkeypatch.setattr("sietch._blocking.transport", lambda *_: server)
    with sietch.Sandbox.run("x") as box:
        assert box.name == "box"
    with pytest.raises(RuntimeError, match="closed"):
        box.client.version()
    with pytest.raises(sietch.NotFoundError):
        sietch.Sandbox.run("y")


@pytest.mark.parametrize("kind", KINDS)
def test_check(kind: str) -> None:
    server = Server(ok({**samples.EXEC, "stderr": "a\nno such thing\n", "stderr_base64": ""}))
    with client(kind, server) as (c, settle), pytest.raises(sietch.CommandFailedError) as caught:
        settle(c.sandbox("box").exec("make", "x", check=True))
    assert str(caught.value) == "make ended with exit code 3: no such thing"
    assert caught.value.result.exit_code == 3
    assert caught.value.command == ["make", "x"]
