"""Directories as streams of tar, and back."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
from typing import BinaryIO, Callable, Iterator, List, Optional, Tuple, Union

from ._ignore import of_context
from .errors import ProtocolError, UsageError

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
    """Unpacks a tar of a guest, which nobody trusts.

    Nothing lands outside of ``directory``, whatever links the archive makes;
    links that lead out, devices and pipes are refused; owners and special bits
    are not taken over. (The ``data`` filter of tarfile is of a like mind, and not
    there in each Python that this runs on.)
    """
    top = os.path.realpath(directory)
    late: List[Tuple[str, tarfile.TarInfo]] = []
    with tarfile.open(fileobj=f, mode="r|") as archive:
        for member in archive:
            target = _inside(top, member.name)
            if target == top:
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if member.isdir():
                if os.path.islink(target) or not os.path.isdir(target):
                    _away(target)
                    os.mkdir(target)
                late.append((target, member))
                continue
            _away(target)
            if member.issym():
                _inside(top, os.path.join(os.path.dirname(member.name), member.linkname), member)
                os.symlink(member.linkname, target)
            elif member.islnk():
                source = _inside(top, member.linkname, member)
                if not stat.S_ISREG(os.lstat(source).st_mode):
                    raise _unsafe(member.name, "is a second name of what is no file")
                os.link(source, target)
            elif member.isreg():
                _file(archive, member, target)
            else:
                raise _unsafe(member.name, "is a device or pipe")
    for target, member in reversed(late):  # what stands in them is there now
        os.chmod(target, member.mode & 0o755 | 0o700)
        os.utime(target, (member.mtime, member.mtime))


def _inside(top: str, name: str, link: Optional[tarfile.TarInfo] = None) -> str:
    """The path of a member beneath ``top``; a link's target may not be absolute."""
    said = link.name if link is not None else name
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if link is not None:
        if link.linkname.startswith("/") and link.issym():
            raise _unsafe(said, f"is a link to {link.linkname}")
        path = os.path.realpath(os.path.join(top, *parts))
        if link.islnk():
            path = os.path.join(os.path.realpath(os.path.join(top, *parts[:-1])), *parts[-1:])
    else:
        if ".." in parts:
            raise _unsafe(said, "has .. in its path")
        # Links that the archive has made before are followed, and seen.
        path = os.path.join(os.path.realpath(os.path.join(top, *parts[:-1])), *parts[-1:])
    if path != top and not path.startswith(top.rstrip("/") + "/"):
        raise _unsafe(said, "leads out of the directory")
    return path


def _unsafe(name: str, why: str) -> ProtocolError:
    return ProtocolError(
        f"unpack {name!r:.200} of the sandbox: it {why}", "read_tar gives the archive as it is"
    )


def _away(path: str) -> None:
    """Makes place for a member, and follows no link at its end."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
    source = archive.extractfile(member)
    if source is None:
        raise ProtocolError(f"unpack {member.name!r}: it has no content")
    mode = member.mode & 0o755 | 0o600
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as out:
        shutil.copyfileobj(source, out, PIECE)
    os.utime(target, (member.mtime, member.mtime))
