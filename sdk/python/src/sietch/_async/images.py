"""Images: root file systems to boot."""

from __future__ import annotations

import os
from typing import BinaryIO, Callable, List, Mapping, Optional, Sequence, Union

from .. import _aio, _calls, _tar
from .._calls import Call
from .._decode import decode
from ..errors import ProtocolError
from ..models import Image
from .wire import AsyncStream, AsyncWire, read_bytes, read_objects

#: Is given each line of progress.
Progress = Optional[Callable[[str], None]]

_TAR = {"Content-Type": "application/x-tar"}


class AsyncImages:
    """The images of a server."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self) -> List[Image]:
        """One entry for each name."""
        return await self._wire.value(Call("GET", _calls.path("images")), List[Image])

    async def inspect(self, image: str) -> Image:
        """An image by its name or id."""
        return await self._wire.value(Call("GET", _calls.path("images", image)), Image)

    async def remove(self, image: str) -> None:
        """Removes an image, or one name of it."""
        await self._wire.send(Call("DELETE", _calls.path("images", image), slow=True))

    async def tag(self, image: str, name: str) -> Image:
        """Gives an image one more name."""
        return await self._wire.value(
            Call("POST", _calls.path("images", image, "tags"), json={"name": name}), Image
        )

    async def build(
        self,
        context: Union[str, os.PathLike[str], BinaryIO],
        *,
        name: Union[str, Sequence[str], None] = None,
        dockerfile: Optional[str] = None,
        target: Optional[str] = None,
        build_args: Optional[Mapping[str, str]] = None,
        secrets: Optional[Mapping[str, Union[str, bytes]]] = None,
        build_contexts: Optional[Mapping[str, str]] = None,
        no_cache: bool = False,
        progress: Progress = None,
        idempotency_key: Optional[str] = None,
    ) -> Image:
        """Makes an image from a Dockerfile.

        ``context`` is a directory of this machine, of which is sent what
        ``.dockerignore`` leaves, or an open file of a tar. ``name`` is NAME[:TAG],
        one or some; ``dockerfile`` a path in the context. ``secrets`` are offered
        to ``RUN --mount=type=secret``. ``progress`` is given each line.
        """
        if isinstance(context, (str, os.PathLike)):
            body = _aio.each(_tar.context(os.fspath(context), dockerfile or "Dockerfile"))
        else:
            body = _aio.each(_tar.pieces(context))
        query = _calls.query(
            name=[name] if isinstance(name, str) else list(name or []),
            dockerfile=dockerfile,
            target=target,
            build_arg=_calls.pairs(build_args, "build_args"),
            build_context=_calls.pairs(build_contexts, "build_contexts"),
            no_cache=no_cache,
            progress=None if progress else "quiet",
        )
        headers = {**_TAR, **_calls.secrets(secrets), **_calls.key(idempotency_key)}
        call = Call("POST", _calls.path("builds"), query=query, headers=headers, content=body, slow=True)
        return await self._made(call, progress)

    async def pull(self, ref: str, *, progress: Progress = None) -> Image:
        """Makes an image of one in a registry."""
        call = Call("POST", _calls.path("images", "pull"), json={"ref": ref}, slow=True)
        return await self._made(call, progress)

    async def bootstrap(self, name: str, *, progress: Progress = None) -> Image:
        """Makes a base image, such as ``debian:bookworm``, from the package mirror
        of the server's host."""
        call = Call("POST", _calls.path("images", "bootstrap"), json={"name": name}, slow=True)
        return await self._made(call, progress)

    async def _made(self, call: Call, progress: Progress) -> Image:
        async with AsyncStream(self._wire, call, read_objects) as lines:
            async for line in lines:
                if line.get("image") is not None:
                    return decode(Image, line["image"])
                if progress is not None:
                    progress(str(line.get("progress", "")))
        raise ProtocolError("the answer ended without an image")

    async def import_archive(
        self,
        archive: Union[str, os.PathLike[str], BinaryIO],
        *,
        name: Optional[str] = None,
        format: Optional[str] = None,
    ) -> Image:
        """Makes an image of an archive: an OCI layout (``oci``), one of ``docker
        save`` (``docker``), or a tar of a root file system (``rootfs``)."""
        query = _calls.query(name=name, format=format)
        path = _calls.path("images", "import")
        with _tar.opened(archive) as f:
            body = _aio.each(_tar.pieces(f))
            call = Call("POST", path, query=query, headers=_TAR, content=body, slow=True)
            return await self._wire.value(call, Image)

    def export(self, image: str, *, format: Optional[str] = None) -> AsyncStream[bytes]:
        """An image as an archive, ``oci`` or ``rootfs``."""
        query = _calls.query(format=format)
        call = Call("GET", _calls.path("images", image, "export"), query=query, slow=True)
        return AsyncStream(self._wire, call, read_bytes)
