"""Every operation of the document, by both clients."""

from __future__ import annotations

import io
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import pytest
import samples
from document import DOCUMENT
from fakes import Answer, Server, client, lines, ok

import sietch

KINDS = ("sync", "async")


class Case(NamedTuple):
    operation: str
    call: Callable[[Any, Any], Any]  # of a client and a sandbox of it
    answer: Answer
    check: Callable[[Any], bool]
    query: Mapping[str, Any] = MappingProxyType({})
    json: Optional[Dict[str, Any]] = None
    body: Optional[bytes] = None
    headers: Mapping[str, str] = MappingProxyType({})


def names(found: List[Any]) -> List[str]:
    return [x.name for x in found]


def nothing(got: Any) -> bool:
    return got is None


SSE = b'id: 9\nevent: sandbox.run\ndata: {"id":9,"time":"2026-01-02T03:04:05Z","type":"sandbox.run"}\n\n:\n\n'
CHANGES = (
    b"event: ready\ndata: {}\n\n"
    b'event: change\ndata: {"path":"/a/b","op":"create","is_dir":false}\n\n:\n\n'
    b'event: change\ndata: {"path":"/a/b","op":"write","is_dir":false}\n\n'
)

CASES = [
    # --- images
    Case("listImages", lambda c, b: c.images.list(), ok([samples.IMAGE]), lambda r: names(r) == ["debian"]),
    Case(
        "inspectImage",
        lambda c, b: c.images.inspect("team/web:v1"),
        ok(samples.IMAGE),
        lambda r: r.config.cmd == ["/bin/sh"] and r.created.microsecond == 123456,
    ),
    Case("removeImage", lambda c, b: c.images.remove("debian:bookworm"), ok(status=204), nothing),
    Case(
        "tagImage",
        lambda c, b: c.images.tag("debian", "base:1"),
        ok(samples.IMAGE, 201),
        lambda r: r.tag == "bookworm",
        json={"name": "base:1"},
    ),
    Case(
        "buildImage",
        lambda c, b: c.images.build(
            io.BytesIO(b"a tar"),
            name=["web:1", "web:2"],
            dockerfile="docker/Dockerfile",
            target="final",
            build_args={"V": "1=2"},
            secrets={"npm": "secret"},
            build_contexts={"base": "docker-image://debian"},
            no_cache=True,
            idempotency_key="k1",
        ),
        lines({"progress": "#1 FROM"}, {"image": samples.IMAGE}),
        lambda r: r.id == "sha256:1",
        query={
            "name": ["web:1", "web:2"],
            "dockerfile": "docker/Dockerfile",
            "target": "final",
            "build_arg": "V=1=2",
            "build_context": "base=docker-image://debian",
            "no_cache": "true",
            "progress": "quiet",
        },
        body=b"a tar",
        headers={"Idempotency-Key": "k1", "Sietch-Build-Secrets": "eyJucG0iOiAiYzJWamNtVjAifQ=="},
    ),
    Case(
        "pullImage",
        lambda c, b: c.images.pull("docker.io/library/alpine"),
        lines({"image": samples.IMAGE}),
        lambda r: r.name == "debian",
        json={"ref": "docker.io/library/alpine"},
    ),
    Case(
        "bootstrapImage",
        lambda c, b: c.images.bootstrap("debian:bookworm"),
        lines({"progress": "unpack"}, {"image": samples.IMAGE}),
        lambda r: r.name == "debian",
        json={"name": "debian:bookworm"},
    ),
    Case(
        "importImage",
        lambda c, b: c.images.import_archive(io.BytesIO(b"archive"), name="x:1", format="oci"),
        ok(samples.IMAGE, 201),
        lambda r: r.name == "debian",
        query={"name": "x:1", "format": "oci"},
        body=b"archive",
    ),
    Case(
        "exportImage",
        lambda c, b: c.images.export("debian:bookworm", format="rootfs"),
        ok(b"a tar"),
        lambda r: b"".join(r) == b"a tar",
        query={"format": "rootfs"},
    ),
    # --- sandboxes
    Case(
        "listSandboxes",
        lambda c, b: c.list(all=True),
        ok([samples.SANDBOX]),
        lambda r: r[0].main.exit_code is None and r[0].ports[0].host == 18080,
        query={"all": "true"},
    ),
    Case(
        "runSandbox",
        lambda c, b: c.run(
            "debian:bookworm",
            name="box",
            cpus=2,
            memory="1.5G",
            disk=1 << 30,
            ports=[80, "127.0.0.1:8080:80", "5353:53/udp"],
            env={"A": "b=c"},
            workdir="/srv",
            user="nobody",
            network="nat",
            labels={"team": "blue"},
            message="base",
            args=["sleep", "inf"],
            from_disk=True,
            nested=True,
            ttl=1.5,
            idempotency_key="k",
        ),
        ok(samples.SANDBOX, 201),
        lambda r: r.name == "box" and r.ready_ms == 812.5,
        json={
            "from": "debian:bookworm",
            "name": "box",
            "cpus": 2,
            "memory_bytes": 3 << 29,
            "disk_bytes": 1 << 30,
            "ports": [
                {"guest": 80},
                {"host_ip": "127.0.0.1", "host": 8080, "guest": 80},
                {"host": 5353, "guest": 53, "protocol": "udp"},
            ],
            "env": ["A=b=c"],
            "workdir": "/srv",
            "user": "nobody",
            "network": "nat",
            "labels": {"team": "blue"},
            "message": "base",
            "args": ["sleep", "inf"],
            "from_disk": True,
            "nested": True,
            "ttl_ms": 1500,
        },
        headers={"Idempotency-Key": "k"},
    ),
    Case(
        "runSandbox",
        lambda c, b: c.run("v1"),
        ok(samples.SANDBOX, 201),
        lambda r: r.name == "box",
        json={"from": "v1"},
    ),
    Case("inspectSandbox", lambda c, b: b.inspect(), ok(samples.SANDBOX), lambda r: r.head.branch == "main"),
    Case("removeSandbox", lambda c, b: b.remove(), ok(status=204), nothing),
    Case(
        "removeSandbox", lambda c, b: b.remove(force=True), ok(status=204), nothing, query={"force": "true"}
    ),
    Case(
        "sandboxStats",
        lambda c, b: b.stats(),
        ok(samples.STATS),
        lambda r: r.memory.pss_bytes == 90 and r.guest.load == [0.5, 0.25, 1.0] and r.cpu.limit is None,
    ),
    Case(
        "stats",
        lambda c, b: c.stats(),
        ok([{**samples.STATS, "state": "paused", "guest": None}]),
        lambda r: [(s.name, s.guest) for s in r] == [("box", None)],
    ),
    Case(
        "resizeSandbox",
        lambda c, b: b.resize(cpus=0.5, memory="256M"),
        ok({**samples.SANDBOX, "cpu_limit": 0.5, "memory_limit_bytes": 1 << 28}),
        lambda r: (r.cpu_limit, r.memory_limit_bytes) == (0.5, 1 << 28),
        json={"cpus": 0.5, "memory_bytes": 1 << 28},
    ),
    Case(
        "reclaimSandbox",
        lambda c, b: b.reclaim(),
        ok({"name": "box", "reclaimed_bytes": 5, "private_bytes": 7}),
        lambda r: r.reclaimed_bytes == 5,
    ),
    Case("pauseSandbox", lambda c, b: b.pause(), ok(status=204), nothing),
    Case("resumeSandbox", lambda c, b: b.resume(), ok(status=204), nothing),
    Case(
        "stopSandbox", lambda c, b: b.stop(timeout=2), ok(status=204), nothing, query={"timeout_ms": "2000"}
    ),
    Case("startSandbox", lambda c, b: b.start(), ok(samples.SANDBOX), lambda r: r.state == "running"),
    Case(
        "sandboxLogs",
        lambda c, b: b.logs(source="main", tail=10),
        ok(b"hello\n"),
        lambda r: r == b"hello\n",
        query={"source": "main", "tail": "10"},
    ),
    Case(
        "sandboxLogs",
        lambda c, b: b.logs_stream(),
        ok(b"hello\n"),
        lambda r: b"".join(r) == b"hello\n",
        query={"source": "all", "follow": "true"},
    ),
    # --- processes
    Case(
        "exec",
        lambda c, b: b.exec(
            "cat", "-", env={"A": "b"}, workdir="/", user="root", stdin=b"\xff", timeout=0.25, max_output="1M"
        ),
        ok(samples.EXEC),
        lambda r: (
            (r.exit_code, r.stdout, r.stderr_bytes, r.stdout_bytes, r.ok)
            == (3, "out\n", b"\xff", b"out\n", False)
        ),
        json={
            "args": ["cat", "-"],
            "env": ["A=b"],
            "workdir": "/",
            "user": "root",
            "stdin_base64": "/w==",
            "timeout_ms": 250,
            "max_output_bytes": 1 << 20,
        },
    ),
    Case(
        "exec",
        lambda c, b: b.exec("cat", stdin="text"),
        ok(samples.EXEC),
        lambda r: r.duration_ms == 1.5,
        json={"args": ["cat"], "stdin": "text"},
    ),
    Case("listProcesses", lambda c, b: b.processes.list(), ok([samples.PROCESS]), lambda r: r[0].id == "p1"),
    Case(
        "startProcess",
        lambda c, b: b.processes.start(
            "sleep", "60", env={"A": "b"}, user="nobody", workdir="/tmp", timeout=60
        ),
        ok(samples.PROCESS, 201),
        lambda r: r.id == "p1" and r.info.running,
        json={
            "args": ["sleep", "60"],
            "env": ["A=b"],
            "user": "nobody",
            "workdir": "/tmp",
            "timeout_ms": 60000,
        },
    ),
    Case(
        "inspectProcess", lambda c, b: b.processes.get("p1"), ok(samples.ENDED), lambda r: r.info.signal == 15
    ),
    # --- files
    Case(
        "readFile",
        lambda c, b: b.files.read("/etc/a b"),
        ok(b"\x00\xff"),
        lambda r: r == b"\x00\xff",
        query={"path": "/etc/a b"},
    ),
    Case("readFile", lambda c, b: b.files.read_text("/a"), ok("ü".encode()), lambda r: r == "ü"),
    Case("readFile", lambda c, b: b.files.read_stream("/a"), ok(b"ab"), lambda r: b"".join(r) == b"ab"),
    Case(
        "writeFile",
        lambda c, b: b.files.write("/a", "ü", mode=0o600, uid=1, gid=2, parents=True),
        ok(status=204),
        nothing,
        query={"path": "/a", "mode": "600", "uid": "1", "gid": "2", "parents": "true"},
        body="ü".encode(),
    ),
    Case(
        "writeFile", lambda c, b: b.files.write("/a", io.BytesIO(b"xy")), ok(status=204), nothing, body=b"xy"
    ),
    Case("writeFile", lambda c, b: b.files.write("/a", [b"x", b"y"]), ok(status=204), nothing, body=b"xy"),
    Case(
        "removePath",
        lambda c, b: b.files.remove("/a", recursive=True),
        ok(status=204),
        nothing,
        query={"path": "/a", "recursive": "true"},
    ),
    Case(
        "statPath",
        lambda c, b: b.files.stat("/a"),
        ok(samples.STAT),
        lambda r: r.mode == 0o100644,
        query={"path": "/a"},
    ),
    Case(
        "listDir",
        lambda c, b: b.files.list("/"),
        ok([samples.STAT]),
        lambda r: names(r) == ["a"],
        query={"path": "/"},
    ),
    Case(
        "makeDir",
        lambda c, b: b.files.mkdir("/a/b", mode=0o700, parents=True),
        ok(status=204),
        nothing,
        json={"path": "/a/b", "mode": "700", "parents": True},
    ),
    Case(
        "readTar",
        lambda c, b: b.files.read_tar("/etc", follow_link=True),
        ok(b"tar"),
        lambda r: b"".join(r) == b"tar",
        query={"path": "/etc", "follow_link": "true"},
    ),
    Case(
        "writeTar",
        lambda c, b: b.files.write_tar("/srv", b"tar"),
        ok(status=204),
        nothing,
        query={"path": "/srv"},
        body=b"tar",
    ),
    Case(
        "watchPath",
        lambda c, b: b.files.watch("/a", recursive=True),
        ok(CHANGES),
        lambda r: [(e.path, e.op) for e in r] == [("/a/b", "create"), ("/a/b", "write")],
        query={"path": "/a", "recursive": "true"},
    ),
    # --- ports
    Case("listPorts", lambda c, b: b.ports.list(), ok([samples.PORT]), lambda r: r[0].guest == 80),
    Case(
        "addPort",
        lambda c, b: b.ports.add("8080:80"),
        ok(samples.PORT, 201),
        lambda r: r.host == 18080,
        json={"host": 8080, "guest": 80},
    ),
    Case(
        "removePort",
        lambda c, b: b.ports.remove(5353, host_ip="127.0.0.1", protocol="udp"),
        ok(status=204),
        nothing,
        query={"host_ip": "127.0.0.1", "protocol": "udp"},
    ),
    Case(
        "proxy",
        lambda c, b: b.ports.request("GET", 5737, "/doc/1", headers={"Accept": "text/html"}),
        ok(b"no", 404),
        lambda r: (r.status_code, r.text) == (404, "no"),
        headers={"Accept": "text/html"},
    ),
    # --- history
    Case(
        "commit",
        lambda c, b: b.commit("first", author="me", labels={"k": "v"}, disk_only=True),
        ok(samples.COMMIT, 201),
        lambda r: r.memory.stored_bytes == 1 and r.timing.total_ms == 80.0,
        json={"message": "first", "author": "me", "labels": {"k": "v"}, "disk_only": True},
    ),
    Case("commit", lambda c, b: b.commit(), ok(samples.COMMIT, 201), lambda r: r.id == "c1", json={}),
    Case(
        "checkout",
        lambda c, b: b.checkout("box~1", new_branch="try", save=False),
        ok(samples.SANDBOX),
        lambda r: r.head.commit == "c1",
        json={"ref": "box~1", "new_branch": "try", "no_save": True},
    ),
    Case("checkout", lambda c, b: b.checkout("v1"), ok(samples.SANDBOX), lambda r: True, json={"ref": "v1"}),
    Case("reflog", lambda c, b: b.reflog(), ok([samples.REFLOG]), lambda r: r[0].action == "commit"),
    Case(
        "fork",
        lambda c, b: b.fork(2, prefix="try", branch=True, labels={"k": "v"}, idempotency_key="k"),
        lines(*samples.FORKS),
        lambda r: names(r) == ["box-1", "box-2"] and r[1].ready_ms == 200.0,
        json={"from": "box", "n": 2, "prefix": "try", "branch": True, "labels": {"k": "v"}},
        headers={"Idempotency-Key": "k"},
    ),
    Case(
        "fork",
        lambda c, b: c.fork_stream("v1", 2),
        lines(*samples.FORKS),
        lambda r: names(r) == ["box-1", "box-2"],
        json={"from": "v1", "n": 2},
    ),
    Case(
        "log",
        lambda c, b: b.log(n=5),
        ok([samples.COMMIT]),
        lambda r: r[0].refs[1] == "tag: v1",
        query={"ref": "box", "n": "5"},
    ),
    Case("log", lambda c, b: c.log(), ok([]), lambda r: r == []),
    Case("show", lambda c, b: c.show("box@{1}~2^1"), ok(samples.COMMIT), lambda r: r.labels == {"k": "v"}),
    Case("listBranches", lambda c, b: c.branches.list(), ok([samples.REF]), lambda r: r[0].sandbox == "box"),
    Case(
        "createBranch",
        lambda c, b: b.branch("try"),
        ok(samples.REF, 201),
        lambda r: r.commit == "c1",
        json={"name": "try", "ref": "box"},
    ),
    Case(
        "renameBranch", lambda c, b: c.branches.rename("a", "b"), ok(status=204), nothing, json={"name": "b"}
    ),
    Case("deleteBranch", lambda c, b: c.branches.delete("a"), ok(status=204), nothing),
    Case("listTags", lambda c, b: c.tags.list(), ok([samples.REF]), lambda r: names(r) == ["main"]),
    Case(
        "createTag",
        lambda c, b: b.tag("v1"),
        ok(samples.REF, 201),
        lambda r: True,
        json={"name": "v1", "ref": "box"},
    ),
    Case("deleteTag", lambda c, b: c.tags.delete("v1"), ok(status=204), nothing),
    # --- storage and server
    Case(
        "gc",
        lambda c, b: c.gc(dry_run=True),
        ok(samples.GC),
        lambda r: r.leftover_dirs == 6,
        query={"dry_run": "true"},
    ),
    Case("fsck", lambda c, b: c.fsck(), ok(samples.FSCK), lambda r: r.problems[0].hint == "gc"),
    Case("du", lambda c, b: c.du(), ok(samples.DU), lambda r: r.kernel_bytes == 6),
    Case(
        "events",
        lambda c, b: c.events(after=0, follow=False),
        ok(SSE),
        lambda r: [(e.id, e.type) for e in r] == [(9, "sandbox.run")],
        query={"after": "0", "follow": "false"},
    ),
    Case("doctor", lambda c, b: c.doctor(), ok(samples.DOCTOR), lambda r: r.checks[0].fix == "modprobe kvm"),
    Case("version", lambda c, b: c.version(), ok({"version": "v1", "api": "1"}), lambda r: r.api == "1"),
    Case("openapi", lambda c, b: c.openapi(), ok(b"openapi: 3.0.3"), lambda r: r == "openapi: 3.0.3"),
    Case("healthz", lambda c, b: c.health(), ok(samples.HEALTH), lambda r: r.status == "ok"),
    Case(
        "readyz",
        lambda c, b: c.ready(),
        ok({**samples.HEALTH, "status": "failing"}, 503),
        lambda r: r.status == "failing",
    ),
    Case("metrics", lambda c, b: c.metrics(), ok(b"sietch_x 1\n"), lambda r: r == "sietch_x 1\n"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.operation)
def test_call(kind: str, case: Case) -> None:
    server = Server(case.answer)
    with client(kind, server) as (c, settle):
        got = settle(case.call(c, c.sandbox("box")))
    assert server.operations == [case.operation]
    assert case.check(got), got
    query: Dict[str, Any] = {}
    for k, v in server.request.url.params.multi_items():
        query[k] = [*query[k], v] if isinstance(query.get(k), list) else [query[k], v] if k in query else v
    if case.query:
        assert query == case.query
    if case.json is not None:
        assert server.json == case.json
    if case.body is not None:
        assert server.request.content == case.body
    for name, value in case.headers.items():
        assert server.request.headers[name] == value


PROCESS_CASES = [
    Case("inspectProcess", lambda p, _: p.inspect(), ok(samples.ENDED), lambda r: r.exit_code == 143),
    Case("removeProcess", lambda p, _: p.remove(), ok(status=204), nothing),
    Case(
        "waitProcess",
        lambda p, _: p.wait(0.0001),
        ok(samples.PROCESS),
        lambda r: r.running,
        query={"timeout_ms": "1"},
    ),
    Case("waitProcess", lambda p, _: p.wait(), ok(samples.ENDED), lambda r: not r.running),
    Case(
        "processOutput",
        lambda p, _: p.output(5, limit=10),
        ok(b"hello", Sietch_Next_Offset="10"),
        lambda r: (r.text, r.next) == ("hello", 10),
        query={"offset": "5", "limit": "10"},
    ),
    Case(
        "processOutput",
        lambda p, _: p.follow(5),
        ok(b"hello"),
        lambda r: b"".join(r) == b"hello",
        query={"offset": "5", "follow": "true"},
    ),
    Case("signalProcess", lambda p, _: p.signal(15), ok(status=204), nothing, json={"signal": "15"}),
    Case("signalProcess", lambda p, _: p.kill(), ok(status=204), nothing, json={"signal": "KILL"}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", PROCESS_CASES, ids=lambda c: c.operation)
def test_process_call(kind: str, case: Case) -> None:
    server = Server(ok(samples.PROCESS, 201), case.answer)
    with client(kind, server) as (c, settle):
        process = settle(c.sandbox("box").processes.start("sleep", "60"))
        got = settle(case.call(process, None))
    assert server.operations == ["startProcess", case.operation]
    assert case.check(got), got
    if case.query:
        assert dict(server.request.url.params) == case.query
    if case.json is not None:
        assert server.json == case.json


def test_every_operation_is_here() -> None:
    """An operation that is added to the document cannot be forgotten here."""
    ours = {o.id for o in DOCUMENT.operations if not o.id.startswith("arrakis")}
    called = {c.operation for c in CASES + PROCESS_CASES}
    assert ours - called == {
        "execStream",  # a WebSocket: test_exec_stream.py
        "cancelCall",  # here a call ends when its caller leaves
        "dialPort",  # a WebSocket for whoever speaks other than HTTP, which has the proxy
    }


def test_paths_are_encoded() -> None:
    server = Server(ok(samples.IMAGE), ok(samples.COMMIT), ok(status=204))
    with client("sync", server) as (c, _):
        c.images.inspect("team/web:v1")
        c.show("box@{1}~2^1")
        c.branches.delete("a/b?c")
    assert [r.url.raw_path.decode() for r in server.requests] == [
        "/v1/images/team%2Fweb%3Av1",
        "/v1/commits/box%40%7B1%7D~2%5E1",
        "/v1/branches/a%2Fb%3Fc",
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.sandbox("../images"),
        lambda c: c.sandbox("Box"),
        lambda c: c.run("x", name="a/b"),
        lambda c: c.run("x", memory="a lot"),
        lambda c: c.run("x", ports=["80:http"]),
        lambda c: c.run("x", ports=[70000]),
        lambda c: c.run("x", env={"A=B": "c"}),
        lambda c: c.run("x", ttl=0),
        lambda c: c.images.inspect(""),
        lambda c: c.images.inspect(".."),
        lambda c: c.sandbox("box").exec(),
        lambda c: c.sandbox("box").exec(["ls", "-l"]),
        lambda c: c.sandbox("box").exec("ls", timeout=-1),
        lambda c: c.sandbox("box").files.read("etc/passwd"),
        lambda c: c.sandbox("box").files.write("/a", "b", mode=0o70000),
    ],
)
def test_what_makes_no_sense_is_not_sent(call: Callable[[Any], Any]) -> None:
    server = Server()
    with client("sync", server) as (c, _), pytest.raises(sietch.UsageError):
        call(c)
    assert server.requests == []


@pytest.mark.parametrize("kind", KINDS)
def test_build_of_a_directory(kind: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / ".dockerignore").write_text("secret\n")
    (tmp_path / "secret").write_text("s")
    told: List[str] = []
    server = Server(lines({"progress": "#1"}, {"progress": "#2"}, {"image": samples.IMAGE}))
    with client(kind, server) as (c, settle):
        image = settle(c.images.build(tmp_path, name="web", progress=told.append))
    assert image.id == "sha256:1"
    assert told == ["#1", "#2"]
    assert b"FROM scratch" in server.request.content
    assert b"secret" in server.request.content  # the .dockerignore itself
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(server.request.content)) as tar:
        assert tar.getnames() == [".dockerignore", "Dockerfile"]
        assert {m.uid for m in tar} == {0}
