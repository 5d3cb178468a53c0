"""Both clients with real sandboxes on a real server."""

from __future__ import annotations

import asyncio
import doctest
import os
import threading
import time
from pathlib import Path
from typing import Any, List

import pytest
from conftest import IMAGE

import sietch

pytestmark = pytest.mark.machines

README = Path(__file__).resolve().parent.parent / "README.md"
SDK = README.parents[2] / "docs" / "sdk.md"


@pytest.mark.parametrize("page", [README, SDK], ids=lambda p: p.name)
def test_examples(page: Path) -> None:
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried > 5
    assert failed == 0


def test_the_server(server: sietch.Client) -> None:
    assert server.version().api == "1"
    assert server.health().status == "ok"
    assert server.ready().status == "ok"
    assert "openapi: 3" in server.openapi()
    assert "sietch_" in server.metrics()
    assert server.doctor().checks
    assert server.du().images_bytes > 0
    assert IMAGE in [f"{i.name}:{i.tag}" for i in server.images.list()]
    assert server.images.inspect(IMAGE).size_bytes > 0


def test_both_ways_to_the_server(server: sietch.Client, box: sietch.Sandbox) -> None:
    """By its address and by its unix socket; exec_stream takes the same way."""
    for url in (os.environ["SIETCH_URL"], os.environ["SIETCH_TEST_SOCKET"]):
        with sietch.Client(url) as c:
            same = c.sandbox(box.name)
            assert same.exec("echo", url).stdout == url + "\n"
            with same.exec_stream("echo", url) as run:
                assert b"".join(x.data for x in run).decode() == url + "\n"


def test_tokens() -> None:
    with (
        sietch.Client(os.environ["SIETCH_URL"], token="wrong") as c,
        pytest.raises(sietch.UnauthorizedError) as caught,
    ):
        c.list()
    assert caught.value.hint
    with sietch.Client(os.environ["SIETCH_URL"], token="wrong") as c, pytest.raises(sietch.UnauthorizedError):
        c.sandbox("box").exec_stream("true").__enter__()


def test_exec(box: sietch.Sandbox) -> None:
    r = box.exec(
        "sh",
        "-c",
        "echo $A; pwd; cat; echo err >&2; exit 7",
        env={"A": "b c"},
        workdir="/tmp",
        stdin=b"in\xff",
    )
    assert (r.exit_code, r.stdout_bytes, r.stderr) == (7, b"b c\n/tmp\nin\xff", "err\n")
    assert box.exec("no-such-command").exit_code == 127
    assert box.exec("sleep", "60", timeout=0.5).exit_code == 124
    with pytest.raises(sietch.CommandFailedError):
        box.exec("false", check=True)
    r = box.exec("head", "-c", "100000", "/dev/zero", max_output=1000)
    assert (len(r.stdout), r.truncated) == (1000, True)


def test_a_silent_command_is_not_cut(box: sietch.Sandbox) -> None:
    """Longer than the client's timeout for answers that come at once."""
    with sietch.Client(timeout=1.0) as c:
        assert c.sandbox(box.name).exec("sh", "-c", "sleep 3; echo done").stdout == "done\n"
        with c.sandbox(box.name).exec_stream("sh", "-c", "sleep 3; echo done") as run:
            assert [x.text for x in run] == ["done\n"]


def looking_for(command: str) -> List[str]:
    """A command that succeeds where this one runs, and does not find itself."""
    return ["sh", "-c", f"ps | grep '[{command[0]}]{command[1:]}'"]


def test_exec_stream_is_as_it_comes(box: sietch.Sandbox) -> None:
    began = time.monotonic()
    with box.exec_stream("sh", "-c", "echo first; echo second >&2; sleep 60") as run:
        got = {next(run).stream, next(run).stream}
        assert box.exec(*looking_for("sleep 60")).ok
    assert got == {"stdout", "stderr"}
    assert time.monotonic() - began < 30
    # Leaving ended it.
    deadline = time.monotonic() + 20
    while box.exec(*looking_for("sleep 60")).ok:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_exec_stream_both_ways(box: sietch.Sandbox) -> None:
    data = os.urandom(3 << 20)
    with box.exec_stream("cat", stdin=data) as run:
        assert b"".join(x.data for x in run) == data
    assert run.exit_status == sietch.ExitStatus(0)
    with box.exec_stream("sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done") as run:
        assert next(run).text == "ready\n"
        run.signal("TERM")
        assert run.wait().exit_code == 9


def test_terminal(box: sietch.Sandbox) -> None:
    with box.exec_stream("sh", tty=True, rows=24, cols=80, stdin=True) as shell:
        shell.resize(40, 100)
        time.sleep(0.3)
        shell.write("stty size; exit 5\n")
        output = b"".join(x.data for x in shell)
    assert b"40 100" in output
    assert shell.exit_status is not None
    assert shell.exit_status.exit_code == 5


def test_processes(box: sietch.Sandbox) -> None:
    job = box.processes.start("sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.3; done; exit 4")
    assert b"".join(job.follow()) == b"1\n2\n3\n"
    assert job.wait().exit_code == 4
    assert job.output(2, limit=2) == sietch.ProcessOutput(b"2\n", 4)
    assert job.id in [p.id for p in box.processes.list()]
    job.remove()
    with pytest.raises(sietch.NotFoundError):
        box.processes.get(job.id)


def test_files(box: sietch.Sandbox, tmp_path: Path) -> None:
    data = os.urandom(5 << 20)
    box.files.write("/root/big", iter([data[: 1 << 20], data[1 << 20 :]]))
    assert box.files.read("/root/big") == data
    with box.files.read_stream("/root/big") as pieces:
        assert b"".join(pieces) == data
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "f").write_bytes(data[:1000])
    (tree / "link").symlink_to("sub/f")
    box.files.mkdir("/root/in")
    box.files.upload(tree, "/root/in")
    assert box.exec("readlink", "/root/in/tree/link").stdout == "sub/f\n"
    back = tmp_path / "back"
    back.mkdir()
    assert box.files.download("/root/in/tree", back) == str(back / "tree")
    assert (back / "tree" / "link").read_bytes() == data[:1000]
    box.files.remove("/root/in", recursive=True)
    with pytest.raises(sietch.NotFoundError):
        box.files.stat("/root/in")
    with pytest.raises(sietch.SietchError):
        box.files.read("/root")


def test_watch(box: sietch.Sandbox) -> None:
    box.files.mkdir("/root/seen")
    with box.files.watch("/root/seen", recursive=True) as changes:
        box.exec("sh", "-c", "echo x > /root/seen/a")
        seen: List[str] = []
        for change in changes:
            seen.append(change.op)
            if change.op == "write":
                break
    assert seen[0] == "create"


def test_ports_and_proxy(box: sietch.Sandbox) -> None:
    import httpx

    box.files.write("/root/www/index.html", "hello", parents=True)
    box.processes.start("httpd", "-f", "-p", "8080", "-h", "/root/www")
    port = box.ports.add(8080)
    assert port in box.ports.list()
    deadline = time.monotonic() + 20
    while True:
        try:
            assert httpx.get(f"http://{port.host_ip}:{port.host}/", timeout=5).text == "hello"
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert box.ports.request("GET", 8080, "/index.html").text == "hello"
    assert box.ports.request("GET", 8080, "/none").status_code == 404
    box.ports.remove(port.host)
    assert port not in box.ports.list()


def test_history(server: sietch.Client, box: sietch.Sandbox) -> None:
    box.files.write("/root/state", "one")
    one = box.commit("one", labels={"score": "1"})
    assert one.timing is not None
    assert one.timing.pause_ms > 0
    box.tag("t-one")
    box.files.write("/root/state", "two")
    box.checkout("t-one", new_branch="again")
    assert box.files.read_text("/root/state") == "one"
    assert box.inspect().head == sietch.Head("again", one.id)
    assert server.show(f"{box.name}@{{1}}").parents == [one.id]
    assert [c.id for c in box.log(n=1)] == [one.id]
    server.branches.rename("again", "once-more")
    assert "once-more" in [b.name for b in server.branches.list()]
    server.tags.delete("t-one")
    with pytest.raises(sietch.NotFoundError):
        server.show("t-one")


def test_fork_and_events(server: sietch.Client, box: sietch.Sandbox) -> None:
    ready = threading.Event()
    seen: List[sietch.Event] = []

    def listen() -> None:
        with sietch.Client() as c, c.events() as events:
            ready.set()
            for event in events:
                seen.append(event)
                if event.type == "sandbox.remove":
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    assert ready.wait(20)
    box.exec("sh", "-c", "echo kept > /tmp/memory")
    copies = box.fork(2, prefix="copy", labels={"of": box.name})
    try:
        assert [c.exec("cat", "/tmp/memory").stdout for c in copies] == ["kept\n"] * 2
        assert all(c.ready_ms for c in copies)
        assert {s.labels["of"] for s in server.list() if s.name.startswith("copy")} == {box.name}
    finally:
        for c in copies:
            c.remove(force=True)
    listener.join(timeout=30)
    assert not listener.is_alive()
    kinds = [e.type for e in seen]
    assert "sandbox.remove" in kinds
    assert any("fork" in k or k == "sandbox.run" for k in kinds), kinds
    assert next(e.id for e in server.events(after=seen[0].id - 1, follow=False)) == seen[0].id


def test_once_only(server: sietch.Client, box: sietch.Sandbox) -> None:
    for _ in range(2):
        box.exec("sh", "-c", "echo x >> /root/once", idempotency_key="sdk-once")
    assert box.files.read_text("/root/once") == "x\n"
    with pytest.raises(sietch.KeyReusedError):
        box.exec("true", idempotency_key="sdk-once")


def test_life(server: sietch.Client) -> None:
    with server.run(IMAGE, memory="256M", disk="256M") as box:
        box.pause()
        assert box.inspect().state == "paused"
        box.resume()
        box.stop()
        with pytest.raises(sietch.WrongStateError):
            box.exec("true")
        assert box.start().state == "running"
        assert box.exec("echo", "up").stdout == "up\n"
        assert box.logs()
        name = box.name
    with pytest.raises(sietch.NotFoundError):
        server.sandbox(name).inspect()


async def until(box: sietch.AsyncSandbox, command: str, *, runs: bool) -> None:
    deadline = time.monotonic() + 20
    while (await box.exec(*looking_for(command))).ok != runs:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


def test_async(box: sietch.Sandbox, tmp_path: Path) -> None:
    async def main() -> None:
        async with sietch.AsyncClient() as client:
            same = client.sandbox(box.name)
            results = await asyncio.gather(*(same.exec("echo", str(n)) for n in range(10)))
            assert [r.stdout for r in results] == [f"{n}\n" for n in range(10)]

            async with same.exec_stream("cat", stdin=[b"a" * 100000, b"b"]) as run:
                assert b"".join([x.data async for x in run]) == b"a" * 100000 + b"b"
            assert run.exit_status == sietch.ExitStatus(0)

            (tmp_path / "f").write_text("file")
            await same.files.upload(tmp_path / "f", "/root", name="async")
            assert await same.files.read_text("/root/async") == "file"
            (tmp_path / "back").mkdir()
            await same.files.download("/root/async", tmp_path / "back")
            assert (tmp_path / "back" / "async").read_text() == "file"

            # A task that is cancelled takes its command with it.
            task = asyncio.create_task(same.exec("sleep", "77"))
            await until(same, "sleep 77", runs=True)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(same, "sleep 77", runs=False)

            async for copy in same.fork_stream(1, prefix="async"):
                async with copy:
                    assert (await copy.exec("hostname")).ok

    asyncio.run(asyncio.wait_for(main(), 240))


def test_build(server: sietch.Client, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nARG V\nCOPY . /\nLABEL v=$V\n")
    (tmp_path / ".dockerignore").write_text("secret\n")
    (tmp_path / "secret").write_text("s")
    told: List[Any] = []
    image = server.images.build(tmp_path, name="sdk:test", build_args={"V": "7"}, progress=told.append)
    assert image.config.labels == {"v": "7"}
    assert told
    server.images.tag("sdk:test", "sdk:again")
    with server.images.export("sdk:again", format="rootfs") as archive:
        content = b"".join(archive)
    assert b"Dockerfile" in content
    for name in ("sdk:test", "sdk:again"):
        server.images.remove(name)
    with pytest.raises(sietch.UsageError):
        server.images.build(tmp_path, dockerfile="none")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY none /\n")
    with pytest.raises(sietch.SietchError, match="none"):
        server.images.build(tmp_path)
