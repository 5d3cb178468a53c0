"""Files of a sandbox."""

from __future__ import annotations

import os
import tempfile
from typing import BinaryIO, Iterable, List, Optional, Union, cast

from .. import _aio, _calls, _tar
from .._calls import Call
from ..models import FileEvent, PathStat
from .wire import AsyncStream, AsyncWire, EventReader, read_bytes

#: What a file is written of.
Content = Union[str, bytes, BinaryIO, Iterable[bytes]]

#: What is unpacked is kept in memory up to this size.
_SPOOL = 8 << 20


class AsyncFiles:
    """Paths in a sandbox; all are absolute."""

    def __init__(self, wire: AsyncWire, name: str) -> None:
        self._wire = wire
        self._name = name

    def _path(self, *more: str) -> str:
        return _calls.sandbox_path(self._name, "files", *more)

    async def read(self, path: str) -> bytes:
        """A regular file; links are followed."""
        query = _calls.query(path=_calls.guest_path(path))
        return (await self._wire.send(Call("GET", self._path(), query=query))).content

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return (await self.read(path)).decode(encoding)

    def read_stream(self, path: str) -> AsyncStream[bytes]:
        """:meth:`read` in pieces, for what is too large for memory."""
        query = _calls.query(path=_calls.guest_path(path))
        return AsyncStream(self._wire, Call("GET", self._path(), query=query), read_bytes)

    async def write(
        self,
        path: str,
        content: Content,
        *,
        mode: Optional[int] = None,
        uid: Optional[int] = None,
        gid: Optional[int] = None,
        parents: bool = False,
    ) -> None:
        """Writes a regular file: whole, or not at all.

        ``content`` is text, bytes, an open file or pieces of bytes. ``mode`` is
        0o644 unless said; ``parents`` makes the directories above.
        """
        body: _calls.Body
        if isinstance(content, str):
            body = content.encode()
        elif isinstance(content, bytes):
            body = content
        elif hasattr(content, "read"):
            body = _aio.each(_tar.pieces(cast(BinaryIO, content)))
        else:
            body = _aio.each(content)
        query = _calls.query(
            path=_calls.guest_path(path), mode=_calls.octal(mode), uid=uid, gid=gid, parents=parents
        )
        headers = {"Content-Type": "application/octet-stream"}
        await self._wire.send(
            Call("PUT", self._path(), query=query, headers=headers, content=body, slow=True)
        )

    async def list(self, path: str) -> List[PathStat]:
        """A directory, by name."""
        query = _calls.query(path=_calls.guest_path(path))
        return await self._wire.value(Call("GET", self._path("list"), query=query), List[PathStat])

    async def stat(self, path: str) -> PathStat:
        """What a path is; a link at its end is not followed."""
        query = _calls.query(path=_calls.guest_path(path))
        return await self._wire.value(Call("GET", self._path("stat"), query=query), PathStat)

    async def mkdir(self, path: str, *, mode: Optional[int] = None, parents: bool = False) -> None:
        """Makes a directory, 0o755 unless said. With ``parents`` those above it,
        and it may be there."""
        request = _calls.body(path=_calls.guest_path(path), mode=_calls.octal(mode), parents=parents or None)
        await self._wire.send(Call("POST", self._path("mkdir"), json=request))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; ``recursive``: and all beneath it."""
        query = _calls.query(path=_calls.guest_path(path), recursive=recursive)
        await self._wire.send(Call("DELETE", self._path(), query=query))

    async def upload(
        self, local: Union[str, os.PathLike[str]], directory: str, *, name: Optional[str] = None
    ) -> None:
        """Copies a file or directory of this machine into a directory of the
        guest, which exists. Owners (as numbers), modes and times are kept. There
        it has its own name, or ``name``."""
        body = _aio.each(_tar.stream(os.fspath(local), name or _tar.name_of(local)))
        await self.write_tar(directory, body)

    async def download(self, path: str, directory: Union[str, os.PathLike[str]]) -> str:
        """Copies a file or directory of the guest into a directory of this
        machine, which exists, and returns the path there.

        What a guest sends is not trusted: nothing lands outside of ``directory``;
        owners and special bits are not taken over. A failure leaves what had come.
        """
        target = os.fspath(directory)
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
            async with self.read_tar(path) as stream:
                async for data in stream:
                    await _aio.call(spool.write, data)
            await _aio.call(spool.seek, 0)
            await _aio.call(_tar.extract, spool, target)
        return os.path.join(target, os.path.basename(path.rstrip("/")))

    def read_tar(self, path: str, *, follow_link: bool = False) -> AsyncStream[bytes]:
        """A file or directory as a tar, beneath its base name."""
        query = _calls.query(path=_calls.guest_path(path), follow_link=follow_link)
        return AsyncStream(self._wire, Call("GET", self._path("tar"), query=query, slow=True), read_bytes)

    async def write_tar(self, directory: str, tar: _calls.Body) -> None:
        """Writes the members of a tar beneath a directory, which exists."""
        query = _calls.query(path=_calls.guest_path(directory))
        headers = {"Content-Type": "application/x-tar"}
        await self._wire.send(
            Call("PUT", self._path("tar"), query=query, headers=headers, content=tar, slow=True)
        )

    def watch(self, path: str, *, recursive: bool = False) -> AsyncStream[FileEvent]:
        """The changes of a file or directory, from when its ``with`` begins."""
        query = _calls.query(path=_calls.guest_path(path), recursive=recursive)
        call = Call("GET", self._path("watch"), query=query, slow=True)
        return AsyncStream(self._wire, call, EventReader(FileEvent, only="change"))
