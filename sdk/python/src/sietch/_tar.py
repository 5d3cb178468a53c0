"""Directories as streams of tar, and back."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from typing import BinaryIO, Callable, Iterator, Optional, Tuple, Union

from ._ignore import of_context
from .errors import UsageError

PIECE = 256 << 10
_BLOCK = 512

#: Whether a path in the archive is left out, with all beneath it.
Skip = Callable[[str, bool], bool]


def stream(root: str, name: str, skip: Optional[Skip] = None, owner: Optional[int] = None) -> Iterator[bytes]:
    """The file or directory ``root``, which becomes ``name``; empty: what is
    beneath ``root`` stands at the top. Numeric owners, modes and times are kept;
    ``owner`` replaces user and group. Sockets are left out. A file that changes
    its size meanwhile is an error."""
    archive = tarfile.TarFile(fileobj=_Nowhere(), mode="w", format=tarfile.PAX_FORMAT)  # type: ignore[arg-type]
    for path, arcname in _walk(root, name, skip):
        member = archive.gettarinfo(path, arcname)
        member.uname = member.gname = ""
        if owner is not None:
            member.uid = member.gid = owner
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if member.isreg():
            yield from _content(path, member.size)
    yield bytes(2 * _BLOCK)


class _Nowhere:
    """What tarfile opens to tell of files; nothing is written to it."""

    def tell(self) -> int:
        return 0


def _walk(root: str, name: str, skip: Optional[Skip]) -> Iterator[Tuple[str, str]]:
    mode = os.lstat(root).st_mode
    directory = stat.S_ISDIR(mode)
    if name:
        if stat.S_ISSOCK(mode) or (skip is not None and skip(name, directory)):
            return
        yield root, name
    elif not directory:
        raise UsageError(f"{root} is no directory")
    if not directory:
        return
    with os.scandir(root) as found:
        entries = sorted(e.name for e in found)
    for entry in entries:
        yield from _walk(os.path.join(root, entry), f"{name}/{entry}" if name else entry, skip)


def _content(path: str, size: int) -> Iterator[bytes]:
    left = size
    with open(path, "rb") as f:
        while left:
            data = f.read(min(PIECE, left))
            if not data:
                raise OSError(f"{path} became shorter while it was read")
            left -= len(data)
            yield data
    if size % _BLOCK:
        yield bytes(_BLOCK - size % _BLOCK)


def name_of(path: Union[str, os.PathLike[str]]) -> str:
    """What a file or directory is called."""
    return os.path.basename(os.path.abspath(path))


def context(directory: str, dockerfile: str = "Dockerfile") -> Iterator[bytes]:
    """A build context: without what ``.dockerignore`` names, owned by root."""
    if not os.path.isdir(directory):
        raise UsageError(f"build context {directory} is no directory")
    rules = of_context(directory, dockerfile)
    needed = {os.path.normpath(dockerfile), ".dockerignore", dockerfile + ".dockerignore"}

    def skip(name: str, directory: bool) -> bool:
        if name in needed or (
            directory and (rules.may_keep or any(n.startswith(name + "/") for n in needed))
        ):
            return False
        return rules.leaves_out(name)

    return stream(directory, "", skip, owner=0)


def pieces(f: BinaryIO) -> Iterator[bytes]:
    """What an open file still holds."""
    while True:
        data = f.read(PIECE)
        if not data:
            return
        yield data


@contextlib.contextmanager
def opened(source: Union[str, os.PathLike[str], BinaryIO]) -> Iterator[BinaryIO]:
    """A file by its path, closed at the end, or one that somebody else closes."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as f:
            yield f
    else:
        yield source


def extract(f: BinaryIO, directory: str) -> None:
    """Unpacks a tar of a guest, which nobody trusts: nothing lands outside, owners
    and special bits are not taken over, devices are refused."""
    if not hasattr(tarfile, "data_filter"):
        raise UsageError(
            "this Python cannot unpack what is not trusted", "use 3.9.17, 3.10.12, 3.11.4, 3.12 or newer"
        )
    with tarfile.open(fileobj=f, mode="r|") as archive:
        archive.extractall(directory, filter="data")
