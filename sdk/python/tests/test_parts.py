"""The parts that do no I/O with a server."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import tarfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Set, get_type_hints

import pytest
import samples
from document import DOCUMENT

import sietch
from sietch import _tar, models
from sietch._decode import decode
from sietch._ignore import Ignore
from sietch._lines import Lines, Message, Messages

ROOT = Path(__file__).resolve().parent.parent

# Where a class is not called as its schema.
SCHEMAS = {"SandboxInfo": "Sandbox", "ProcessInfo": "Process"}
# What no schema says: made of messages, headers, or more than one field.
OWN = {"ExitStatus", "Chunk", "ProcessOutput"}


def test_sync_is_what_is_made_of_async() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "unasync.py"), "--check"], check=True)


def test_sync_and_async_are_alike() -> None:
    for name in ("Client", "Sandbox", "ExecStream", "Process", "Stream"):
        sync, other = getattr(sietch, name), getattr(sietch, "Async" + name)
        public = {n for n in vars(sync) if not n.startswith("_")}
        assert public == {n[1:] if n == "aclose" else n for n in vars(other) if not n.startswith("_")}


@pytest.mark.parametrize(
    "cls",
    [
        c
        for c in vars(models).values()
        if isinstance(c, type) and dataclasses.is_dataclass(c) and c.__name__ not in OWN
    ],
    ids=lambda c: c.__name__,
)
def test_models_are_the_schemas(cls: Any) -> None:
    schema = DOCUMENT.expand(DOCUMENT.schema(SCHEMAS.get(cls.__name__, cls.__name__)))
    properties: Dict[str, Any] = dict(schema["properties"])
    if cls is models.ExecResult:  # see _decode.exec_result
        for name in ("stdout", "stderr"):
            properties[name + "_bytes"] = properties.pop(name + "_base64")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    assert set(fields) == set(properties)
    needed: Set[str] = {
        n
        for n, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    assert needed <= set(schema["required"])
    if cls is not models.Health:
        assert needed == set(schema["required"])
    kinds = {"string": (str, datetime), "integer": (int,), "boolean": (bool,), "number": (float,)}
    for name, hint in get_type_hints(cls).items():
        kind = properties[name].get("type")
        kind = kind[0] if isinstance(kind, list) else kind  # nullable
        if kind in kinds and not name.endswith("_bytes"):
            assert any(k is hint or k in getattr(hint, "__args__", ()) for k in kinds[kind]), name


def test_decode() -> None:
    box = decode(sietch.SandboxInfo, {**samples.SANDBOX, "novel": 1, "labels": None})
    assert box.created == datetime(2026, 1, 2, 3, 4, 5, 123456, timezone.utc)
    assert box.labels == {}
    for text, want in (
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"),
        ("2026-01-02T03:04:05.5+02:30", "2026-01-02T00:34:05.500000+00:00"),
        ("2026-01-02t03:04:05.000001-01:00", "2026-01-02T04:04:05.000001+00:00"),
    ):
        assert decode(datetime, text).isoformat() == want
    for cls, wrong in (
        (datetime, "yesterday"),
        (sietch.Head, {"branch": "x"}),
        (sietch.Head, []),
        (List[sietch.Head], {}),
        (sietch.Main, {"running": 1, "exit_code": None}),
        (sietch.Main, {"running": True, "exit_code": True}),
    ):
        with pytest.raises(sietch.ProtocolError):
            decode(cls, wrong)


def test_lines_come_in_pieces() -> None:
    text = b'{"a":1}\r\n\n{"b":2}\n{"c"'
    for size in range(1, len(text) + 1):
        lines, got = Lines(), []
        for at in range(0, len(text), size):
            got += lines.feed(text[at : at + size])
        assert (got, lines.rest()) == ([b'{"a":1}', b"", b'{"b":2}'], b'{"c"')


def test_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sietch._lines.LONGEST", 10)
    lines = Lines()
    lines.feed(b"x" * 10)
    with pytest.raises(sietch.ProtocolError):
        lines.feed(b"x")


def test_events_come_in_pieces() -> None:
    text = ": hello\nid: 7\nevent: a\ndata: one\ndata:two\n\n:\n\ndata: ü\r\n\r\nevent: lost\n\n".encode()
    want = [Message("a", "one\ntwo", "7"), Message("message", "ü", "7")]
    for size in range(1, len(text) + 1):
        messages, got = Messages(), []
        for at in range(0, len(text), size):
            got += messages.feed(text[at : at + size])
        assert got == want


@pytest.mark.parametrize(
    ("rules", "left_out", "kept"),
    [
        ("*.log", ["a.log"], ["d/a.log", "a.log.txt", "alog"]),
        ("**/*.log", ["a.log", "d/a.log", "d/e/a.log"], ["a.txt"]),
        ("node_modules", ["node_modules", "node_modules/x/y"], ["a/node_modules", "node_modules2"]),
        ("/a/", ["a", "a/b"], ["b/a"]),
        ("# no\n\n  a  ", ["a"], ["# no", "b"]),
        ("*\n!keep", ["a", "a/keep"], ["keep", "keep/a"]),
        ("*.md\n!README*.md\nREADME-secret.md", ["a.md", "README-secret.md"], ["README.md", "README-x.md"]),
        ("a?c\n[xy]z", ["abc", "xz", "yz"], ["ac", "a/c", "zz"]),
        ("[^a]b", ["xb"], ["ab"]),
        ("a\\*", ["a*"], ["ab"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["az", "z"]),
        ("a/../b", ["b"], ["a"]),
        ("**", ["a", "a/b"], []),
    ],
)
def test_ignore(rules: str, left_out: List[str], kept: List[str]) -> None:
    ignore = Ignore(rules)
    assert [p for p in left_out + kept if ignore.leaves_out(p)] == left_out


def members(data: bytes) -> Dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: m for m in tar}


def test_tar_of_a_directory(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_bytes(b"x" * 1000)
    (root / "d" / "f").chmod(0o751)
    (root / "empty").touch()
    (root / "link").symlink_to("d/f")
    (root / ("long" * 50)).write_text("ü")
    os.link(root / "d" / "f", root / "z-hard")
    data = b"".join(_tar.stream(str(root), "name"))
    assert len(data) % 512 == 0
    found = members(data)
    assert list(found) == [
        "name",
        "name/d",
        "name/d/f",
        "name/empty",
        "name/link",
        f"name/{'long' * 50}",
        "name/z-hard",
    ]
    assert found["name/d/f"].mode == 0o751
    assert found["name/link"].linkname == "d/f"
    assert found["name/z-hard"].islnk()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        f = tar.extractfile("name/z-hard")
        assert f is not None
        assert f.read() == b"x" * 1000


def test_tar_of_what_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(1 << 20))
    pieces = _tar.stream(str(path), "f")
    next(pieces)
    path.write_bytes(b"")
    with pytest.raises(OSError, match="shorter"):
        list(pieces)


def test_context(tmp_path: Path) -> None:
    for name in ("Dockerfile", "a.txt", "big/1", "big/2", "some/keep", "some/drop", "x/web.Dockerfile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".dockerignore").write_text("Dockerfile\nbig\nsome/*\nx\n")
    got = set(members(b"".join(_tar.context(str(tmp_path)))))
    assert got == {".dockerignore", "Dockerfile", "a.txt", "some"}
    got = set(members(b"".join(_tar.context(str(tmp_path), "x/web.Dockerfile"))))
    assert got == {".dockerignore", "a.txt", "some", "x", "x/web.Dockerfile"}
    (tmp_path / "x/web.Dockerfile.dockerignore").write_text("**\n!some/keep\n")
    got = {
        n for n, m in members(b"".join(_tar.context(str(tmp_path), "x/web.Dockerfile"))).items() if m.isfile()
    }
    assert got == {".dockerignore", "some/keep", "x/web.Dockerfile", "x/web.Dockerfile.dockerignore"}
    with pytest.raises(sietch.UsageError):
        _tar.context(str(tmp_path / "none"))


def archive(*members: Dict[str, Any]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for fields in members:
            member = tarfile.TarInfo(fields["name"])
            content = fields.pop("content", b"")
            for k, v in {"size": len(content), **fields}.items():
                setattr(member, k, v)
            tar.addfile(member, io.BytesIO(content))
    out.seek(0)
    return out


def test_unpacking(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_bytes(b"x" * 1000)
    (root / "d" / "f").chmod(0o4751)
    (root / "d" / "up").symlink_to("../top")
    (root / "top").symlink_to("d/f")
    os.link(root / "d" / "f", root / "z-hard")
    os.utime(root / "d", (1000, 1000))
    to = tmp_path / "to"
    to.mkdir()
    for _ in range(2):  # a second time over the first
        _tar.extract(io.BytesIO(b"".join(_tar.stream(str(root), "tree"))), str(to))
    assert (to / "tree/d/up").read_bytes() == b"x" * 1000
    assert (to / "tree/d/f").stat().st_mode & 0o7777 == 0o751
    assert (to / "tree/d/f").stat().st_ino == (to / "tree/z-hard").stat().st_ino
    assert (to / "tree/d").stat().st_mtime == 1000


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "members",
    [
        [{"name": "../evil"}],
        [{"name": "a/../../evil"}],
        [{"name": "link", "type": LINK, "linkname": "/etc/passwd"}],
        [{"name": "up", "type": LINK, "linkname": "../x"}],
        [{"name": "d/up", "type": LINK, "linkname": "../../x"}],
        # A link that is harmless until another one is there.
        [{"name": "a", "type": LINK, "linkname": "."}, {"name": "b", "type": LINK, "linkname": "a/../.."}],
        [{"name": "out", "type": HARD, "linkname": "../secret"}],
        [{"name": "out", "type": HARD, "linkname": "/etc/passwd"}],
        [{"name": "was-link/x"}],
        [{"name": "was-link/d", "type": tarfile.DIRTYPE}],
        [{"name": "out", "type": HARD, "linkname": "was-link/secret"}],
        [{"name": "dev", "type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}],
        [{"name": "pipe", "type": tarfile.FIFOTYPE}],
    ],
    ids=str,
)
def test_what_a_guest_sends_is_not_trusted(members: List[Dict[str, Any]], tmp_path: Path) -> None:
    inside, secret = tmp_path / "inside", tmp_path / "secret"
    inside.mkdir()
    secret.write_text("secret")
    (inside / "was-link").symlink_to("..")  # of an earlier download
    with pytest.raises((sietch.ProtocolError, FileNotFoundError)):
        _tar.extract(archive(*members), str(inside))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inside", "secret"]
    assert secret.stat().st_nlink == 1
    for path in inside.rglob("*"):
        assert path.name in ("was-link", "a") or not path.is_symlink()


def test_members_lose_what_they_may_not_have(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to("/etc/hostname")
    _tar.extract(
        archive({"name": "/abs", "content": b"1"}, {"name": "f", "mode": 0o6777, "content": b"2"}),
        str(tmp_path),
    )
    assert (tmp_path / "abs").read_bytes() == b"1"  # beneath, as tar does
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o755
